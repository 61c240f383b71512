"""Who agrees with whom on each tensor of a step.

A *pattern* has one number per rank: the place of the first rank that holds the same content. Tensors that
replicas share agree in the same way again and again, so there are few distinct patterns, and a step is stored
as one small number per tensor: the number of its pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import Block

ABSENT = -1
"""In a pattern: the rank does not have the tensor."""
UNKNOWN = -2
"""In a pattern: the rank has the tensor, and neither a digest nor a statistic of it."""

#: Tensors whose ranks are sorted at once: bounds memory to a few tens of MiB at 1000 ranks.
_AT_ONCE = 4096
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FIELD_FACTORS = np.random.default_rng(7).integers(1, 2**63, len(FIELDS), np.uint64) * np.uint64(
    2
) + np.uint64(1)

Labels = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]


class Patterns:
    """The distinct patterns, each with a number. It only ever grows."""

    def __init__(self, ranks: int) -> None:
        """Begin without patterns, for this many ranks."""
        self.ranks = ranks
        factors = np.random.default_rng(11).integers(1, 2**63, ranks, np.uint64)
        self._factors: U64 = factors * np.uint64(2) + np.uint64(1)
        self._numbers: dict[int, int] = {}
        self._patterns: list[Labels] = []

    def __len__(self) -> int:
        return len(self._patterns)

    def __getitem__(self, number: int) -> Labels:
        return self._patterns[number]

    @property
    def all(self) -> Sequence[Labels]:
        """All patterns, in order of their numbers."""
        return self._patterns

    def numbers(self, labels: Labels) -> npt.NDArray[np.int32]:
        """Return the number of the pattern in each column of `labels`, (rank, tensor); add new patterns."""
        codes = _mixed((labels + 3).astype(np.uint64) * self._factors[:, None]).sum(axis=0, dtype=np.uint64)
        distinct, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        known = np.empty(len(distinct), np.int32)
        for place, (code, column) in enumerate(zip(distinct.tolist(), first.tolist(), strict=True)):
            if code not in self._numbers:
                self._numbers[code] = len(self._patterns)
                self._patterns.append(labels[:, column].copy())
            known[place] = self._numbers[code]
        return known[inverse]


@dataclass(frozen=True, slots=True, eq=False)
class StepPatterns:
    """One step: for each tensor, who agrees with whom."""

    step: int
    by_content: npt.NDArray[np.int32]
    """(tensor,): the pattern of the digests, or of the statistics if only these were dumped."""
    by_statistics: npt.NDArray[np.int32]
    """(tensor,): the pattern of the statistics; -1 if all ranks agree, or none does."""
    tells: npt.NDArray[np.bool_]
    """(tensor,): whether agreeing on it means anything: it holds more than two different values."""

    def widened(self, width: int, absent: int) -> StepPatterns:
        """Return the step with `width` tensors; those that are new have the pattern `absent`."""
        more = width - len(self.by_content)
        if more <= 0:
            return self
        return StepPatterns(
            self.step,
            np.pad(self.by_content, (0, more), constant_values=absent),
            np.pad(self.by_statistics, (0, more), constant_values=-1),
            np.pad(self.tells, (0, more)),
        )


def patterns_of(block: Block, ranks: tuple[int, ...], patterns: Patterns) -> StepPatterns:
    """Compare all ranks of a step by 64 bits of each digest, or of the statistics.

    Two tensors that differ are taken for equal once in 2**64 times.

    Args:
        block: the step.
        ranks: the ranks that the patterns describe, in order.
        patterns: takes the patterns that are new.
    """
    places = np.searchsorted(ranks, block.ranks)
    present = block.present
    width = present.shape[1]
    words = np.ascontiguousarray(block.digest).view("<u8")
    has_digest = words.any(axis=2)
    codes: U64 = words[:, :, 0] ^ (words[:, :, 1] * _MIX)
    reported = present & ~has_digest
    by_statistics_alone = np.flatnonzero(reported.any(axis=0))
    if by_statistics_alone.size:
        codes[:, by_statistics_alone] = np.where(
            reported[:, by_statistics_alone],
            _statistic_codes(block.statistics[:, by_statistics_alone]),
            codes[:, by_statistics_alone],
        )
    labels = np.full((len(ranks), width), ABSENT, np.int32)
    labels[places] = _labels(codes, present, places)
    if by_statistics_alone.size:
        # Digests and statistics are never compared with each other.
        part = labels[np.ix_(places, by_statistics_alone)]
        part[reported[:, by_statistics_alone]] += len(ranks)
        nothing = np.isnan(block.statistics[:, by_statistics_alone]).all(axis=2)
        part[reported[:, by_statistics_alone] & nothing] = UNKNOWN
        labels[np.ix_(places, by_statistics_alone)] = part
    disputed = np.flatnonzero(_are_disputed(labels))
    statistics = np.full(width, -1, np.int32)
    if disputed.size:
        held = np.full((len(ranks), disputed.size), ABSENT, np.int32)
        held[places] = _labels(_statistic_codes(block.statistics[:, disputed]), present[:, disputed], places)
        statistics[disputed] = patterns.numbers(held)
    return StepPatterns(block.step, patterns.numbers(labels), statistics, _tell(block, present))


def _labels(codes: U64, present: npt.NDArray[np.bool_], places: npt.NDArray[Any]) -> Labels:
    """Return for each rank and tensor the place of the first rank with the same code; ABSENT without one."""
    labels = np.full(codes.shape, ABSENT, np.int32)
    if not codes.size:
        return labels
    first = np.argmax(present, axis=0)
    same = codes == np.take_along_axis(codes, first[None, :], axis=0)
    plain = (same | ~present).all(axis=0)
    labels[:, plain] = np.where(present[:, plain], places[first[plain]], ABSENT)
    rest = np.flatnonzero(~plain)
    for start in range(0, rest.size, _AT_ONCE):
        columns = rest[start : start + _AT_ONCE]
        labels[:, columns] = _sorted_labels(codes[:, columns], present[:, columns], places)
    return labels


def _sorted_labels(codes: U64, present: npt.NDArray[np.bool_], places: npt.NDArray[Any]) -> Labels:
    # Absent ranks are sorted last, so that none of them begins a run of equal codes.
    order = np.lexsort((codes, ~present), axis=0)
    ordered = np.take_along_axis(codes, order, axis=0)
    begins = np.ones(codes.shape, bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    run = np.maximum.accumulate(np.where(begins, np.arange(len(codes))[:, None], 0), axis=0)
    labels = np.empty(codes.shape, np.int32)
    # The sort is stable: the first of a run is the lowest rank.
    np.put_along_axis(labels, order, places[np.take_along_axis(order, run, axis=0)].astype(np.int32), axis=0)
    labels[~present] = ABSENT
    return labels


def _are_disputed(labels: Labels) -> npt.NDArray[np.bool_]:
    """Return whether some ranks agree and others do not, so that statistics can tell more, (tensor,)."""
    present = labels >= 0
    low = np.where(present, labels, np.iinfo(np.int32).max).min(axis=0)
    differs: npt.NDArray[np.bool_] = (present & (labels != low)).any(axis=0)
    if len(labels) == 2:
        return differs
    alone = (labels == np.arange(len(labels))[:, None]) | ~present
    return np.asarray(differs & ~alone.all(axis=0))


def _statistic_codes(statistics: npt.NDArray[np.float64]) -> U64:
    """Return 64 bits of the statistics, (rank, tensor). NaN equals NaN, and -0 equals 0."""
    bits = np.where(np.isnan(statistics), np.nan, statistics + 0.0).view(np.uint64)
    codes: U64 = _mixed(_mixed(bits) * _FIELD_FACTORS).sum(axis=2, dtype=np.uint64)
    return codes


def _mixed(bits: U64) -> U64:
    """Spread bits: small numbers as floats differ only in their upper bits."""
    mixed = bits ^ (bits >> np.uint64(32))
    mixed = mixed * _MIX
    return np.asarray(mixed ^ (mixed >> np.uint64(29)))


def _tell(block: Block, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return whether tensors hold more than two values, (tensor,).

    It is judged by the first and the last rank that have them. The variance of values between `min` and `max`
    is at most `(mean - min) * (max - mean)`, and equals that bound only if no other values occur than these
    two (Bhatia and Davis 2000, "A better bound on the variance"). Masks, constants, single numbers and zeros
    agree whatever the ranks do.
    """
    width = present.shape[1]
    tells = np.ones(width, bool)
    if not present.size:
        return tells
    last = len(present) - 1 - np.argmax(present[::-1], axis=0)
    for rank in (np.argmax(present, axis=0), last):
        low, high, mean, std, count = (
            block.statistic(name)[rank, np.arange(width)] for name in ("min", "max", "mean", "std", "count")
        )
        finite_count = count - sum(
            block.statistic(name)[rank, np.arange(width)]
            for name in ("nan_count", "pos_inf_count", "neg_inf_count")
        )
        with np.errstate(all="ignore"):
            bound = (mean - low) * (high - mean)
            two = ~(std * std < bound * (1 - 1e-6))
            of_few = (count <= 2) | (finite_count == 0)
        known = ~np.isnan(low) & ~np.isnan(high) & ~np.isnan(mean)
        with_std = known & ~np.isnan(std)
        tells &= ~(of_few | (known & (low == high)) | (with_std & two))
    return tells
