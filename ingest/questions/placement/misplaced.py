"""What looks like a mistake in how the ranks of one run hold its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.placement.agree import PARAMETER, Kind, is_parameter_gradient, kind_of
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.questions.placement.slot_kinds import SlotKind
from ingest.questions.placement.slot_kinds import kind_of as slot_kind_of
from ingest.reader.ranges import format_ranges, named_ranges
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import TensorKey

#: So many tensors of a kind must be held alike for another one to be odd.
MANY = 2
_WHY = ": a reduction is missing, or was not finished when it was dumped"


@dataclass(frozen=True, slots=True)
class EqualHolders:
    """Which ranks hold the same bytes of a tensor."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks with equal bytes, in order."""

    @classmethod
    def of(cls, held: HeldTensors, number: int) -> Self:
        """Return the holders of a tensor. If its bytes are unknown, no two ranks hold the same."""
        groups: dict[object, list[int]] = {}
        for holder, digest in zip(held.holders[number], held.digests(number), strict=True):
            groups.setdefault(digest if any(digest[0]) else holder, []).append(holder.rank)
        return cls(tuple(tuple(group) for group in groups.values()))

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks that have it, and there are several, hold the same bytes."""
        return len(self.groups) == 1 and len(self.groups[0]) > 1

    @property
    def is_distinct(self) -> bool:
        """Whether no two ranks hold the same bytes, and there are several."""
        return len(self.groups) > 1 and all(len(group) == 1 for group in self.groups)

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that do not hold the bytes of more than half of all ranks; all ranks if no bytes are."""
        ranks = sorted(rank for group in self.groups for rank in group)
        most = max(self.groups, key=len)
        return tuple(rank for rank in ranks if rank not in most or 2 * len(most) <= len(ranks))

    @property
    def pattern(self) -> tuple[int, ...]:
        """By rank the number of its group: equal for tensors whose replicas are on the same ranks."""
        numbers = {rank: number for number, group in enumerate(self.groups) for rank in group}
        return tuple(numbers[rank] for rank in sorted(numbers))


def find_misplaced(
    held: HeldTensors, rows: Mapping[int, EqualHolders], whole: Mapping[int, tuple[int, str]]
) -> list[LayoutFinding]:
    """Find probable mistakes in one step, in order of execution.

    Args:
        held: the tensors of the step.
        rows: by tensor, which ranks hold the same bytes.
        whole: by tensor, which tensor of all ranks its pieces make up, and how.
    """
    usual = _usual(held, rows)
    findings: list[LayoutFinding] = []
    for number, row in rows.items():
        if len(held.holders[number]) > 1 and not is_constant(held, number):
            findings += _told_otherwise(held, number, row) or _unlike_its_kind(held, number, row, usual)
    named = {finding.name for finding in findings}
    return [*findings, *(finding for finding in _unreduced(held, rows, whole) if finding.name not in named)]


def _told_otherwise(held: HeldTensors, number: int, row: EqualHolders) -> list[LayoutFinding]:
    """Return that a tensor is not held as the dump tells."""
    told = set(held.told(number).values())
    if not told or not held.is_told_whole(number):
        return []
    if told == {"replicated"} and not row.is_replicated:
        text = "the dump tells that all ranks have the same, and bytes differ"
        return [_finding(held, number, row, "missing reduction", f"{text}{_WHY}")]
    if len(told) == 1 and next(iter(told)).startswith("shard") and not row.is_distinct:
        return [_finding(held, number, row, "wrong shard", _same_shard(row))]
    return []


def _unlike_its_kind(
    held: HeldTensors, number: int, row: EqualHolders, usual: Mapping[Kind, Counter[tuple[int, ...]]]
) -> Iterator[LayoutFinding]:
    """Yield that a tensor is held in another way than the same one of most other layers.

    Outputs of optimizers may be whatever was in their buffers.
    """
    if slot_kind_of(held.keys[number]) is SlotKind.OPTIMIZER_OUTPUT:
        return
    counts = usual[kind_of(held.keys[number], len(held.shapes(number)[0]))]
    if not counts:
        return
    (pattern, most), *others = counts.most_common(2)
    if pattern == row.pattern or most < MANY or most < 2 * sum(count for _, count in others):
        return
    if len(set(pattern)) == 1 and not row.is_replicated:
        text = f"{_differing(row)}, and all hold the same ones in other layers"
        yield _finding(held, number, row, "missing reduction", f"{text}{_WHY}")
    elif _has_more_shards(pattern, row):
        yield _finding(held, number, row, "wrong shard", _same_shard(row))


