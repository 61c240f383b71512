"""What questions have in common: names of statistics, the tensors that match, and why there may be none."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import BlockFilter, FilterFields, TensorFilter
from workers.arrays.statistics import ABOUT_NON_FINITE, FIELDS, STATISTICS, SUMS, parts_of
from workers.errors import UsageError
from workers.rules.names import matching, near
from workers.store.consolidated.blocks import BLOCK_COLUMNS, Block, TensorKey, tensors_of

#: What a question is about without any condition.
ALL_TENSORS = "all tensors"
#: Other names that people use, in lower case and without `_` and `-`.
_ALIASES = {
    "norm": "l2_norm",
    "l2": "l2_norm",
    "nan": "nan_count",
    "nans": "nan_count",
    "inf": "inf_count",
    "infs": "inf_count",
    "posinf": "pos_inf_count",
    "neginf": "neg_inf_count",
    "+inf": "pos_inf_count",
    "inf+": "pos_inf_count",
    "nonfinite": "non_finite_count",
    "naninf": "non_finite_count",
    "zero": "zero_count",
    "zeros": "zero_count",
    "negative": "negative_count",
    "positive": "positive_count",
    "size": "count",
    "numel": "count",
    "minimum": "min",
    "maximum": "max",
    "average": "mean",
    "avg": "mean",
    "stddev": "std",
    "standarddeviation": "std",
    "sigma": "std",
}


def statistic_named(name: str) -> str:
    """Return the statistic that a name stands for: `l2norm` and `norm` are `l2_norm`, `nan` is `nan_count`.

    Raises:
        UsageError: the name does not stand for a statistic.
    """
    plain = re.sub(r"[\s_-]+", "", name.lower())
    by_plain = {statistic.replace("_", ""): statistic for statistic in STATISTICS}
    statistic = by_plain.get(plain) or _ALIASES.get(plain)
    if statistic is None:
        raise UsageError(f"{name!r} is not a statistic", hint=f"Statistics: {', '.join(STATISTICS)}.")
    return statistic


def statistic_for(name: str | None, chosen: Mapping[str, Any]) -> str:
    """Return the statistic that a name stands for; without one `mean` for a loss, which may be negative.

    A loss is a single number, and its mean is that number. Of all others it is `l2_norm`.

    Raises:
        UsageError: the name does not stand for a statistic.
    """
    if name is None:
        return "mean" if chosen.get("role") == "loss" else "l2_norm"
    return statistic_named(name)


def empty_choice_error(choice: TensorFilter, keys: Sequence[TensorKey]) -> UsageError:
    """Return the error for a choice that no tensor fulfils; its hint is about the condition that none does.

    Args:
        choice: the conditions.
        keys: all tensors that there are.
    """
    if not keys:
        return UsageError(
            "no tensors in these steps",
            hint="`dump-ingest ls STORE --problems` lists files that could not be read as tensors.",
        )
    fields = choice.fields
    if isinstance(name := fields.get("name"), str):
        try:
            matching(name, [key.name for key in keys])
        except UsageError as exc:
            return exc
    for label in ("op_type", "io", "graph"):
        value = fields.get(label)
        known: list[str] = list(dict.fromkeys(getattr(key, label) for key in keys))
        if isinstance(value, str) and value not in known:
            return UsageError(f"no tensor has the {label} {value!r}", hint=_label_hint(value, known))
    return UsageError(
        f"no tensor fulfils {choice}",
        hint="`dump-ingest find STORE` with fewer conditions lists what is there.",
    )


def _label_hint(value: str, known: Sequence[str]) -> str:
    if same := [text for text in known if text.lower() == value.lower()]:
        return f"Did you mean {' or '.join(same)}? Case matters."
    nearest = near(value, known)
    return f"Near: {', '.join(nearest)}" if nearest else f"There are: {', '.join(known[:10])}"


def keys_of(steps: Iterable[Step]) -> list[TensorKey]:
    """Return the keys of all tensors of some steps, each once."""
    keys: dict[TensorKey, None] = {}
    for step in steps:
        keys |= dict.fromkeys(tensors_of(step.tables)[1])
        step.forget_tables()
    return list(keys)


@dataclass(frozen=True, slots=True, eq=False)
class MatchingTensors:
    """The tensors of one step that match on any rank."""

    block: Block
    columns: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """Their places on the axis."""
    present: npt.NDArray[np.bool_]
    """(rank, place): whether the tensor matches on the rank."""

    def statistic(self, name: str) -> npt.NDArray[np.float64]:
        """Return a statistic, or a sum of several, (rank, place); NaN if it is absent or any part unknown."""
        parts = [_columns_of(self.block.statistic(part), self.columns) for part in parts_of(name)]
        total: npt.NDArray[np.float64] = sum(parts[1:], start=parts[0])
        return total if self.present.all() else np.where(self.present, total, np.nan)


def _columns_of(values: npt.NDArray[Any], columns: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return values if columns.size == values.shape[1] else values[:, columns]


def statistics_for(snapshot: Snapshot, chosen: FilterFields, wanted: Sequence[str]) -> StepStatistics:
    """Return the wanted statistics of a snapshot, and those that a choice or non-finite counts need."""
    named = {part for name in wanted for part in parts_of(name)} | set(SUMS["non_finite_count"])
    named |= TensorFilter(chosen, BLOCK_COLUMNS).names
    return StepStatistics(snapshot, tuple(name for name in FIELDS if name in named), digests=False)


def matching_tensors(
    statistics: StepStatistics, chosen: FilterFields, steps: Sequence[int] | None = None
) -> Iterator[MatchingTensors]:
    """Yield the tensors of each step that match; of all steps if None are named.

    Raises:
        UsageError: no tensor of any step matches; raised after the last step.
    """
    choice = BlockFilter(chosen, statistics.axis)
    if choice.filter.is_of_names:
        named = choice.of_names(len(statistics.axis))
        if not named.all():
            statistics.narrow_to(np.flatnonzero(named))
    is_present = np.zeros(0, bool)
    is_any = False
    for block in statistics.blocks(steps):
        tensors = np.arange(block.row.shape[1]) if block.tensors is None else block.tensors
        is_present = np.pad(is_present, (0, max(len(statistics.axis) - is_present.size, 0)))
        is_present[tensors] |= block.present.any(axis=0)
        mask = choice.mask(block)
        columns = np.flatnonzero(mask.any(axis=0))
        is_any |= bool(columns.size)
        yield MatchingTensors(block, columns, tensors[columns], _columns_of(mask, columns))
    if not is_any:
        keys = [statistics.axis[place] for place in np.flatnonzero(is_present).tolist()]
        raise empty_choice_error(choice.filter, keys)


def unused_steps(snapshot: Snapshot) -> dict[Hashable, list[str]]:
    """Return the attributes of an answer that name the steps that it is not about."""
    return {
        "left_out": [str(left) for left in snapshot.left_out],
        "damaged": [str(left) for left in snapshot.left_out if left.is_damaged],
    }


def choice_text(chosen: Mapping[str, Any]) -> str:
    """Return what chooses tensors for a title: the pattern of their names first, then other conditions."""
    name = chosen.get("name")
    others = [f"{label} {value}" for label, value in chosen.items() if label != "name" and value is not None]
    return ", ".join([*([] if name is None else [getattr(name, "pattern", name)]), *others]) or ALL_TENSORS


def marked(statistic: str, non_finite: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return where to mark NaN and Inf: nowhere if the statistic counts them itself.

    Args:
        statistic: the name of the statistic.
        non_finite: how many elements are NaN or infinite, of any shape; NaN if unknown.
    """
    return (non_finite > 0) & (statistic not in ABOUT_NON_FINITE)


def whole_count(value: float) -> int | None:
    """Return a count as an integer; None if it is NaN, which means unknown."""
    return None if math.isnan(value) else int(value)
