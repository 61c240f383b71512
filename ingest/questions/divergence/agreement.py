"""Who agrees with whom on each tensor of each step: what everything about ranks is judged by.

A *pattern* has one number per rank: the place of the first rank that holds the same content. Tensors that
replicas share agree in the same way again and again, so there are few distinct patterns, and a step is stored
as one small number per tensor: the number of its pattern. Digests are compared, or statistics where only
these were dumped; elements are left to whoever asks about the few tensors that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from ingest.reader.operator_kinds import FUNCTIONS, StepPart, parts_of
from ingest.reader.step_statistics import StepStatistics
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import Block, TensorAxis, TensorKey

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
_Mask = npt.NDArray[np.bool_]


class Patterns:
    """The distinct patterns, each with a number. It only ever grows."""

    def __init__(self, ranks: int) -> None:
        """Begin without patterns, for this many ranks."""
        self.ranks = ranks
        factors = np.random.default_rng(11).integers(1, 2**63, ranks, np.uint64)
        self._factors: U64 = factors * np.uint64(2) + np.uint64(1)
        self._numbers: dict[int, int] = {}
        self.all: list[Labels] = []
        """All patterns, in order of their numbers."""

    def numbers(self, labels: Labels) -> npt.NDArray[np.int32]:
        """Return the number of the pattern in each column of `labels`, (rank, tensor); add new patterns."""
        codes = _mixed((labels + 3).astype(np.uint64) * self._factors[:, None]).sum(axis=0, dtype=np.uint64)
        distinct, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        known = np.empty(len(distinct), np.int32)
        for place, (code, column) in enumerate(zip(distinct.tolist(), first.tolist(), strict=True)):
            if code not in self._numbers:
                self._numbers[code] = len(self.all)
                self.all.append(labels[:, column].copy())
            known[place] = self._numbers[code]
        return known[inverse]


@dataclass(frozen=True, eq=False)
class AgreementOfRanks:
    """Who agrees with whom, by step and tensor."""

    keys: list[TensorKey]
    kinds: npt.NDArray[np.int8]
    """(tensor,): a `SlotKind`."""
    content: npt.NDArray[np.int32]
    """(step, tensor): the number of a pattern."""
    tells: _Mask
    """(step, tensor): whether agreeing means anything: it holds more than two different values."""
    constant: _Mask
    """(step, tensor): whether all elements are the same, or none is finite, on every rank that has it."""
    patterns: Patterns
    sizes: npt.NDArray[np.float64]
    """(tensor,): how many elements it has, in the last step and on the first rank that have it; or NaN."""

    @cached_property
    def _counts(self) -> npt.NDArray[np.int64]:
        """(pattern, 3): ranks that have it, groups with equal bytes, and ranks whose bytes are not known."""
        digests = [labels[(labels >= 0) & (labels < len(labels))] for labels in self.patterns.all]
        return np.array(
            [
                ((labels != ABSENT).sum(), len(set(known.tolist())), (labels != ABSENT).sum() - known.size)
                for labels, known in zip(self.patterns.all, digests, strict=True)
            ]
        ).reshape(-1, 3)

    @cached_property
    def are_distinct(self) -> _Mask:
        """(pattern,): whether several ranks have a tensor, and no two hold the same bytes."""
        held, groups, unknown = self._counts.T
        return np.asarray((held > 1) & (groups == held) & (unknown == 0))

    @cached_property
    def are_unequal(self) -> _Mask:
        """(pattern,): whether ranks are known to hold other bytes than others."""
        return np.asarray(self._counts[:, 1] > 1)

    @cached_property
    def gradients(self) -> list[tuple[int, int]]:
        """Gradients and their parameters, by their places.

        A gradient that several passes add up is that of the last, of which the update is made.
        """
        places = {key: place for place, key in enumerate(self.keys)}
        parts = enumerate(parts_of(self.keys))
        gradients = [place for place, part in parts if part is StepPart.PARAMETER_GRADIENT]
        ordered = sorted(gradients, key=lambda place: self.keys[place].occurrence)
        whole = {self.keys[place]._replace(occurrence=0): place for place in ordered}
        named = ((whole[key], [other for other in _parameters_of(key) if other in places]) for key in whole)
        return sorted((place, places[known[0]]) for place, known in named if known)

    @cached_property
    def gradient_of(self) -> dict[int, int]:
        """By parameter, its gradient of as many elements: that of a shard may be whole."""
        return {own: gradient for gradient, own in self.gradients if self.sizes[own] == self.sizes[gradient]}

    @cached_property
    def apart(self) -> _Mask:
        """(step,): whether ranks train apart until their parameters are made equal again, as in local SGD.

        So they do if all parameters part together and meet together, and gradients are shared all or
        none: none in the step before they are apart.
        """
        gradient_of = self.gradient_of
        parameters = [*gradient_of] or np.flatnonzero(self.kinds == SlotKind.PARAMETER).tolist()
        of_parameters = self.content[:, parameters]
        held, groups, unknown = np.moveaxis(self._counts[of_parameters], 2, 0)
        parted, met = self.are_distinct[of_parameters], (groups < held) & (unknown == 0)
        moving = parted.any(axis=0) & met.any(axis=0)
        moved = (place for place, moves in zip(parameters, moving, strict=True) if moves)
        gradients = [gradient_of[place] for place in moved if place in gradient_of]
        of_gradients, hides = self.content[:, gradients], ~self.tells[:, gradients]
        # Each step is as all are at first, or each rank goes its own way in it.
        own = np.all(self.are_distinct[of_gradients] | hides, axis=1)
        shared = np.all(~self.are_unequal[of_gradients] | hides, axis=1)
        if 2 * moving.sum() <= met.any(axis=0).sum() or not (own | shared).all():
            return np.zeros(len(self.content), bool)
        apart = np.asarray(parted[:, moving].all(axis=1))
        together = np.flatnonzero(2 * met[:, moving].sum(axis=1) > moving.sum())
        is_between = together.size > 1 and apart[together[0] : together[-1]].any()
        is_explained = (own | np.concatenate([own[:1], own[:-1]]))[apart].all()
        return np.asarray(apart & is_between & is_explained)

    def only_together(self) -> AgreementOfRanks:
        """Return the same without the steps in which ranks train apart."""
        if not self.apart.any():
            return self
        absent = int(self.patterns.numbers(np.full((self.patterns.ranks, 1), ABSENT, np.int32))[0])
        return replace(self, content=np.where(self.apart[:, None], absent, self.content))

    def labels(self, step: int, tensor: int) -> Labels:
        """Return the pattern of a tensor in a step, both by their places."""
        return self.patterns.all[int(self.content[step, tensor])]

    def holders(self, step: int, tensor: int) -> int:
        """Return how many ranks have a tensor."""
        return int(self._counts[self.content[step, tensor], 0])

    def is_replicated(self, step: int, tensor: int) -> bool:
        """Return whether several ranks have a tensor, and all hold the same bytes."""
        held, groups, unknown = self._counts[self.content[step, tensor]]
        return bool(held > 1 and groups == 1 and not unknown)

    def is_distinct(self, step: int, tensor: int) -> bool:
        """Return whether several ranks have a tensor, and no two hold the same bytes."""
        return bool(self.are_distinct[self.content[step, tensor]])

    def is_known(self, step: int, tensor: int) -> bool:
        """Return whether the bytes of all ranks that have a tensor are known."""
        return not self._counts[self.content[step, tensor], 2]

    def splits(self, step: int, tensor: int, other: int, later: int = 0) -> tuple[int, ...]:
        """Return the places of ranks that hold the same bytes of `other` and not of `tensor`.

        Args:
            step: of both, by its place.
            tensor: what may differ.
            other: what is the same.
            later: how many steps later `tensor` is looked at.
        """
        if not (self.is_known(step + later, tensor) and self.is_known(step, other)):
            return ()
        parts: dict[int, list[int]] = {}
        mine, theirs = self.labels(step + later, tensor), self.labels(step, other)
        for place in np.flatnonzero((mine != ABSENT) & (theirs != ABSENT)).tolist():
            parts.setdefault(int(theirs[place]), []).append(place)
        apart = (part for part in parts.values() if len({int(mine[place]) for place in part}) > 1)
        return tuple(place for part in apart for place in part)

    def share_gradient(self, gradient: int) -> tuple[int, ...]:
        """Return the ranks, by their places, that hold the same of a gradient in every step; () if not."""
        steps = [step for step in range(len(self.content)) if self.holders(step, gradient) > 1]
        is_shared = all(self.is_replicated(step, gradient) for step in steps)
        if not (is_shared and any(self.tells[step, gradient] for step in steps)):
            return ()
        return tuple(np.flatnonzero(self.labels(steps[0], gradient) != ABSENT).tolist())

    def _tells_next(self, step: int, tensor: int, gradient: int) -> bool:
        is_known = self.is_known(step, tensor) and self.is_known(step, gradient)
        return is_known and bool(self.tells[step, gradient])

    def parted(self, tensor: int, gradient: int, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return ranks that held the same of a parameter and of its gradient, if they part in the next step.

        Args:
            tensor: the parameter.
            gradient: that of the loss by it.
            numbers: of the steps, one for each: nothing follows for the next one if some between them were
                not dumped.
        """
        for place in range(len(numbers) - 1):
            if numbers[place + 1] > numbers[place] + 1 or not self._tells_next(place, tensor, gradient):
                continue
            held, passed = self.labels(place, tensor), self.labels(place, gradient)
            now, apart = self.labels(place + 1, tensor), self.splits(place, tensor, tensor, later=1)
            if any(
                held[one] == held[other] and passed[one] == passed[other] and now[one] != now[other]
                for one, other in combinations(apart, 2)
            ):
                return _holding_alike(held, apart)
        return ()

    def parted_by(self, gradient: int, tensor: int, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return ranks that hold the same of a parameter, if another gradient of each parts them in one step.

        That is, after a step in which they shared the gradient, too.

        Args:
            gradient: that of the loss by the parameter.
            tensor: the parameter.
            numbers: of the steps, one for each.
        """
        is_shared = False
        for place in range(len(numbers) - 1):
            if not self._tells_next(place, tensor, gradient):
                continue
            if not (split := self.splits(place, gradient, tensor)):
                is_shared |= self.holders(place, gradient) > 1
            elif is_shared and numbers[place + 1] == numbers[place] + 1:
                is_parted = {*split} <= {*self.splits(place, tensor, tensor, later=1)}
                return _holding_alike(self.labels(place, tensor), split) if is_parted else ()
        return ()

    def alike(self) -> list[list[int]]:
        """Return sets of tensors that have one kind, and the same pattern in each step."""
        if not self.keys:
            return []
        columns = np.concatenate([self.content * 2 + self.tells, self.kinds[None].astype(np.int32)])
        inverse = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
        order = np.argsort(inverse, kind="stable")
        ends = np.flatnonzero(np.diff(inverse[order])) + 1
        return [part.tolist() for part in np.split(order, ends)]


def _holding_alike(held: Labels, places: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return all ranks that hold the same as one of these, by what they hold."""
    labels = dict.fromkeys(held[[*places]].tolist())
    return tuple(tuple(np.flatnonzero(held == label).tolist()) for label in labels)


def _parameters_of(gradient: TensorKey) -> list[TensorKey]:
    names = (gradient.op_name.replace(mark, "", 1) for mark in ("grad.", "grad__"))
    candidates = [
        gradient._replace(op_type="Parameter"),
        *(gradient._replace(op_name=name) for name in names),
    ]
    return [key for key in candidates if key != gradient]


def observe(
    statistics: StepStatistics, ranks: tuple[int, ...], visit: Callable[[Block], None] = lambda _: None
) -> AgreementOfRanks:
    """Compare the ranks step by step.

    Args:
        statistics: reads the steps.
        ranks: all ranks, in order.
        visit: is called with each step as well, so that it is read once.

    Raises:
        DamagedStore: the index of a step is missing or damaged.
    """
    patterns = Patterns(len(ranks))
    content, tells, constant = [], [], []
    sizes = np.zeros(0)
    kinds = np.zeros(0, np.int8)
    parameters: dict[int, U64] = {}
    since: dict[int, int] = {}
    """By input that holds the bytes of a parameter: the first step in which it does, by its place."""
    for block in statistics.blocks():
        # The axis may be ahead of the block: the next step is read meanwhile.
        new = [slot_kind_of(statistics.axis[place]) for place in range(len(kinds), block.row.shape[1])]
        kinds = np.concatenate([kinds, np.array(new, np.int8)])
        visit(block)
        sizes = np.pad(sizes, (0, len(kinds) - len(sizes)), constant_values=np.nan)
        counts = block.statistic("count")[block.present.argmax(axis=0), np.arange(len(kinds))]
        sizes = np.where(block.present.any(axis=0), counts, sizes)
        content.append(patterns.numbers(labels_of(block, ranks)))
        tells.append(telling(block))
        constant.append(np.asarray((~block.present | _tells_nothing(block)).all(axis=0)))
        was_parameter = kinds == SlotKind.PARAMETER
        parameters = _mark_aliases(block, statistics.axis, kinds, tells[-1], parameters)
        since |= dict.fromkeys(
            np.flatnonzero((kinds == SlotKind.PARAMETER) & ~was_parameter), len(content) - 1
        )
    absent = int(patterns.numbers(np.full((len(ranks), 1), ABSENT, np.int32))[0])
    for place, first in since.items():
        # A call of a function is told by its number, and may have been another one before.
        is_function = statistics.axis.keys[place].op_type.startswith(FUNCTIONS)
        for earlier in filter(lambda row: place < len(row), content[: first * is_function]):
            earlier[place] = absent

    def widened(rows: Sequence[npt.NDArray[Any]], fill: int) -> npt.NDArray[Any]:
        width = len(kinds)
        return np.stack([np.pad(row, (0, width - len(row)), constant_values=fill) for row in rows])

    return AgreementOfRanks(
        # Behind them may be tensors of other steps.
        statistics.axis.keys[: len(kinds)],
        kinds,
        widened(content, absent),
        widened(tells, 0),
        widened(constant, 1),
        patterns,
        sizes,
    )


def labels_of(block: Block, ranks: tuple[int, ...]) -> Labels:
    """Compare all ranks of a step by 64 bits of each digest, or of the statistics: patterns, (rank, tensor).

    Two tensors that differ are taken for equal once in 2**64 times.

    Args:
        block: the step.
        ranks: the ranks that the patterns describe, in order.
    """
    places = np.searchsorted(ranks, block.ranks)
    present = block.present
    words = np.ascontiguousarray(block.digest).view("<u8")
    has_digest = words.any(axis=2)
    codes: U64 = words[:, :, 0] ^ (words[:, :, 1] * _MIX)
    reported = present & ~has_digest
    alone = np.flatnonzero(reported.any(axis=0))
    if alone.size:
        # 64 bits of the statistics: NaN equals NaN, and -0 equals 0.
        values = block.statistics[:, alone]
        bits = np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)
        own: U64 = _mixed(_mixed(bits) * _FIELD_FACTORS).sum(axis=2, dtype=np.uint64)
        codes[:, alone] = np.where(reported[:, alone], own, codes[:, alone])
    labels = np.full((len(ranks), present.shape[1]), ABSENT, np.int32)
    labels[places] = _labels(codes, present, places)
    if alone.size:
        # Digests and statistics are never compared with each other.
        part = labels[np.ix_(places, alone)]
        part[reported[:, alone]] += len(ranks)
        part[reported[:, alone] & np.isnan(block.statistics[:, alone]).all(axis=2)] = UNKNOWN
        labels[np.ix_(places, alone)] = part
    return labels


