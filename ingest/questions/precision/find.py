"""`precision`: which tensors would overflow or underflow in other formats, over steps and ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias, Unpack

from ingest.questions.precision.answer import FormatLosses, PrecisionAnswer, TensorPrecision, trend_of
from ingest.questions.precision.scaling import CURRENT, NONE, Scaling, checked_scaling
from ingest.questions.sketched_tensors import SketchedTensor, SketchedTensors, ask_of_sketches
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice, as_names
from ingest.reader.tensor_filter import FilterFields, with_pattern
from workers.arrays.number_formats import NumberFormat, format_named
from workers.arrays.sketches.rounding import losses
from workers.errors import UsageError
from workers.store.consolidated.blocks import TensorKey

DEFAULT_FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "mxfp8_e4m3", "nvfp4")
#: The limit of rows in one answer; a million take about 400 MB.
MAX_ROWS = 1_000_000
#: A tensor of the axis of tensors, and a format.
_Series: TypeAlias = tuple[TensorKey, str]


def precision(
    store: Catalog,
    pattern: str | None = None,
    formats: str | Sequence[str] | None = None,
    *,
    scaling: str = NONE,
    powers_of_two: bool = False,
    rank: Choice = None,
    step: Choice = None,
    include_partial: bool = False,
    **conditions: Unpack[FilterFields],
) -> PrecisionAnswer:
    """Estimate the losses of tensors if they were cast to other formats; the worst first.

    Uses histograms and statistics alone, so the answer is the same after `gc` has removed the tensors. Counts
    are exact, or lie between two bounds; see `workers.arrays.sketches.rounding`. Underflow is exact if scales
    are powers of two; overflow is exact if there is none. Of formats with blocks, underflow is bounded.

    Memory: 400 bytes for each tensor, rank, step and format, of which there are at most a million.

    Args:
        store: the store.
        pattern: a glob for the names of tensors; all if None.
        formats: names such as `float16`, `e4m3`, `nvfp4`, or bits and bias, `e5m7`, `e4m3b11`; see
            `workers.arrays.number_formats.format_named`. `DEFAULT_FORMATS` if None.
        scaling: `none`, `current` or `delayed`; see `ingest.questions.precision.scaling`. Formats with blocks
            have scales of their own.
        powers_of_two: whether scales are rounded down to powers of two.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        include_partial: also use steps with quarantined or missing files.
        conditions: what else a tensor must fulfil in a step: `role="gradient"`, ...; see `FilterFields`.

    Raises:
        UsageError: a format or the scaling is unknown, no tensor matches, none has a histogram, or too many
            do.
        DamagedStore: no step can be read.
    """
    named = map(format_named, as_names(formats or DEFAULT_FORMATS))
    targets = list({target.name: target for target in named}.values())
    how = checked_scaling(scaling)
    chosen = with_pattern(pattern, conditions)

    def ask(tensors: SketchedTensors) -> PrecisionAnswer:
        rows, keys = _rows(tensors, targets, how, powers_of_two=powers_of_two)
        return PrecisionAnswer(
            store=store.url,
            scaling=how,
            powers_of_two=powers_of_two,
            formats=tuple(target.name for target in targets),
            tensors=_by_tensor(rows, keys, {target.name: target for target in targets}, how),
            rows=tuple(rows),
            without=tensors.without,
            left_out=tensors.snapshot.left_out,
        )

    return ask_of_sketches(store, chosen, ask, rank=rank, step=step, include_partial=include_partial)


def _rows(
    tensors: Iterable[SketchedTensor], targets: Sequence[NumberFormat], how: str, *, powers_of_two: bool
) -> tuple[list[FormatLosses], list[TensorKey]]:
    """Return a row for each tensor, rank, step and format, and the key of the tensor of each."""
    rows: list[FormatLosses] = []
    keys: list[TensorKey] = []
    scalings: dict[tuple[int, TensorKey], Scaling] = {}
    for tensor in tensors:
        scaling = scalings.setdefault((tensor.rank, tensor.key), Scaling(how, powers_of_two))
        reference = scaling.advance(tensor.histogram.largest)
        rows += [
            _losses(tensor, target, math.nan if target.block else scaling.scale(reference, target))
            for target in targets
        ]
        keys += [tensor.key] * len(targets)
        if len(rows) > MAX_ROWS:
            raise UsageError(
                f"more than {MAX_ROWS} answers",
                hint="Narrow the pattern, or choose formats, ranks and steps.",
            )
    return rows, keys


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


def _by_tensor(
    rows: Sequence[FormatLosses], keys: Sequence[TensorKey], targets: dict[str, NumberFormat], how: str
) -> tuple[TensorPrecision, ...]:
    """Return one value for each tensor and format, the worst first, then in order of execution."""
    series: dict[_Series, list[FormatLosses]] = {}
    for row, key in zip(rows, keys, strict=True):
        series.setdefault((key, row.format), []).append(row)
    made = [_summary(members, targets[name], how) for (_, name), members in series.items()]
    return tuple(sorted(made, key=lambda tensor: tensor.worst.badness, reverse=True))


def _summary(members: Sequence[FormatLosses], target: NumberFormat, how: str) -> TensorPrecision:
    losing = [row for row in members if any(row.badness)]
    last = [row.headroom_bits for row in members if row.step == members[-1].step]
    known = _magnitudes(members)
    follows_tensor = how == CURRENT or target.block > 0  # then it never overflows
    bits_per_step, overflows_at = trend_of(list(known), list(known.values()), math.log2(target.largest))
    return TensorPrecision(
        worst=max(members, key=lambda row: row.badness),
        first_step=min((row.step for row in losing), default=None),
        ranks=tuple(sorted({row.rank for row in losing})),
        headroom_bits=min((bits for bits in last if not math.isnan(bits)), default=math.nan),
        bits_per_step=bits_per_step,
        overflows_at=None if follows_tensor or how != NONE else overflows_at,
    )


def _magnitudes(members: Iterable[FormatLosses]) -> dict[int, float]:
    """Return by step the base-2 logarithm of the largest magnitude on any rank; none if all are zero."""
    largest: dict[int, float] = {}
    for row in members:
        largest[row.step] = max(largest.get(row.step, 0.0), row.largest)
    return {step: math.log2(value) for step, value in largest.items() if value}
