"""The calls of one step of a rank, of which an alignment is made."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from dataclasses import replace
from itertools import chain

import numpy as np

from ingest.questions.compare.alignment.calls import MARKS, OperatorCall, Value
from ingest.questions.compare.runner import PairRunner, batched
from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.context.match import flatten
from ingest.reader.flow.operator_kinds import is_input, is_output
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import OperatorKey
from workers.tasks.compare import read_contents

_L1 = "l1:"
_NUMBER = re.compile(r"-op\d+$")
#: MindSpore 2.0 writes `gradMatMul-expand` and `gradMaxPool-meta` for what later versions call `Grad_MatMul`.
_GRADIENT = re.compile(r"(?:^|(?<=[/_]))grad([A-Z]\w*?)(?:-(?:expand|meta))?(?=/)")
_COLUMNS = tuple(FIELDS.index(name) if name in FIELDS else None for name in MARKS)
_NARROW_NBYTES = 2


def with_contents(side: StepTensors, numbers: Iterable[int], runner: PairRunner) -> StepTensors:
    """Return a step with the digests and statistics of these tensors, which are read if they are not known.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    unknown = [number for number in numbers if side.dumped[number] and not side.digests[number].any()]
    if not unknown:
        return side
    digests, statistics = side.digests.copy(), side.statistics.copy()
    batches = batched([side.operand(number) for number in unknown], runner.parts)
    answers = chain.from_iterable(runner.map(read_contents, batches))
    for number, answer in zip(unknown, answers, strict=True):
        if answer.digest:
            digests[number] = np.frombuffer(answer.digest, np.uint8)
        if answer.statistics:
            statistics[number] = answer.statistics
    return replace(side, digests=digests, statistics=statistics)


def calls_of(side: StepTensors) -> tuple[list[OperatorKey], list[OperatorCall], list[Value]]:
    """Return the operators of a step in order of execution, each as a call; and the value of each tensor.

    Raises:
        StoreError: the store cannot be read.
    """
    values = [_value(side, number) for number in range(len(side.keys))]
    firsts: dict[OperatorKey, int] = {}
    inputs: dict[OperatorKey, list[Value]] = {}
    outputs: dict[OperatorKey, list[Value]] = {}
    for number, key in enumerate(side.keys):
        firsts.setdefault(key.operator, number)
        inputs.setdefault(key.operator, [])
        outputs.setdefault(key.operator, [])
        if is_output(key.io):
            outputs[key.operator].append(values[number])
        elif is_input(key.io):
            inputs[key.operator].append(values[number])
    calls = [
        OperatorCall(
            key[2],
            tuple(inputs[key]),
            tuple(outputs[key]),
            scope_of(side.operands.full_name(first) or key[3], key[2]) or key[3],
        )
        for key, first in firsts.items()
    ]
    return list(inputs), calls, values


def scope_of(name: str, op_type: str) -> str:
    """Return the cells that an operator is in, from its name; "" for none, as in `MatMul-op47`.

    Two versions of a framework may name one operator `MatMul-op104` and
    `Gradients_Default_network-Net_fc-Dense_Grad_MatMul_MatMul-op0`. The graph files of a dump have the whole
    name, in which the scope is spelt alike.
    """
    plain = flatten(_GRADIENT.sub(r"Grad_\1", _NUMBER.sub("", name)))
    scope = plain.removesuffix(op_type).rstrip("_")
    return scope if scope != plain else ""


def _told_hash(side: StepTensors, number: int) -> str | None:
    """Return the hash that the dump has instead of a tensor; None if it has none."""
    tensor = side.operands.attributes(number).get("tensor")
    told = tensor.get("hash") if isinstance(tensor, dict) else None
    return told if isinstance(told, str) else None


def _value(side: StepTensors, number: int) -> Value:
    statistics = side.statistics[number]
    marks = [math.nan if column is None else float(statistics[column]) for column in _COLUMNS]
    content: Hashable = None
    if side.digests[number].any():
        content = side.dtypes[number], side.digests[number].tobytes()
    elif not side.dumped[number]:
        told = _told_hash(side, number)
        if told is not None and told.startswith(_L1):
            marks[0] = float(told.removeprefix(_L1))
        else:
            content = told
    size = math.prod(side.shapes[number])
    low, high = marks[2], marks[3]
    is_weak = size <= 1 or low == high or 0.0 in marks[:2]
    return Value(size, content, tuple(marks), is_weak, _is_narrow(side.dtypes[number]))


def _is_narrow(dtype: str) -> bool:
    try:
        return from_name(dtype).itemsize <= _NARROW_NBYTES
    except ValueError:
        return False