def _labels(codes: U64, present: _Mask, places: npt.NDArray[Any]) -> Labels:
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


def _sorted_labels(codes: U64, present: _Mask, places: npt.NDArray[Any]) -> Labels:
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


def _mixed(bits: U64) -> U64:
    """Spread bits: small numbers as floats differ only in their upper bits."""
    mixed = bits ^ (bits >> np.uint64(32))
    mixed = mixed * _MIX
    return np.asarray(mixed ^ (mixed >> np.uint64(29)))


def _not_finite(block: Block) -> npt.NDArray[np.float64]:
    return np.asarray(sum(block.statistic(name) for name in ("nan_count", "pos_inf_count", "neg_inf_count")))


def _tells_nothing(block: Block) -> _Mask:
    """Return whether all elements are the same, or none is finite, (rank, tensor): equal by chance."""
    low, high, count = (block.statistic(name) for name in ("min", "max", "count"))
    return np.asarray((np.isfinite(low) & (low == high)) | ((count > 0) & (_not_finite(block) == count)))


def telling(block: Block) -> _Mask:
    """Return whether tensors hold more than two values, (tensor,).

    It is judged by the first and the last rank that have them. The variance of values between `min` and `max`
    is at most `(mean - min) * (max - mean)`, and equals that bound only if no other values occur than these
    two (Bhatia and Davis 2000, "A better bound on the variance"). Masks, constants, single numbers and zeros
    agree whatever the ranks do.
    """
    present = block.present
    width = present.shape[1]
    tells = np.ones(width, bool)
    if not present.size:
        return tells
    last = len(present) - 1 - np.argmax(present[::-1], axis=0)
    not_finite = _not_finite(block)
    for rank in (np.argmax(present, axis=0), last):
        at = rank, np.arange(width)
        low, high, mean, std, count = (
            block.statistic(name)[at] for name in ("min", "max", "mean", "std", "count")
        )
        with np.errstate(all="ignore"):
            bound = (mean - low) * (high - mean)
            two = ~(std * std < bound * (1 - 1e-6))
            of_few = (count <= 2) | (count - not_finite[at] == 0)
        known = ~np.isnan(low) & ~np.isnan(high) & ~np.isnan(mean)
        tells &= ~(of_few | (known & (low == high)) | (known & ~np.isnan(std) & two))
    return tells


def _mark_aliases(
    block: Block,
    axis: TensorAxis,
    kinds: npt.NDArray[np.int8],
    tells: _Mask,
    before: Mapping[int, U64],
) -> dict[int, U64]:
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
    parameters: dict[int, U64] = {}
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
