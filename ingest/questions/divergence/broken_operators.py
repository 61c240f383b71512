"""Operators that broke: equal inputs on several ranks, and unequal outputs.

It takes two ranks and no majority: what follows from a broken operator has unequal inputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.divergence.agreement import ABSENT, AgreementOfRanks
from ingest.questions.divergence.result import BrokenOperator
from ingest.reader.anatomy import compare_bits
from ingest.reader.operator_kinds import (
    is_collective,
    is_container,
    is_input,
    is_output,
    is_parameter,
    needs_two_inputs,
    takes_numbers,
    writes_in_place,
)
from ingest.reader.snapshot import Snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted
from workers.model import StepKey
from workers.store.consolidated.blocks import Block, OperatorKey, TensorKey

#: Operators of which elements are read.
_READ = 20
#: Operators whose output depends on a state that is not an input.
_RANDOM = re.compile(r"(?i)dropout|random|rand|uniform|normal$|bernoulli|multinomial|getnext|seed|generator")


_Occasion: TypeAlias = tuple[list[int], list[tuple[int, ...]], list[int]]
"""Ranks with equal inputs in a step, by rank what is equal for equal outputs, and outputs that differ."""


class _Call(NamedTuple):
    """One operator, by the places of its tensors."""

    inputs: list[int]
    outputs: list[int]


def broken_operators(
    seen: AgreementOfRanks, statistics: StepStatistics, chosen: npt.NDArray[np.bool_]
) -> tuple[tuple[BrokenOperator, ...], list[str]]:
    """Return the operators with a chosen tensor that broke, by step and order, and notes.

    Operators that give other outputs for equal inputs in each of several steps are only noted: they
    depend on something else, as random ones do.
    """
    steps: dict[int, list[tuple[_Call, _Occasion]]] = {}
    states: list[str] = []
    for call in _suspects(_calls_of(seen.keys), seen):
        if chosen[[*call.inputs, *call.outputs]].any():
            occasions, compared = _occasions(call, seen)
            if len(occasions) == compared > 1:
                states.append(seen.keys[call.outputs[0]].op_type)
                continue
            for number, occasion in occasions:
                steps.setdefault(number, []).append((call, occasion))
    snapshot, broken = statistics.snapshot, list[BrokenOperator]()
    for number, found in steps.items():
        block = statistics.block(snapshot.steps[number])
        broken += [_described(call, occasion, seen.keys, snapshot.ranks, block) for call, occasion in found]
    notes = []
    if states:
        names = ", ".join(sorted(set(states))[:3])
        notes.append(
            f"{counted(len(states), 'operator')} with other outputs for equal inputs in each step, not "
            f"counted: they depend on more than their inputs ({names}{', ...' * (len(set(states)) > 3)})"
        )
    return _with_bits(sorted(broken, key=lambda operator: (operator.step, operator.rows)), snapshot), notes


def _calls_of(keys: Sequence[TensorKey]) -> list[_Call]:
    """Return the operators of which inputs and outputs were dumped, all inputs as far as slots tell."""
    calls: dict[OperatorKey, _Call] = {}
    for place, key in enumerate(keys):
        if _is_judged(key.op_type):
            call = calls.setdefault(key.operator, _Call([], []))
            if is_input(key.io):
                call.inputs.append(place)
            elif is_output(key.io):
                call.outputs.append(place)

    def has_all_inputs(inputs: Sequence[int]) -> bool:
        slots = {keys[place].slot for place in inputs if keys[place].io == "input"}
        is_whole = slots == set(range(len(slots)))
        return is_whole and (len(inputs) > 1 or not needs_two_inputs(keys[inputs[0]].op_type))

    return [call for call in calls.values() if call.inputs and call.outputs and has_all_inputs(call.inputs)]


def _suspects(calls: Sequence[_Call], seen: AgreementOfRanks) -> Iterator[_Call]:
    """Yield calls that have unequal outputs in a step, and no input of which each rank has its own."""
    suspected = np.zeros(len(calls), bool)
    (reads, read), (writes, written) = (
        np.array([(number, place) for number, call in enumerate(calls) for place in call[side]], int)
        .reshape(-1, 2)
        .T
        for side in (0, 1)
    )
    for patterns in seen.content:
        apart = np.bincount(reads[seen.are_distinct[patterns[read]]], minlength=len(calls))
        unequal = np.bincount(writes[seen.are_unequal[patterns[written]]], minlength=len(calls))
        suspected |= (unequal > 0) & (apart == 0)
    yield from (calls[number] for number in np.flatnonzero(suspected).tolist())


def _occasions(call: _Call, seen: AgreementOfRanks) -> tuple[list[tuple[int, _Occasion]], int]:
    """Return where ranks with equal inputs have unequal outputs, and in how many steps ranks share inputs."""
    found, compared = list[tuple[int, _Occasion]](), 0
    for number in range(len(seen.content)):
        labels = np.array([seen.labels(number, place) for place in (*call.inputs, *call.outputs)])
        is_there = (labels != ABSENT).any(axis=1)
        inputs, outputs = np.split(labels, [len(call.inputs)])
        if not (is_there[: len(inputs)].any() and is_there[len(inputs) :].any()):
            continue
        is_known = ((labels >= 0) & (labels < labels.shape[1]))[is_there].all(axis=0)
        by_input: dict[bytes, list[int]] = {}
        for place in np.flatnonzero(is_known).tolist():
            by_input.setdefault(inputs[:, place].tobytes(), []).append(place)
        shared = [places for places in by_input.values() if len(places) > 1]
        compared += bool(shared)
        for places in shared:
            groups = [tuple(outputs[:, place].tolist()) for place in places]
            kinds = len(set(groups))
            if kinds > 1 and not len(places) == kinds > 2:  # else each rank has its own: it is random
                varied = (outputs[:, places] != outputs[:, places[:1]]).any(axis=1)
                differing = [call.outputs[slot] for slot in np.flatnonzero(varied)]
                found.append((number, (places, groups, differing)))
    return found, compared


def _described(
    call: _Call, occasion: _Occasion, keys: Sequence[TensorKey], all_ranks: Sequence[int], block: Block
) -> BrokenOperator:
    places, groups, differing = occasion
    group, most = Counter(groups).most_common(1)[0]
    has_majority = 2 * most > len(places)
    ranks = [all_ranks[place] for place in places]
    others = [rank for rank, own in zip(ranks, groups, strict=True) if has_majority and own == group]
    odd = [rank for rank in ranks if rank not in others]
    first, second = (
        int(block.row[block.ranks.index(rank), differing[0]]) for rank in (odd[0], (others or odd[1:])[0])
    )
    return BrokenOperator(
        block.step,
        tuple(odd),
        has_majority,
        tuple(others),
        *keys[differing[0]].operator,
        len(call.inputs),
        tuple(keys[place].name for place in differing),
        (first, second),
    )


def _with_bits(broken: Sequence[BrokenOperator], snapshot: Snapshot) -> tuple[BrokenOperator, ...]:
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
        or takes_numbers(op_type)
        or _RANDOM.search(op_type)
    )
