"""`quantiles`: percentiles of tensors, from their histograms, or exactly from their elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from ingest.questions.choosing import empty_choice_error, keys_of
from ingest.questions.question import (
    Answer,
    Option,
    Part,
    Partial,
    Pattern,
    Question,
    Ranks,
    Steps,
    Table,
    without_histogram,
)
from ingest.reader.anatomy import percentiles, widened
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.snapshot import LeftOut, Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import COLUMNS, Step
from ingest.reader.step_tables import histograms_of
from ingest.reader.tensor import SMALL_NBYTES, Tensor
from ingest.reader.tensor_filter import FilterFields, TensorFilter, with_pattern
from ingest.reader.text import Plain, number_text, percentile_name, plain
from workers.arrays.histogram import Bounds, Histogram
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.store.consolidated.blocks import TensorKey, tensors_of
from workers.store.prefetch import prefetch

_Answer = TypeVar("_Answer")

#: Steps that are read ahead of need.
_STEPS_AHEAD = 4
_COUNT = FIELDS.index("count")
#: How a store gets what is missing.
SKETCHES_HINT = (
    "Tensors of real numbers have them if their elements were dumped, or a black box recorded them, and if "
    "the setting `sketches` was on when their step was committed; "
    "`dump-ingest sketch STORE` adds them while the tensors are there."
)


@dataclass(frozen=True, slots=True, eq=False)
class SketchedTensor:
    """One tensor of one step and rank."""

    rank: int
    step: int
    row: int
    key: TensorKey
    dtype: str
    elements: int
    histogram: Histogram


@dataclass(slots=True)
class SketchedTensors:
    """The tensors that are chosen of a snapshot, and how many of them do not have a histogram."""

    snapshot: Snapshot
    chosen: FilterFields
    without: int = 0
    """Known when the iteration has ended."""

    def __iter__(self) -> Iterator[SketchedTensor]:
        """Yield the tensors by step, rank and order of execution.

        Steps that the consolidated view excludes are not read.

        Raises:
            UsageError: no tensor is chosen, or none of them has a histogram; raised at the end.
            DamagedStore: the index or the histograms of a step are damaged.
        """
        condition = TensorFilter(self.chosen, COLUMNS)
        self.without, total = 0, 0
        steps = list(self.snapshot.chosen.values())
        for tensors, without in prefetch(
            self.snapshot.store.possible_steps(steps, [self.chosen]),
            lambda step: _sketched(step, condition),
            ahead=_STEPS_AHEAD,
            threads=2,
            name="dump-ingest-sketches",
        ):
            self.without += without
            total += len(tensors)
            yield from tensors
        if not total and not self.without:
            raise empty_choice_error(condition, keys_of(steps))
        if not total:
            raise UsageError("none of the chosen tensors has a histogram", hint=SKETCHES_HINT)


def ask_of_sketches(
    store: Catalog,
    chosen: FilterFields,
    ask: Callable[[SketchedTensors], _Answer],
    *,
    rank: Choice,
    step: Choice,
    include_partial: bool,
) -> _Answer:
    """Ask a question about the chosen tensors of a snapshot, or of the part of it that can be read.

    Args:
        store: the store.
        chosen: what a tensor must fulfil in a step.
        ask: answers the question; called again without damaged steps if it comes upon one.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        include_partial: also use steps with quarantined or missing files.

    Raises:
        UsageError: no tensor is chosen, or none has a histogram; or `ask` raises it.
        DamagedStore: no step can be read.
    """
    return ask_of_undamaged(
        take_snapshot(store, rank, step, include_partial=include_partial),
        lambda readable: ask(SketchedTensors(readable, chosen)),
        read=histograms_of,
    )


def _sketched(step: Step, condition: TensorFilter) -> tuple[list[SketchedTensor], int]:
    was_read = step.has_read_tables
    rows, keys = tensors_of(step.tables)
    key_of = dict(zip(rows.tolist(), keys, strict=True))
    chosen = step.rows(condition)
    known = histograms_of(step, frozenset(chosen)) if chosen else {}
    dtypes = step.tables.label("dtype")
    tensors = [
        SketchedTensor(
            step.key.rank,
            step.key.step or 0,
            row,
            key_of[row],
            str(dtypes[row]),
            int(step.tables.statistics[row, _COUNT]),
            known[row],
        )
        for row in chosen
        if row in known
    ]
    if not was_read:  # somebody else uses it
        step.forget_tables()
    return tensors, len(chosen) - len(tensors)


DEFAULT_PERCENTS = (0.0, 1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 99.9, 100.0)
#: The limit of tensors in one answer.
MAX_ROWS = 500_000
_COLUMNS = ("rank", "step", "name", "net", "graph", "dtype", "finite", "exactness")


@dataclass(frozen=True, slots=True)
class TensorQuantiles(Plain):
    """Percentiles of the finite elements of one tensor of one step and rank."""

    also: ClassVar = ("exactness",)

    rank: int
    step: int
    name: str
    net: str
    graph: str
    dtype: str
    finite: int
    """How many elements are finite."""
    percentiles: dict[float, Bounds]
    """By percentage: NaN if no element is finite."""

    @property
    def exactness(self) -> str:
        """`exact` if every percentile is, else `bounded`."""
        return "exact" if all(_is_known(bounds) for bounds in self.percentiles.values()) else "bounded"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        listed = [{"percent": percent, **plain(bounds)} for percent, bounds in self.percentiles.items()]
        return {**Plain.to_dict(self), "percentiles": listed}


@dataclass(frozen=True, slots=True, repr=False)
class QuantilesAnswer(Answer):
    """Percentiles of tensors, by step, rank and order of execution."""

    noun: ClassVar = "tensor"

    store: str
    magnitude: bool
    tensors: tuple[TensorQuantiles, ...]
    without: int
    """How many of the chosen tensors, counted in each step and rank, have no histogram."""
    left_out: tuple[LeftOut, ...] = ()

    def table(self) -> Table[TensorQuantiles]:
        """Return a row for each tensor, with a column for each percentile."""
        percents = list(self.tensors[0].percentiles) if self.tensors else []
        named: dict[str, Callable[[TensorQuantiles], str]] = {
            percentile_name(percent): partial(_bounds_text, percent) for percent in percents
        }
        # Extremes and the median stay longest.
        last = sorted(percents, key=lambda percent: -min(percent, abs(percent - 50), 100 - percent))
        return Table(
            {
                "rank": lambda tensor: str(tensor.rank),
                "step": lambda tensor: str(tensor.step),
                "name": lambda tensor: tensor.name,
                **named,
            },
            self.tensors,
            self.noun,
            right=("rank", "step", *named),
            spare=list(map(percentile_name, last)),
        )

    def report(self) -> Iterable[Part]:
        """Return what people read."""
        yield self.table()
        yield from without_histogram(self.without)

    def rows_of_table(self) -> list[dict[str, Any]]:
        """Return a row for each tensor, with the lower and upper bound of each percentile."""
        return [
            {
                **{name: getattr(tensor, name) for name in _COLUMNS},
                **{
                    f"{percentile_name(percent)}_{side}": getattr(bounds, side)
                    for percent, bounds in tensor.percentiles.items()
                    for side in ("low", "high")
                },
            }
            for tensor in self.tensors
        ]


def quantiles(
    store: Catalog,
    pattern: Pattern = None,
    percents: Annotated[
        Sequence[float] | None,
        Option(
            "A percentile, 0 to 100; may be repeated. Default: 0, 1, 5, 25, 50, 75, 95, 99, 99.9, 100.",
            "P",
            "--percent",
            "-p",
            float,
            is_several=True,
        ),
    ] = None,
    *,
    magnitude: Annotated[bool, Option("Of the magnitudes, without the sign.")] = False,
    exact: Annotated[bool, Option("Read the elements of tensors that the store still has.")] = False,
    rank: Ranks = None,
    step: Steps = None,
    include_partial: Partial = False,
    **conditions: Unpack[FilterFields],
) -> QuantilesAnswer:
    """Show percentiles of the finite elements of tensors, also after their elements are gone.

    As `numpy.percentile` defines them, from histograms: `a..b` says that a percentile lies between these,
    which differ by at most a factor of two unless numpy interpolates between elements of different bins. The
    smallest and largest element are exact; `--exact` reads the others.

    Raises:
        UsageError: a percentage is out of range, no tensor matches, or none has a histogram.
        DamagedStore: no step can be read, or with `exact`, a tensor is damaged.
    """
    wanted = percents or DEFAULT_PERCENTS
    if bad := [percent for percent in wanted if not 0 <= percent <= 100]:
        raise UsageError(f"{bad[0]} is not a percentage", hint="Percentiles are 0 to 100.")
    chosen = with_pattern(pattern, conditions)

    def ask(tensors: SketchedTensors) -> QuantilesAnswer:
        snapshot = tensors.snapshot
        answers = [
            _of_tensor(tensor, wanted, snapshot if exact else None, magnitude=magnitude)
            for tensor in islice(tensors, MAX_ROWS + 1)
        ]
        if len(answers) > MAX_ROWS:
            raise UsageError(
                f"more than {MAX_ROWS} tensors match",
                hint="Narrow the pattern, or choose ranks and steps.",
            )
        return QuantilesAnswer(store.url, magnitude, tuple(answers), tensors.without, snapshot.left_out)

    return ask_of_sketches(store, chosen, ask, rank=rank, step=step, include_partial=include_partial)


def _of_tensor(
    tensor: SketchedTensor, percents: Sequence[float], snapshot: Snapshot | None, *, magnitude: bool
) -> TensorQuantiles:
    histogram = tensor.histogram
    known = {percent: histogram.quantile(percent / 100, magnitude=magnitude) for percent in percents}
    step = snapshot.step(tensor.rank, tensor.step) if snapshot is not None else None
    if step is not None and step.has_payload(tensor.row) and histogram.finite:
        values = _from_elements(Tensor(step, tensor.row), histogram.finite, percents, magnitude=magnitude)
        known = {percent: Bounds(value, value) for percent, value in values.items()}
    return TensorQuantiles(
        rank=tensor.rank,
        step=tensor.step,
        name=tensor.key.name,
        net=tensor.key.net,
        graph=tensor.key.graph,
        dtype=tensor.dtype,
        finite=histogram.finite,
        percentiles=known,
    )


def _from_elements(
    tensor: Tensor, finite: int, percents: Sequence[float], *, magnitude: bool
) -> dict[float, float]:
    kept = (
        [_finite(piece, magnitude=magnitude) for piece in tensor.pieces()]
        if tensor.nbytes <= SMALL_NBYTES
        else None
    )

    def read() -> Iterator[npt.NDArray[Any]]:
        yield from kept or (_finite(piece, magnitude=magnitude) for piece in tensor.pieces())

    return percentiles(read, finite, next(read()).dtype, percents)


def _finite(piece: npt.NDArray[Any], *, magnitude: bool) -> npt.NDArray[Any]:
    wide = widened(piece)
    if wide.dtype.kind == "f":
        wide = wide[np.isfinite(wide)]
    elif magnitude:
        wide = wide.astype(np.float64)  # the magnitude of the smallest integer is not one of its type
    return np.abs(wide) if magnitude else wide


def _is_known(bounds: Bounds) -> bool:
    return bounds.is_exact or math.isnan(bounds.low)


def _bounds_text(percent: float, tensor: TensorQuantiles) -> str:
    bounds = tensor.percentiles[percent]
    low = number_text(bounds.low)
    return low if _is_known(bounds) else f"{low}..{number_text(bounds.high)}"


QUESTION = Question(
    quantiles, ("quantiles run.zarr 'MatMul.*' --step 40 -p 50 -p 99.9 --magnitude",), noun="tensor"
)
