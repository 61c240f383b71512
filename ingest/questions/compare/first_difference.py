"""The first tensor of a step that differs: of one operator, the input that is the cause and not its effect.

An operator such as an optimizer writes its result into the memory of its inputs, and these are dumped after
that. So a changed learning rate changes the dumped weight, which comes before it among the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from ingest.questions.compare.compared_tensor import UNMATCHED, ComparedTensor, Verdict
from ingest.questions.compare.result import ComparedInput, FirstDifference
from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.flow.operator_kinds import is_input, slots_written_in_place
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore
from workers.tasks.operands import read_whole

_BAD = frozenset({Verdict.DIFFERENT, Verdict.SHAPE})


def first_difference(
    a: StepTensors, b: StepTensors, tensors: Sequence[ComparedTensor], number_in_b: Mapping[int, int]
) -> FirstDifference | None:
    """Return the first tensor that differs, and the inputs of its operator; None if all agree.

    If limits were derived, that is the first whose difference nothing executed before explains.

    Args:
        a: the tensors of A.
        b: the tensors of B.
        tensors: what is known of them; equal ones may be missing.
        number_in_b: the numbers in B of the tensors of A that are matched.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    first = first_unexplained(tensors)
    if first is None:
        return None
    if (missing := of_one_side_before(first, tensors, number_in_b)) is not None:
        return FirstDifference(missing, ())
    compared = _by_number(tensors)
    inputs = _inputs(a, first.number)
    in_place = _written_in_place(a, inputs)
    # Those that differ first, and of these the ones first that can be a cause.
    order = sorted(
        inputs, key=lambda number: (not _differs(compared.get(number)), number in in_place, number)
    )
    answers = []
    for number in order:
        known = compared.get(number)
        answer = ComparedInput(
            name=a.keys[number].name,
            verdict=known.verdict if known else Verdict.EQUAL,
            reason=known.reason if known else "",
            written_in_place=number in in_place,
        )
        if _differs(known) and number in number_in_b:
            answer = _with_values(answer, _only_element(a, number), _only_element(b, number_in_b[number]))
        answers.append(answer)
    if is_input(first.io) and order:
        first = compared[order[0]]
    return FirstDifference(first, tuple(answers))


def first_unexplained(tensors: Iterable[ComparedTensor]) -> ComparedTensor | None:
    """Return the first tensor that differs and that nothing executed before explains; else any first one."""
    different = [tensor for tensor in tensors if tensor.verdict in _BAD]
    grown = [tensor for tensor in different if tensor.bound is None or not tensor.bound.explained]
    return min(grown or different, key=lambda tensor: tensor.number, default=None)


def scaled_before(gradient: ComparedTensor, parameter: ComparedTensor) -> FirstDifference:
    """Return that the gradients of the step before, which all had one factor, have moved parameters apart."""
    ratio = gradient.metrics.norm_ratio if gradient.metrics else math.nan
    why = f"{ratio:.4g} times B, as all gradients are, and {parameter.name_a} was moved by them"
    return FirstDifference(replace(gradient, verdict=Verdict.DIFFERENT, reason=why, level="shown"), ())


def of_one_side_before(
    first: ComparedTensor, tensors: Iterable[ComparedTensor], number_in_b: Mapping[int, int]
) -> ComparedTensor | None:
    """Return what only one side ran right before the input that differs first: a module that was left out.

    What was computed before agrees, so what is in between made the difference.
    """
    if not is_input(first.io) or first.number not in number_in_b:
        return None
    rows = {(row.verdict, row.number): row for row in tensors if row.verdict in UNMATCHED}
    for verdict, number in ((Verdict.ONLY_B, number_in_b[first.number]), (Verdict.ONLY_A, first.number)):
        before = list(takewhile(rows.__contains__, ((verdict, n) for n in range(number - 1, -1, -1))))
        if before:
            row = rows[before[-1]]
            why = f"{row.verdict}, and {first.name_a}, which comes next, differs"
            return replace(row, reason=why, level="likely")
    return None


def _by_number(tensors: Sequence[ComparedTensor]) -> dict[int, ComparedTensor]:
    """Return the tensors that A has, by their numbers."""
    return {tensor.number: tensor for tensor in tensors if tensor.name_a}


def _with_values(answer: ComparedInput, value_a: str, value_b: str) -> ComparedInput:
    """Return an input with its only element on both sides, if both have one."""
    return replace(answer, value_a=value_a, value_b=value_b) if value_a and value_b else answer


def _differs(tensor: ComparedTensor | None) -> bool:
    return tensor is not None and tensor.verdict in _BAD


def _inputs(a: StepTensors, number: int) -> list[int]:
    operator = a.keys[number].operator
    return [number for number, key in enumerate(a.keys) if key.operator == operator and is_input(key.io)]


def _written_in_place(a: StepTensors, inputs: Sequence[int]) -> set[int]:
    if not inputs:
        return set()
    shapes = {a.keys[number].slot: a.shapes[number] for number in inputs}
    slots = slots_written_in_place(a.keys[inputs[0]].op_type, shapes)
    return {number for number in inputs if a.keys[number].slot in slots}


def _only_element(side: StepTensors, number: int) -> str:
    """Return the only element of a tensor, with all digits of its type; "" if it has none or others."""
    if any(length != 1 for length in side.shapes[number]):
        return ""
    try:
        if side.dumped[number] and number not in side.removed:
            operand = side.operand(number)
            (payload,) = read_whole([operand])
            if not isinstance(payload, DamagedStore):
                return str(operand.values(payload)[0])
        count, low = side.statistics[number][[FIELDS.index("count"), FIELDS.index("min")]].tolist()
        # A log may tell statistics without a type, and without the shape.
        is_known = count == 1 and not math.isnan(low)
        return str(from_name(side.dtypes[number]).values.type(low)) if is_known else ""
    except ValueError:  # a type or layout that cannot be read
        return ""
