"""`precision`: which tensors would overflow or underflow in other formats, from their histograms alone.

What a tensor is multiplied by before it is cast is chosen as recipes for float8 choose it (NVIDIA's
Transformer Engine, `transformer_engine.common.recipe`: `DelayedScaling`, `Float8CurrentScaling`).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Unpack

from ingest.questions.quantiles import SketchedTensor, SketchedTensors, ask_of_sketches
from ingest.questions.question import (
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
    without_histogram,
)
from ingest.reader.catalog import Catalog
from ingest.reader.choice import as_names
from ingest.reader.snapshot import LeftOut
from ingest.reader.tensor_filter import FilterFields, with_pattern
from ingest.reader.text import Plain
from workers.arrays.dtypes import NumberFormat, format_named
from workers.arrays.histogram import Bounds, losses, scale_for
from workers.errors import UsageError
from workers.store.consolidated.blocks import TensorKey

EXACT, BOUNDED = "exact", "bounded"


@dataclass(frozen=True, slots=True)
class FormatLosses(Plain):
    """What a cast of one tensor, of one step and rank, to one format would lose."""

    hidden: ClassVar = ("overflow", "underflow")

    rank: int
    step: int
    name: str
    net: str
    graph: str
    dtype: str
    format: str
    scale: float
    """By what the tensor is multiplied before the cast; NaN if each block has its own."""
    elements: int
    largest: float
    """The largest magnitude; 0 if no element is finite."""
    overflow: Bounds
    """How many finite elements become infinite or NaN, or are cut off."""
    underflow: Bounds
    """How many elements other than zero become zero."""
    headroom_bits: float
    """How often the tensor may double until it overflows; NaN if it has no element but zeros."""

    @property
    def exactness(self) -> str:
        """`exact` or `bounded`."""
        return EXACT if self.overflow.is_exact and self.underflow.is_exact else BOUNDED

    @property
    def badness(self) -> tuple[float, float]:
        """The shares of overflow and underflow at worst, to compare by."""
        return self.share(self.overflow.high), self.share(self.underflow.high)

    def share(self, count: float) -> float:
        """Return a count as a share of all elements."""
        return count / self.elements if self.elements else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with losses as shares."""
        shares = {
            f"{loss}_{side}": self.share(getattr(getattr(self, loss), side))
            for loss in ("overflow", "underflow")
            for side in ("low", "high")
        }
        return {**Plain.to_dict(self), **shares, "exactness": self.exactness}


@dataclass(frozen=True, slots=True)
class TensorPrecision:
    """One tensor in one format, over all steps and ranks."""

    worst: FormatLosses
    first_step: int | None
    """The first step in which anything may be lost; None if nothing is lost in any."""
    ranks: tuple[int, ...]
    headroom_bits: float
    """In the last step, of the rank that has least; NaN if it is not known."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **self.worst.to_dict(),
            "first_step": self.first_step,
            "ranks": list(self.ranks),
            "last_headroom_bits": self.headroom_bits,
        }


@dataclass(frozen=True, slots=True, repr=False)
class PrecisionAnswer(Answer):
    """Which tensors would lose what in which format."""

    noun: ClassVar = "cast"

    store: str
    scaling: str
    powers_of_two: bool
    formats: tuple[str, ...]
    tensors: tuple[TensorPrecision, ...]
    rows: tuple[FormatLosses, ...]
    """One for each tensor, rank, step and format, by step, rank and order of execution."""
    without: int
    """How many of the chosen tensors, counted in each step and rank, have no histogram."""
    left_out: tuple[LeftOut, ...] = ()
    tells_rows: bool = False
    """Whether JSON has `rows`, too."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; those of each step and rank if they are asked for."""
        hidden = {"tells_rows"} if self.tells_rows else {"tells_rows", "rows"}
        return {name: value for name, value in Plain.to_dict(self).items() if name not in hidden}

    def rows_of_table(self) -> list[dict[str, Any]]:
        """Return a row for each tensor and format, also for those that lose nothing."""
        return [tensor.to_dict() for tensor in self.tensors]

    def table(self) -> Table[TensorPrecision]:
        """Return a row for each tensor and format that loses something."""
        return Table(
            {
                "format": lambda tensor: tensor.worst.format,
                "overflow": lambda tensor: _share_text(tensor.worst, tensor.worst.overflow),
                "underflow": lambda tensor: _share_text(tensor.worst, tensor.worst.underflow),
                "rank": lambda tensor: str(tensor.worst.rank),
                "step": lambda tensor: str(tensor.worst.step),
                "headroom": lambda tensor: (
                    "-" if math.isnan(tensor.headroom_bits) else f"{tensor.headroom_bits:z.1f}"
                ),
                "name": lambda tensor: tensor.worst.name,
            },
            [tensor for tensor in self.tensors if tensor.first_step is not None],
            self.noun,
            right=("overflow", "underflow", "rank", "step", "headroom"),
        )

    def report(self) -> Iterable[Part]:
        """Return what people read: the table, or that nothing would be lost."""
        shown = self.table()
        if shown.rows:
            yield shown
        else:
            told = " that has a histogram" if self.without else ""
            yield Note(f"no tensor{told} would lose anything")
        yield from without_histogram(self.without)


def _share_text(worst: FormatLosses, lost: Bounds) -> str:
    low, high = worst.share(lost.low), worst.share(lost.high)
    if low == high:
        return f"{100 * high:.3g}%" if high else "0"
    return f"{f'{100 * low:.3g}%..' if low else '<'}{100 * high:.3g}%"


NONE, CURRENT, DELAYED = "none", "current", "delayed"
#: `none`: cast as it is. `current`: the largest magnitude of the tensor becomes the largest of the format.
#: `delayed`: so does the largest magnitude of the steps before, of those that were dumped.
SCALINGS = (NONE, CURRENT, DELAYED)
#: Steps that delayed scaling looks back, as Transformer Engine does by default (`amax_history_len`).
HISTORY = 1024


