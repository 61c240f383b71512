"""Which ranks hold the same bytes of each tensor, and of which tensors equal bytes tell nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.held_tensors import HeldTensors
from workers.arrays.statistics import FIELDS


@dataclass(frozen=True, slots=True)
class EqualHolders:
    """Which ranks hold the same bytes of a tensor."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks with equal bytes, in order."""
    is_known: bool = True
    """Whether the bytes of all ranks are known; those of a tensor with statistics alone are not."""

    @classmethod
    def of(cls, held: HeldTensors, number: int) -> Self:
        """Return the holders of a tensor. If its bytes are unknown, no two ranks hold the same."""
        groups: dict[object, list[int]] = {}
        digests = held.digests(number)
        for holder, digest in zip(held.holders[number], digests, strict=True):
            groups.setdefault(digest if any(digest[0]) else holder, []).append(holder.rank)
        is_known = all(any(digest) for digest, _ in digests)
        return cls(tuple(tuple(group) for group in groups.values()), is_known)

    @property
    def can_be_compared(self) -> bool:
        """Whether several ranks have it, and the bytes of all of them are known."""
        return self.is_known and len(self.pattern) > 1

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks that have it, and there are several, hold the same bytes."""
        return len(self.groups) == 1 and len(self.groups[0]) > 1

    @property
    def is_distinct(self) -> bool:
        """Whether no two ranks hold the same bytes, and there are several."""
        return self.is_known and len(self.groups) > 1 and all(len(group) == 1 for group in self.groups)

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


def equal_holders(held: HeldTensors) -> dict[int, EqualHolders]:
    """Return by tensor which ranks hold the same bytes."""
    return {number: EqualHolders.of(held, number) for number in range(len(held.keys))}


def is_constant(held: HeldTensors, number: int) -> bool:
    """Return whether all elements are the same, or none is finite: such tensors are equal by chance."""
    return all(tells_nothing(held.ranks[rank].statistics[own]).all() for rank, own in held.holders[number])


def tells_nothing(statistics: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return for statistics, (..., len(FIELDS)), whether all elements are the same, or none is finite."""
    by_name = dict(zip(FIELDS, np.moveaxis(statistics, -1, 0), strict=True))
    is_one = np.isfinite(by_name["min"]) & (by_name["min"] == by_name["max"])
    not_finite = by_name["nan_count"] + by_name["pos_inf_count"] + by_name["neg_inf_count"]
    return np.asarray(is_one | ((by_name["count"] > 0) & (not_finite == by_name["count"])))
