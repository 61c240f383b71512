"""What looks like a mistake in how the ranks of one run hold its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.placement.agree import MANY, PARAMETER, Kind, is_parameter_gradient, kind_of
from ingest.questions.placement.equal_holders import EqualHolders, is_constant
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from ingest.reader.ranges import format_ranges, named_ranges
from workers.store.consolidated.blocks import TensorKey

_WHY = ": a reduction is missing, or was not finished when it was dumped"


def find_misplaced(
    held: HeldTensors, holders_of: Mapping[int, EqualHolders], whole: Mapping[int, tuple[int, str]]
) -> list[LayoutFinding]:
    """Find probable mistakes in one step, in order of execution.

    Args:
        held: the tensors of the step.
        holders_of: by tensor, which ranks hold the same bytes.
        whole: by tensor, which tensor of all ranks its pieces make up, and how.
    """
    usual = _usual(held, holders_of)
    findings: list[LayoutFinding] = []
    for number, holders in holders_of.items():
        if holders.can_be_compared and not is_constant(held, number):
            findings += _told_otherwise(held, number, holders) or _unlike_its_kind(
                held, number, holders, usual
            )
    named = {finding.name for finding in findings}
    return [
        *findings,
        *(finding for finding in _unreduced(held, holders_of, whole) if finding.name not in named),
    ]


def _told_otherwise(held: HeldTensors, number: int, holders: EqualHolders) -> list[LayoutFinding]:
    """Return that a tensor is not held as the dump tells."""
    told = set(held.told(number).values())
    if not told or not held.is_told_whole(number):
        return []
    if told == {"replicated"} and not holders.is_replicated:
        text = "the dump tells that all ranks have the same, and bytes differ"
        return [_missing_reduction(held, number, holders, f"{text}{_WHY}")]
    if len(told) == 1 and next(iter(told)).startswith("shard") and not holders.is_distinct:
        return [_wrong_shard(held, number, holders)]
    return []


def _unlike_its_kind(
    held: HeldTensors, number: int, holders: EqualHolders, usual: Mapping[Kind, Counter[tuple[int, ...]]]
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
    if pattern == holders.pattern or most < MANY or most < 2 * sum(count for _, count in others):
        return
    if len(set(pattern)) == 1 and not holders.is_replicated:
        text = f"{_differing(holders)}, and all hold the same ones in other layers"
        yield _missing_reduction(held, number, holders, f"{text}{_WHY}")
    elif _has_more_shards(pattern, holders):
        yield _wrong_shard(held, number, holders)


def _has_more_shards(pattern: tuple[int, ...], holders: EqualHolders) -> bool:
    """Return whether a pattern is one of shards, each on as many ranks, and a tensor has fewer of them."""
    sizes = Counter(pattern)
    return (
        len(pattern) == len(holders.pattern)
        and len(sizes) > len(holders.groups)
        and len({*sizes.values()}) == 1
    )


class Gradients(NamedTuple):
    """Gradients of parameters that all ranks hold alike, by their numbers."""

    replicated: list[int]
    """Those that all ranks hold alike, too."""
    differing: list[int]

    @property
    def are_suspect(self) -> bool:
        """Whether some differ, and most do not."""
        return bool(self.differing) and len(self.replicated) >= MANY * len(self.differing)


def gradients_of(held: HeldTensors, holders_of: Mapping[int, EqualHolders]) -> Gradients:
    """Return the gradients of the parameters that all ranks hold alike."""
    gradients = Gradients([], [])
    numbers = {key: number for number, key in enumerate(held.keys)}
    for number, holders in holders_of.items():
        key = held.keys[number]
        if not is_parameter_gradient(key) or not holders.can_be_compared:
            continue
        parameter = next((numbers[other] for other in parameters_of(key) if other in numbers), None)
        if parameter is None or not holders_of[parameter].is_replicated or is_constant(held, number):
            continue
        (gradients.replicated if holders.is_replicated else gradients.differing).append(number)
    return gradients


def parameters_of(gradient: TensorKey) -> list[TensorKey]:
    """Return the possible names of the parameter of a gradient."""
    names = (gradient.op_name.replace(mark, "", 1) for mark in ("grad.", "grad__"))
    candidates = [gradient._replace(op_type=PARAMETER), *(gradient._replace(op_name=name) for name in names)]
    return [key for key in candidates if key != gradient]


def _unreduced(
    held: HeldTensors, holders_of: Mapping[int, EqualHolders], whole: Mapping[int, tuple[int, str]]
) -> Iterator[LayoutFinding]:
    """Yield gradients that differ between ranks which hold the same parameter, if most others do not."""
    gradients = gradients_of(held, holders_of)
    differing = [number for number in gradients.differing if number not in whole]
    if not Gradients(gradients.replicated, differing).are_suspect:
        return
    for number in differing:
        text = "all ranks hold the same parameter, and different gradients of it: they were not averaged"
        yield _missing_reduction(held, number, holders_of[number], text)


def _usual(held: HeldTensors, holders_of: Mapping[int, EqualHolders]) -> dict[Kind, Counter[tuple[int, ...]]]:
    """Return by kind how often its tensors of several ranks are replicated on which of them."""
    usual: dict[Kind, Counter[tuple[int, ...]]] = {}
    for number, holders in holders_of.items():
        kind = kind_of(held.keys[number], len(held.shapes(number)[0]))
        counts = usual.setdefault(kind, Counter())
        if holders.can_be_compared and not is_constant(held, number):
            counts[holders.pattern] += 1
    return usual


def _differing(holders: EqualHolders) -> str:
    most = [rank for group in holders.groups for rank in group if rank not in holders.odd]
    if not most:
        return f"{named_ranges('rank', holders.odd)} hold different bytes"
    return f"bytes of {named_ranges('rank', holders.odd)} differ from those of {named_ranges('rank', most)}"


def _missing_reduction(held: HeldTensors, number: int, holders: EqualHolders, text: str) -> LayoutFinding:
    return LayoutFinding(held.step, holders.odd, held.keys[number].name, "missing reduction", text)


def _wrong_shard(held: HeldTensors, number: int, holders: EqualHolders) -> LayoutFinding:
    """Return that ranks hold the same bytes where each should have a shard of its own."""
    groups = [group for group in holders.groups if len(group) > 1]
    which = "; ".join(map(format_ranges, groups))
    text = f"ranks {which} hold the same bytes, and each should have a shard of its own"
    ranks = tuple(rank for group in groups for rank in group)
    return LayoutFinding(held.step, ranks, held.keys[number].name, "wrong shard", text)