DEFAULT_FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "mxfp8_e4m3", "nvfp4")
#: The limit of rows in one answer; a million take about 400 MB.
MAX_ROWS = 1_000_000


def precision(
    store: Catalog,
    pattern: Pattern = None,
    formats: Annotated[
        str | Sequence[str] | None,
        Option(
            "A format: float16, bfloat16, e4m3, e5m2, mxfp8, nvfp4, or bits and bias: e5m7, e4m3b11; "
            "may be repeated. Default: these six.",
            "FORMAT",
            "--format",
            "-f",
            is_several=True,
        ),
    ] = None,
    *,
    scaling: Annotated[
        str, Option("What tensors are multiplied by before the cast: none, current or delayed.", "HOW")
    ] = NONE,
    powers_of_two: Annotated[bool, Option("Round scales down to powers of two: exact answers.")] = False,
    rank: Ranks = None,
    step: Steps = None,
    rows: Annotated[bool, Option("In JSON: also each step and rank, not only the worst.")] = False,
    include_partial: Partial = False,
    **conditions: Unpack[FilterFields],
) -> PrecisionAnswer:
    """Name the tensors that would overflow or underflow in float16, float8, ...: the worst first.

    Shares of all elements, in the step and rank that lose most. From histograms, so also after `gc`. `<` is
    an upper bound, `headroom` how often the tensor may double until it overflows. Underflow is exact if
    scales are powers of two; overflow is exact if there is none. Of formats with blocks, which have scales of
    their own, underflow is bounded.

    Raises:
        UsageError: a format or the scaling is unknown, no tensor matches, none has a histogram, or too many
            do.
        DamagedStore: no step can be read.
    """
    named = map(format_named, as_names(formats or DEFAULT_FORMATS))
    targets = list({target.name: target for target in named}.values())
    how = scaling.strip().lower()
    if how not in SCALINGS:
        raise UsageError(f"{scaling!r:.80} is not a scaling", hint=f"Scalings: {', '.join(SCALINGS)}.")
    chosen = with_pattern(pattern, conditions)

    def ask(tensors: SketchedTensors) -> PrecisionAnswer:
        losses_of_steps, series = _rows(tensors, targets, how, powers_of_two=powers_of_two)
        made = map(_summary, series)
        return PrecisionAnswer(
            store=store.url,
            scaling=how,
            powers_of_two=powers_of_two,
            formats=tuple(target.name for target in targets),
            tensors=tuple(sorted(made, key=lambda tensor: tensor.worst.badness, reverse=True)),
            rows=tuple(losses_of_steps),
            without=tensors.without,
            left_out=tensors.snapshot.left_out,
            tells_rows=rows,
        )

    return ask_of_sketches(store, chosen, ask, rank=rank, step=step, include_partial=include_partial)


def _rows(
    tensors: Iterable[SketchedTensor], targets: Sequence[NumberFormat], how: str, *, powers_of_two: bool
) -> tuple[list[FormatLosses], list[list[FormatLosses]]]:
    """Return a row for each tensor, rank, step and format; and the same by tensor and format."""
    rows: list[FormatLosses] = []
    series: dict[tuple[TensorKey, str], list[FormatLosses]] = {}
    histories: dict[tuple[int, TensorKey], deque[float]] = {}
    for tensor in tensors:
        largest = tensor.histogram.largest
        before = histories.setdefault((tensor.rank, tensor.key), deque(maxlen=HISTORY))
        # The magnitude that the scale is chosen for; 0 for a scale of 1.
        reference = {NONE: 0.0, CURRENT: largest, DELAYED: max(before, default=0.0)}[how]
        before.append(largest)
        for target in targets:
            scale = scale_for(reference, target, powers_of_two=powers_of_two)
            rows.append(_losses(tensor, target, math.nan if target.block else scale))
            series.setdefault((tensor.key, target.name), []).append(rows[-1])
        if len(rows) > MAX_ROWS:
            raise UsageError(
                f"more than {MAX_ROWS} answers",
                hint="Narrow the pattern, or choose formats, ranks and steps.",
            )
    return rows, [*series.values()]


def _losses(tensor: SketchedTensor, target: NumberFormat, scale: float) -> FormatLosses:
    lost, largest = losses(tensor.histogram, target, scale), tensor.histogram.largest
    magnitude = largest * (1.0 if target.block else scale)
    known = 0 < magnitude < math.inf and not target.block
    return FormatLosses(
        rank=tensor.rank,
        step=tensor.step,
        name=tensor.key.name,
        net=tensor.key.net,
        graph=tensor.key.graph,
        dtype=tensor.dtype,
        format=target.name,
        scale=scale,
        elements=tensor.elements,
        largest=largest,
        overflow=lost.overflow,
        underflow=lost.underflow,
        headroom_bits=math.log2(target.largest) - math.log2(magnitude) if known else math.nan,
    )


def _summary(members: Sequence[FormatLosses]) -> TensorPrecision:
    losing = [row for row in members if any(row.badness)]
    last = (row.headroom_bits for row in members if row.step == members[-1].step)
    return TensorPrecision(
        worst=max(members, key=lambda row: row.badness),
        first_step=min((row.step for row in losing), default=None),
        ranks=tuple(sorted({row.rank for row in losing})),
        headroom_bits=min(itertools.filterfalse(math.isnan, last), default=math.nan),
    )


QUESTION = Question(
    precision,
    (
        "precision run.zarr --role gradient --format e5m2",
        "precision run.zarr '*Adam*' --format e4m3 --scaling delayed --powers-of-two",
    ),
    noun="tensor",
)
