"""Who agrees with whom on each tensor, in each step: what divergence is judged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.questions.divergence.expectations import TensorHistory
from ingest.questions.divergence.patterns import ABSENT, Patterns, StepPatterns, patterns_of
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from ingest.reader.step_statistics import StepStatistics
from workers.store.consolidated.blocks import Block, TensorAxis, TensorKey


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """Who agrees with whom, by step and tensor."""

    keys: list[TensorKey]
    kinds: npt.NDArray[np.int8]
    """(tensor,): a `SlotKind`."""
    content: npt.NDArray[np.int32]
    """(step, tensor): the number of a pattern."""
    statistics: npt.NDArray[np.int32]
    """(step, tensor): the number of a pattern, or -1."""
    tells: npt.NDArray[np.bool_]
    """(step, tensor): whether agreeing means anything."""
    patterns: Patterns

    def history(self, tensor: int) -> TensorHistory:
        """Return the observations of one tensor."""
        numbers = self.content[:, tensor].tolist()
        has = np.zeros(self.patterns.ranks, bool)
        for number in set(numbers):
            has |= self.patterns[number] != ABSENT
        return TensorHistory(
            SlotKind(int(self.kinds[tensor])),
            tuple(numbers),
            tuple(self.tells[:, tensor].tolist()),
            tuple(np.flatnonzero(has).tolist()),
        )

    def alike(self) -> list[list[int]]:
        """Return sets of tensors that have one kind, and the same pattern in each step."""
        if not self.keys:
            return []
        columns = np.concatenate([self.content * 2 + self.tells, self.kinds[None].astype(np.int32)])
        random = np.random.default_rng(5)
        factors = random.integers(1, 2**63, len(columns), np.uint64) * np.uint64(2) + np.uint64(1)
        codes = np.zeros(len(self.keys), np.uint64)
        for column, factor in zip(columns, factors, strict=True):
            mixed = (column.astype(np.uint64) + np.uint64(1)) * factor
            codes += mixed ^ (mixed >> np.uint64(31))
        order = np.argsort(codes, kind="stable")
        ends = np.flatnonzero(np.diff(codes[order])) + 1
        return [part.tolist() for part in np.split(order, ends)]


def observe(
    statistics: StepStatistics,
    ranks: tuple[int, ...],
    patterns: Patterns,
    visit: Callable[[Block], None] = lambda _: None,
) -> Observation:
    """Compare the ranks step by step.

    Args:
        statistics: reads the steps.
        ranks: all ranks, in order.
        patterns: takes the patterns that are new.
        visit: is called with each step as well, so that it is read once.

    Raises:
        DamagedStore: the index of a step is missing or damaged.
    """
    steps: list[StepPatterns] = []
    kinds = np.zeros(0, np.int8)
    parameters: dict[int, npt.NDArray[np.uint64]] = {}
    for block in statistics.blocks():
        # The axis may be ahead of the block: the next step is read meanwhile.
        new = [slot_kind_of(statistics.axis[place]) for place in range(len(kinds), block.row.shape[1])]
        kinds = np.concatenate([kinds, np.array(new, np.int8)])
        visit(block)
        step = patterns_of(block, ranks, patterns)
        steps.append(step)
        parameters = _mark_aliases(block, statistics.axis, kinds, step.tells, parameters)
    absent = int(patterns.numbers(np.full((len(ranks), 1), ABSENT, np.int32))[0])
    steps = [step.widened(len(kinds), absent) for step in steps]
    return Observation(
        # Behind them may be tensors of other steps.
        statistics.axis.keys[: len(kinds)],
        kinds,
        np.stack([step.by_content for step in steps]),
        np.stack([step.by_statistics for step in steps]),
        np.stack([step.tells for step in steps]),
        patterns,
    )


def _mark_aliases(
    block: Block,
    axis: TensorAxis,
    kinds: npt.NDArray[np.int8],
    tells: npt.NDArray[np.bool_],
    before: Mapping[int, npt.NDArray[np.uint64]],
) -> dict[int, npt.NDArray[np.uint64]]:
    """Count inputs that hold the bytes of a parameter among the parameters.

    Some dumps hold a parameter as it was before its update, some as it was after it, so the parameters of the
    previous step count, too. Two ranks are looked at, because one may be off.

    Args:
        block: the step.
        axis: all tensors.
        kinds: (tensor,): a `SlotKind`; changed in place.
        tells: (tensor,): whether agreeing means anything.
        before: what this function returned for the previous step.

    Returns:
        By rank: the first 8 bytes of the digest of each parameter of this step.
    """
    is_parameter = ((kinds == SlotKind.PARAMETER) | (kinds == SlotKind.OPTIMIZER)) & tells
    parameters: dict[int, npt.NDArray[np.uint64]] = {}
    aliases: list[int] = []
    for place in {0, len(block.ranks) - 1}:
        rank = block.ranks[place]
        codes = np.ascontiguousarray(block.digest[place]).view("<u8")[:, 0]
        has_digest = (block.row[place] >= 0) & block.digest[place].any(axis=1)
        own = parameters[rank] = codes[has_digest & is_parameter]
        known = np.concatenate([own, before.get(rank, own[:0])])
        others = np.flatnonzero(has_digest & (kinds == SlotKind.OTHER) & tells)
        aliases += others[np.isin(codes[others], known)].tolist()
    kinds[[tensor for tensor in aliases if axis[tensor].io == "input"]] = SlotKind.PARAMETER
    return parameters