def _has_more_shards(pattern: tuple[int, ...], row: EqualHolders) -> bool:
    """Return whether a pattern is one of shards, each on as many ranks, and a tensor has fewer of them."""
    sizes = Counter(pattern)
    return len(pattern) == len(row.pattern) and len(sizes) > len(row.groups) and len({*sizes.values()}) == 1


class Gradients(NamedTuple):
    """Gradients of parameters that all ranks hold alike, by their numbers."""

    replicated: list[int]
    """Those that all ranks hold alike, too."""
    differing: list[int]

    @property
    def are_suspect(self) -> bool:
        """Whether some differ, and most do not."""
        return bool(self.differing) and len(self.replicated) >= MANY * len(self.differing)


def gradients_of(held: HeldTensors, rows: Mapping[int, EqualHolders]) -> Gradients:
    """Return the gradients of the parameters that all ranks hold alike."""
    gradients = Gradients([], [])
    numbers = {key: number for number, key in enumerate(held.keys)}
    for number, row in rows.items():
        key = held.keys[number]
        if not is_parameter_gradient(key) or len(_ranks(held, number)) < 2:
            continue
        parameter = next((numbers[other] for other in parameters_of(key) if other in numbers), None)
        if parameter is None or not rows[parameter].is_replicated or is_constant(held, number):
            continue
        (gradients.replicated if row.is_replicated else gradients.differing).append(number)
    return gradients


def parameters_of(gradient: TensorKey) -> list[TensorKey]:
    """Return the possible names of the parameter of a gradient."""
    names = (gradient.op_name.replace(mark, "", 1) for mark in ("grad.", "grad__"))
    candidates = [gradient._replace(op_type=PARAMETER), *(gradient._replace(op_name=name) for name in names)]
    return [key for key in candidates if key != gradient]


def _unreduced(
    held: HeldTensors, rows: Mapping[int, EqualHolders], whole: Mapping[int, tuple[int, str]]
) -> Iterator[LayoutFinding]:
    """Yield gradients that differ between ranks which hold the same parameter, if most others do not."""
    gradients = gradients_of(held, rows)
    differing = [number for number in gradients.differing if number not in whole]
    if not Gradients(gradients.replicated, differing).are_suspect:
        return
    for number in differing:
        text = "all ranks hold the same parameter, and different gradients of it: they were not averaged"
        yield _finding(held, number, rows[number], "missing reduction", text)


def _usual(held: HeldTensors, rows: Mapping[int, EqualHolders]) -> dict[Kind, Counter[tuple[int, ...]]]:
    """Return by kind how often its tensors of several ranks are replicated on which of them."""
    usual: dict[Kind, Counter[tuple[int, ...]]] = {}
    for number, row in rows.items():
        kind = kind_of(held.keys[number], len(held.shapes(number)[0]))
        counts = usual.setdefault(kind, Counter())
        if len(row.pattern) > 1 and not is_constant(held, number):
            counts[row.pattern] += 1
    return usual


def is_constant(held: HeldTensors, number: int) -> bool:
    """Return whether all elements are the same, or none is finite: such tensors are equal by chance."""
    return all(tells_nothing(held.ranks[rank].statistics[own]).all() for rank, own in held.holders[number])


def tells_nothing(statistics: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return for statistics, (..., len(FIELDS)), whether all elements are the same, or none is finite."""
    by_name = dict(zip(FIELDS, np.moveaxis(statistics, -1, 0), strict=True))
    is_one = np.isfinite(by_name["min"]) & (by_name["min"] == by_name["max"])
    not_finite = by_name["nan_count"] + by_name["pos_inf_count"] + by_name["neg_inf_count"]
    return np.asarray(is_one | ((by_name["count"] > 0) & (not_finite == by_name["count"])))


def _ranks(held: HeldTensors, number: int) -> tuple[int, ...]:
    return tuple(holder.rank for holder in held.holders[number])


def _differing(row: EqualHolders) -> str:
    most = [rank for group in row.groups for rank in group if rank not in row.odd]
    if not most:
        return f"{named_ranges('rank', row.odd)} hold different bytes"
    return f"bytes of {named_ranges('rank', row.odd)} differ from those of {named_ranges('rank', most)}"


def _same_shard(row: EqualHolders) -> str:
    twins = [format_ranges(group) for group in row.groups if len(group) > 1]
    return f"ranks {'; '.join(twins)} hold the same bytes, and each should have a shard of its own"


def _finding(held: HeldTensors, number: int, row: EqualHolders, kind: str, text: str) -> LayoutFinding:
    twins = tuple(rank for group in row.groups if len(group) > 1 for rank in group)
    ranks = twins if kind == "wrong shard" else row.odd
    return LayoutFinding(held.step, ranks, held.keys[number].name, kind, text)
