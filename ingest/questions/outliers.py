"""`outliers`: channels and rows that stand out, are dead or are saturated, since when, and on which ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeAlias, Unpack

from ingest.questions.choosing import empty_choice_error, keys_of
from ingest.questions.question import (
    LEFT_OUT,
    Answer,
    Note,
    Option,
    Part,
    Partial,
    Pattern,
    Question,
    Ranks,
    Steps,
    Table,
)
from ingest.reader.catalog import Catalog
from ingest.reader.choice import as_names, format_ranges
from ingest.reader.snapshot import LeftOut, Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import COLUMNS, Step
from ingest.reader.step_tables import marginals_of
from ingest.reader.tensor_filter import FilterFields, TensorFilter, with_pattern
from ingest.reader.text import Plain, counted, number_text
from workers.arrays.marginals import (
    ABS_MAX,
    DEFAULT_FACTOR,
    L2_NORM,
    MEASURES,
    Channels,
    MarginalScope,
    channels_of,
    relative_error,
)
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey, tensors_of
from workers.store.prefetch import prefetch
from workers.store.sketch_columns import MARGINALS_HINT
from workers.store.sketches import marginals_in, rows_without_marginals

OUTLIER, DEAD, SATURATED = KINDS = ("outlier", "dead", "saturated")


@dataclass(frozen=True, slots=True)
class OddPositions(Plain):
    """Positions along an axis of a tensor that are odd in the same way, steps and ranks."""

    also: ClassVar = ("ratio",)

    kind: str
    """`outlier`, `dead` or `saturated`; see `workers.arrays.marginals`."""
    name: str
    net: str
    graph: str
    dtype: str
    shape: tuple[int, ...]
    axis: int
    positions: tuple[int, ...]
    """Places along the axis, in order; one for an outlier."""
    value: float
    """By what positions are compared: that of the worst one, in the rank and step where it is worst."""
    median: float
    """Of the positions there; NaN unless it is an outlier."""
    rank: int
    step: int
    first_step: int
    last_step: int
    steps: int
    """In how many steps it is so, on any rank."""
    of_steps: int
    """In how many steps the marginals of the tensor are known."""
    ranks: tuple[int, ...]
    exactness: str
    """`exact`, or `bounded` by `error` if what it is compared by is rounded to float32."""
    error: float = 0.0
    """How far `value`, and `median`, may be from the truth, as a share of it: 0 if it is exact."""

    @property
    def ratio(self) -> float:
        """How many times the median it is; NaN unless it is an outlier."""
        return self.value / self.median

    @property
    def places(self) -> str:
        """The positions as people write them; their number if they are many."""
        texts = format_ranges(self.positions) if len(self.positions) > 1 else str(self.positions[0])
        return texts if len(texts) <= 24 else f"{len(self.positions)} positions"


@dataclass(frozen=True, slots=True, repr=False)
class OutliersAnswer(Answer):
    """What is odd along the axes of tensors."""

    noun: ClassVar = "place"

    store: str
    by: str
    factor: float
    positions: tuple[OddPositions, ...]
    """Outliers by ratio, then dead and saturated ones by number: the worst first."""
    looked_at: int
    """Tensors whose marginals are known, counted in each step and rank."""
    too_small: int
    """How many others are too small to have marginals, are of another type, or hold only zeros."""
    without: int
    """How many others lack marginals, because their steps were committed without them."""
    left_out: tuple[LeftOut, ...] = ()

    def table(self) -> Table[OddPositions]:
        """Return a row for each position, or several that are odd in the same way."""
        return Table(
            {
                "kind": lambda odd: odd.kind,
                "axis": lambda odd: str(odd.axis),
                "position": lambda odd: odd.places,
                "times": lambda odd: f"{odd.ratio:.3g}" if odd.kind == OUTLIER else "",
                "value": lambda odd: number_text(odd.value) if odd.kind != DEAD else "",
                "known": lambda odd: f"±{odd.error:.1g}" if odd.error else odd.exactness,
                "rank": lambda odd: str(odd.rank),
                "step": lambda odd: str(odd.step),
                "since": lambda odd: str(odd.first_step),
                "steps": lambda odd: f"{odd.steps} of {odd.of_steps}",
                "ranks": lambda odd: format_ranges(odd.ranks),
                "name": lambda odd: odd.name,
            },
            self.positions,
            self.noun,
            right=("axis", "times", "value", "rank", "step", "since", "steps"),
        )

    def report(self) -> Iterable[Part]:
        """Return what people read: the table, and what is not in it."""
        if self.positions:
            yield self.table()
        elif self.looked_at:
            yield Note(f"nothing unusual in {counted(self.looked_at, 'tensor')}")
        if self.too_small:
            too_small = counted(self.too_small, "tensor")
            yield Note(f"{too_small} not examined: too small, not of floats, or all zeros")
        if self.without:
            without = counted(self.without, "tensor")
            yield Note(f"{without} without marginals (see `dump-ingest sketch`)", LEFT_OUT)


#: Steps that are read ahead of need.
_STEPS_AHEAD = 4
#: The limit of places, each of one rank and step, in one answer.
MAX_PLACES = 1_000_000
#: Types whose magnitudes float32 rounds.
_ROUNDED = frozenset(["float64"])
_Axis: TypeAlias = tuple[TensorKey, str, tuple[int, ...], int]
"""A tensor, its type and shape, and an axis of it."""


@dataclass(slots=True)
class _Place:
    steps: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    worst: tuple[float, float, float, int, int] = (-math.inf, 0.0, 0.0, 0, 0)
    """How bad it is, value, median, rank, step."""


#: By axis, kind and position.
_Places: TypeAlias = dict[tuple[_Axis, str, int], _Place]


def outliers(
    store: Catalog,
    pattern: Pattern = None,
    *,
    by: Annotated[str, Option("What positions are compared by: abs_max or l2_norm.", "MEASURE")] = ABS_MAX,
    factor: Annotated[
        float, Option("How many times the median over its axis an outlier exceeds.", kind=float)
    ] = DEFAULT_FACTOR,
    kinds: Annotated[
        str | Sequence[str] | None,
        Option(
            "Only these: outlier, dead or saturated; may be repeated. Default: all.",
            "KIND",
            "--kind",
            is_several=True,
        ),
    ] = None,
    rank: Ranks = None,
    step: Steps = None,
    include_partial: Partial = False,
    **conditions: Unpack[FilterFields],
) -> OutliersAnswer:
    """Name the channels and rows of tensors that stand out, are dead, or are saturated.

    From sums, norms and largest magnitudes along the axes of tensors, so also after `gc`. An outlier is
    `times` the median over the positions of its axis that are not dead; there must be eight of these. A dead
    position has no finite element other than zero. All elements of a saturated one have nearly the same
    magnitude: their root mean square is 99.9 % of the largest. `since` is the first step in which it is so,
    `known` how far the value may be from the truth, as a share of it.

    Raises:
        UsageError: an argument is wrong, no tensor matches, none has marginals, or too many positions are
            odd.
        DamagedStore: no step can be read.
    """
    wanted = as_names(kinds or KINDS)
    if by not in MEASURES:
        raise UsageError(f"{by!r:.80} is not a measure", hint=f"Measures: {', '.join(MEASURES)}.")
    if not 1 < factor < math.inf:
        raise UsageError(
            f"a factor of {factor:g} names no outliers", hint="Give a number above 1, such as 10."
        )
    for kind in (kind for kind in wanted if kind not in KINDS):
        raise UsageError(f"{kind!r:.80} is not a kind", hint=f"Kinds: {', '.join(KINDS)}.")
    condition = TensorFilter(with_pattern(pattern, conditions), COLUMNS)
    return ask_of_undamaged(
        take_snapshot(store, rank, step, include_partial=include_partial),
        lambda readable: _ask(readable, condition, by, factor, wanted),
        read=marginals_of,
    )


def _ask(
    snapshot: Snapshot, condition: TensorFilter, by: str, factor: float, kinds: Sequence[str]
) -> OutliersAnswer:
    steps, counts = list(snapshot.chosen.values()), Counter[str]()
    places: _Places = {}
    steps_of: dict[_Axis, set[int]] = {}
    for key, tensors, axes in prefetch(
        snapshot.store.possible_steps(steps, [condition.fields]),
        lambda step: (step.key, *_look_at(step, condition, by, factor)),
        ahead=_STEPS_AHEAD,
        threads=2,
        name="dump-ingest-outliers",
    ):
        counts.update(tensors)
        for axis, channels in axes:
            steps_of.setdefault(axis, set()).add(key.step or 0)
            _add(places, axis, channels, key, kinds)
    if not counts.total():
        raise empty_choice_error(condition, keys_of(steps))
    if not counts["looked_at"] and counts["without"]:
        raise UsageError("none of the chosen tensors has marginals", hint=MARGINALS_HINT)
    return OutliersAnswer(
        snapshot.store.url,
        by,
        factor,
        tuple(sorted(_positions(places, steps_of, by), key=_order)),
        counts["looked_at"],
        counts["too_small"],
        counts["without"],
        snapshot.left_out,
    )


def _add(places: _Places, axis: _Axis, channels: Channels, key: StepKey, kinds: Sequence[str]) -> None:
    """Add what is odd along one axis of a tensor of one step and rank.

    Raises:
        UsageError: too many positions are odd.
    """
    odd = zip(KINDS, (channels.outlying, channels.dead, channels.saturated), strict=True)
    for kind, position in ((way, at) for way, of in odd for at in of.tolist() * (way in kinds)):
        place = places.setdefault((axis, kind, position), _Place())
        place.steps.add(key.step or 0)
        place.ranks.add(key.rank)
        value, median = float(channels.values[position]), channels.median if kind == OUTLIER else math.nan
        badness = value / median if kind == OUTLIER else value
        if badness > place.worst[0]:
            place.worst = (badness, value, median, key.rank, key.step or 0)
    if len(places) > MAX_PLACES:
        raise UsageError(
            f"more than {MAX_PLACES} positions are odd",
            hint="Narrow the pattern, raise the factor, or choose kinds, ranks and steps.",
        )


def _look_at(
    step: Step, condition: TensorFilter, by: str, factor: float
) -> tuple[dict[str, int], list[tuple[_Axis, Channels]]]:
    """Return how many chosen tensors of a step have marginals or not, and what is odd in those that have."""
    was_read, tables = step.has_read_tables, step.tables
    rows, keys = tensors_of(tables)
    key_of = dict(zip(rows.tolist(), keys, strict=True))
    chosen, dtypes = step.rows(condition), tables.label("dtype")
    scope = marginals_in(step.commit.nodes) or MarginalScope.NONE
    known = marginals_of(step) if chosen and scope is not MarginalScope.NONE else {}
    lacking = set(chosen) - known.keys()
    if scope is not MarginalScope.NONE:
        lacking &= set(rows_without_marginals(tables, scope))
    looked_at = [row for row in chosen if row in known]
    too_small = len(chosen) - len(looked_at) - len(lacking)
    counts = {"looked_at": len(looked_at), "too_small": too_small, "without": len(lacking)}
    axes: list[tuple[_Axis, Channels]] = []
    for row in looked_at:
        shape = step.shape(row)
        for axis, marginal in known[row].items():
            channels = channels_of(marginal, math.prod(shape) // shape[axis], by=by, factor=factor)
            axes.append(((key_of[row], str(dtypes[row]), shape, axis), channels))
    if not was_read:  # somebody else uses it
        step.forget_tables()
    return counts, axes


def _positions(places: _Places, steps_of: Mapping[_Axis, set[int]], by: str) -> Iterator[OddPositions]:
    """Yield outliers one by one, and others of an axis together that are odd in the same steps and ranks."""
    groups: dict[tuple[_Axis, str, object], list[tuple[int, _Place]]] = {}
    for (axis, kind, position), place in places.items():
        alike = position if kind == OUTLIER else (frozenset(place.steps), frozenset(place.ranks))
        groups.setdefault((axis, kind, alike), []).append((position, place))
    for (axis, kind, _), members in groups.items():
        key, dtype, shape, number = axis
        _, value, median, rank, step = max(place.worst for _, place in members)
        place = members[0][1]
        error = 0.0
        if kind != DEAD:
            measure = L2_NORM if kind == SATURATED else by
            elements = math.prod(shape) // shape[number]
            error = relative_error(measure, value, elements, is_rounded=dtype in _ROUNDED)
        yield OddPositions(
            kind=kind,
            name=key.name,
            net=key.net,
            graph=key.graph,
            dtype=dtype,
            shape=shape,
            axis=number,
            positions=tuple(sorted(position for position, _ in members)),
            value=value,
            median=median,
            rank=rank,
            step=step,
            first_step=min(place.steps),
            last_step=max(place.steps),
            steps=len(place.steps),
            of_steps=len(steps_of[axis]),
            ranks=tuple(sorted(place.ranks)),
            exactness="bounded" if error else "exact",
            error=error,
        )


def _order(odd: OddPositions) -> tuple[int, float, int, int, str]:
    badness = odd.ratio if odd.kind == OUTLIER else float(len(odd.positions))
    return KINDS.index(odd.kind), -badness, odd.first_step, odd.axis, odd.name


QUESTION = Question(outliers, ("outliers run.zarr --role activation --factor 20",), noun="place")
