"""Operators that broke: equal inputs on several ranks, and unequal outputs.

It takes two ranks and no majority: what follows from a broken operator has unequal inputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.divergence.result import BrokenOperator
from ingest.reader.anatomy import compare_bits
from ingest.reader.operator_kinds import (
    is_collective,
    is_container,
    is_input,
    is_output,
    is_parameter,
    needs_two_inputs,
    writes_in_place,
)
from ingest.reader.snapshot import Snapshot
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted
from workers.model import StepKey
from workers.store.consolidated.blocks import Block, TensorAxis

#: Operators of which elements are read.
_READ = 20
_Codes: TypeAlias = npt.NDArray[np.uint64]
#: Operators whose output depends on a state that is not an input.
_RANDOM = re.compile(r"(?i)dropout|random|rand|uniform|normal$|bernoulli|multinomial|getnext|seed|generator")


@dataclass(slots=True)
class _Call:
    """One operator call, by the places of its tensors."""

    inputs: list[int]
    outputs: list[int]


class BrokenOperatorFinder:
    """Looks at one step of all ranks after the other.

    Memory: 26 bytes for each tensor, and 200 bytes for each operator.
    """

    def __init__(self, axis: TensorAxis) -> None:
        """Look at blocks with this axis."""
        self._axis = axis
        self._numbers: dict[tuple[str, str, str, str, int], int] = {}
        self._calls: list[_Call] = []
        self._call_of = np.zeros(0, np.int64)
        self._factor = np.zeros(0, np.uint64)
        self._is_input = np.zeros(0, bool)
        self._is_output = np.zeros(0, bool)
        self._compared: Counter[int] = Counter()
        """By call: in how many steps its inputs were equal on several ranks."""
        self._broken: dict[int, list[BrokenOperator]] = {}
        """By call."""

    def visit(self, block: Block) -> None:
        """Take the next step."""
        self._extend(block.row.shape[1])
        tensors = block.row.shape[1]
        codes = np.ascontiguousarray(block.digest).view("<u8")[:, :, 0]
        present = block.row >= 0
        has_digest = block.digest.any(axis=2)
        # The exact digests are compared below: these sums only find the calls that are worth it.
        mixed = (codes | np.uint64(1)) * self._factor[:tensors] * present
        inputs = self._sum(mixed * self._is_input[:tensors])
        outputs = self._sum(mixed * self._is_output[:tensors])
        unknown = self._sum((present & ~has_digest).astype(np.uint64)) > 0
        usable = (inputs != 0) & (outputs != 0) & ~unknown
        codes = np.sort(np.where(usable, inputs, np.uint64(0)), axis=0)
        shared = ((codes[1:] == codes[:-1]) & (codes[1:] != 0)).any(axis=0)
        # In a healthy run, most that is shared is the same on all ranks.
        same = shared & usable.all(axis=0) & ~self._differing(block)
        self._compared.update(np.flatnonzero(same).tolist())
        for call in np.flatnonzero(shared & ~same).tolist():
            self._look_at(call, block, inputs[:, call], usable[:, call])

    def broken(self, chosen: npt.NDArray[np.bool_]) -> tuple[list[BrokenOperator], list[str]]:
        """Return the operators with a chosen tensor that broke, by step and order, and notes.

        Operators that give other outputs for equal inputs in each of several steps are only noted: they
        depend on something else, as random ones do.
        """
        broken, notes, states = list[BrokenOperator](), list[str](), list[str]()
        for call, occasions in self._broken.items():
            tensors = [*self._calls[call].inputs, *self._calls[call].outputs]
            if not chosen[tensors].any():
                continue
            if len(occasions) == self._compared[call] > 1:
                states.append(occasions[0].op_type)
            else:
                broken += occasions
        if states:
            names = ", ".join(sorted(set(states))[:3])
            notes.append(
                f"{counted(len(states), 'operator')} with other outputs for equal inputs in each step, not "
                f"counted: they depend on more than their inputs ({names}{', ...' * (len(set(states)) > 3)})"
            )
        return sorted(broken, key=lambda operator: (operator.step, operator.rows)), notes

    def _extend(self, tensors: int) -> None:
        """Learn the calls of the tensors that are new on the axis."""
        begin = len(self._call_of)
        keys = [self._axis[place] for place in range(begin, tensors)]
        numbers = [self._numbers.setdefault(key.operator, len(self._numbers)) for key in keys]
        self._calls += [_Call([], []) for _ in range(len(self._numbers) - len(self._calls))]
        reads, writes = np.zeros(len(keys), bool), np.zeros(len(keys), bool)
        for offset, (key, number) in enumerate(zip(keys, numbers, strict=True)):
            if not _is_judged(key.op_type):
                continue
            reads[offset], writes[offset] = is_input(key.io), is_output(key.io)
            if reads[offset]:
                self._calls[number].inputs.append(begin + offset)
            elif writes[offset]:
                self._calls[number].outputs.append(begin + offset)
        factors = np.random.default_rng(begin).integers(1, 2**63, len(keys), np.uint64)
        self._call_of = np.concatenate([self._call_of, np.array(numbers, np.int64)])
        self._factor = np.concatenate([self._factor, factors * np.uint64(2) + np.uint64(1)])
        self._is_input = np.concatenate([self._is_input, reads])
        self._is_output = np.concatenate([self._is_output, writes])

    def _sum(self, codes: _Codes) -> _Codes:
        """Return the sum over the tensors of each call, (rank, call)."""
        sums = np.zeros((len(codes), len(self._calls)), np.uint64)
        for rank, own in enumerate(codes):
            np.add.at(sums[rank], self._call_of[: len(own)], own)
        return sums

    def _differing(self, block: Block) -> npt.NDArray[np.bool_]:
        """Return the calls that have an input or output with other bytes on any rank, (call,)."""
        tensors = block.row.shape[1]
        digests = np.ascontiguousarray(block.digest).view("<u8")
        differ = (digests != digests[:1]).any(axis=(0, 2)) & (self._is_input | self._is_output)[:tensors]
        calls = self._call_of[:tensors][differ]
        return np.bincount(calls, minlength=len(self._calls)).astype(bool)

    def _look_at(self, call: int, block: Block, inputs: _Codes, usable: npt.NDArray[np.bool_]) -> None:
        is_compared = False
        for places in _equal(inputs, usable):
            members = self._calls[call]
            if not _all_equal(block, places, members.inputs):
                continue
            is_compared = True
            if _all_equal(block, places, members.outputs):
                continue
            if self._has_all_inputs(members) and (broken := self._broken_in(members, block, places)):
                self._broken.setdefault(call, []).append(broken)
        self._compared[call] += is_compared

    def _broken_in(self, members: _Call, block: Block, places: Sequence[int]) -> BrokenOperator | None:
        contents = [block.digest[place, members.outputs].tobytes() for place in places]
        counts = Counter(contents)
        if len(places) > 2 and len(counts) == len(places):
            return None  # each rank has its own: it is random
        content, most = counts.most_common(1)[0]
        has_majority = 2 * most > len(places)
        ranks = [block.ranks[place] for place in places]
        others = [rank for rank, own in zip(ranks, contents, strict=True) if has_majority and own == content]
        odd = [rank for rank in ranks if rank not in others]
        differing = [place for place in members.outputs if not _all_equal(block, places, [place])]
        key = self._axis[differing[0]]
        compared = (odd[0], (others or odd[1:])[0])
        rows = (int(block.row[block.ranks.index(rank), differing[0]]) for rank in compared)
        return BrokenOperator(
            block.step,
            tuple(odd),
            has_majority,
            tuple(others),
            key.net,
            key.graph,
            key.op_type,
            key.op_name,
            key.occurrence,
            len(members.inputs),
            tuple(self._axis[place].name for place in differing),
            (next(rows), next(rows)),
        )

    def _has_all_inputs(self, members: _Call) -> bool:
        """Return whether the dump seems to have all inputs of a call: their slots have no gap."""
        keys = [self._axis[place] for place in members.inputs]
        slots = {key.slot for key in keys if key.io == "input"}
        has_gap = bool(slots) and slots != set(range(len(slots)))
        return not has_gap and (len(keys) > 1 or not needs_two_inputs(keys[0].op_type))


def with_bits(broken: Sequence[BrokenOperator], snapshot: Snapshot) -> tuple[BrokenOperator, ...]:
    """Return operators with the difference of their first outputs; of the first 20, their elements are read.

    Memory: three pieces of both tensors, see `Tensor.pieces`.
    """
    read = []
    for operator in broken[:_READ]:
        ranks = operator.ranks[0], (operator.others or operator.ranks[1:])[0]
        steps = (snapshot.chosen[StepKey(rank, operator.step)] for rank in ranks)
        read.append(replace(operator, bits=compare_bits(*map(Tensor, steps, operator.rows))))
    return (*read, *broken[_READ:])


@lru_cache(maxsize=4096)
def _is_judged(op_type: str) -> bool:
    return not (
        is_parameter(op_type)
        or is_collective(op_type)
        or is_container(op_type)
        or writes_in_place(op_type)
        or _RANDOM.search(op_type)
    )


def _equal(codes: _Codes, usable: npt.NDArray[np.bool_]) -> Iterator[list[int]]:
    """Yield the places of ranks with equal codes, two or more each time."""
    by_code: dict[int, list[int]] = {}
    for place in np.flatnonzero(usable).tolist():
        by_code.setdefault(int(codes[place]), []).append(place)
    yield from (places for places in by_code.values() if len(places) > 1)


def _all_equal(block: Block, places: Sequence[int], tensors: Sequence[int]) -> bool:
    digests = block.digest[np.ix_(list(places), list(tensors))]
    return bool((digests == digests[:1]).all())
