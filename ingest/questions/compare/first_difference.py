"""The first tensor of a step that differs, and what it was computed of.

Of one operator, it is the input that is the cause and not its effect: an operator such as an optimizer writes
its result into the memory of its inputs, and these are dumped after that. So a changed learning rate changes
the dumped weight, which comes before it among the inputs. Where ranks hold parts of a sum that nobody added
up, that sum comes first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from ingest.questions.compare.dataflow import gradient_name
from ingest.questions.compare.judge import CANCELS
from ingest.questions.compare.result import UNMATCHED, ComparedInput, ComparedTensor, FirstDifference, Verdict
from ingest.questions.compare.sources import StepTensors
from ingest.questions.compare.thresholds import relative_difference
from ingest.reader.operator_kinds import StepPart, is_input, is_numbered, is_output, slots_written_in_place
from ingest.reader.text import counted
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore
from workers.tasks.operands import read_whole

if TYPE_CHECKING:
    from ingest.questions.compare.step_comparison import StepComparison

_BAD = frozenset({Verdict.DIFFERENT, Verdict.SHAPE})
_BY_PATH = "the dump does not tell the order of execution: tensors stand in that of their paths"
_NO_ORDER = "the dump does not tell the order of execution, and all that it was made of agrees"
#: A parameter is not named if another one is this many times further from its limit.
_FAR = 16.0
#: How many limits a number must be off to be named before what differs after it.
_OFF = 4.0


def first_difference(step: StepComparison) -> FirstDifference | None:
    """Return the first tensor that differs, and the inputs of its operator; None if all agree.

    If limits were derived, that is the first whose difference nothing executed before explains.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    first = _first_unexplained(step)
    if first is None:
        return None
    before = step.before
    if before.scaled is not None and step.blames_scale:
        return _scaled_before(before.scaled, first)
    if (lacking := _lacking_before(step, first)) is not None:
        return FirstDifference(lacking, ())
    if part := _unreduced_gradient(step, first):
        return FirstDifference(part, ())
    if (missing := _of_one_side_before(step, first) or _missing_call(step, first)) is not None:
        return FirstDifference(missing, ())
    first = _held_otherwise(step, first) or _unreduced(step, first) or first
    return _with_inputs(step, _among_parameters(step, first) if _is_parameter(step, first) else first)


def _lacking_before(step: StepComparison, first: ComparedTensor) -> ComparedTensor | None:
    """Return the gradient that one side lacked in the step before, and without which a parameter moved."""
    lacking = step.before.lacking
    moved = (row for row in step.known.values() if row.verdict in _BAD and _is_parameter(step, row))
    known = (row for row in (first, *moved) if gradient_name(row.name_a) in lacking)
    if (row := next(known, None)) is None:
        return None
    gradient = lacking[gradient_name(row.name_a)]
    return replace(gradient, reason=f"{gradient.verdict}, and {row.name_a} moved otherwise", level="shown")


def _among_parameters(step: StepComparison, first: ComparedTensor) -> ComparedTensor:
    """Return a parameter, with how many of all differ."""
    differ = sum(_is_parameter(step, row) and row.verdict in _BAD for row in step.known.values())
    every = counted(step.flow.parts.count(StepPart.PARAMETER), "parameter")
    return replace(first, reason=f"{first.reason}; {differ} of {every} differ")


def _with_inputs(step: StepComparison, first: ComparedTensor) -> FirstDifference:
    a, compared = step.a, step.known
    inputs = _inputs(a, first.number) if first.name_a else []
    in_place = _written_in_place(a, inputs)
    # Those that differ first, and of these the ones first that can be a cause.
    order = sorted(
        inputs, key=lambda number: (not _differs(compared.get(number)), number in in_place, number)
    )
    known = {**step.known, first.number: first} if first.name_a else step.known
    answers = tuple(_input(step, known, number, is_written=number in in_place) for number in order)
    if is_input(first.io) and order and order[0] != first.number and _differs(compared[first.number]):
        first = compared[order[0]]
    return FirstDifference(first, answers)


def _input(
    step: StepComparison, rows: Mapping[int, ComparedTensor], number: int, *, is_written: bool
) -> ComparedInput:
    """Return an input as it compared: with its only element on both sides, if it has one that differs."""
    known, of_b = rows.get(number), step.flow.in_b.get(number)
    answer = ComparedInput(
        name=step.a.keys[number].name,
        verdict=known.verdict if known else Verdict.EQUAL,
        reason=known.reason if known else "",
        written_in_place=is_written,
    )
    if not _differs(known) or of_b is None:
        return answer
    values = _only_element(step.a, number), _only_element(step.b, of_b)
    return replace(answer, value_a=values[0], value_b=values[1]) if all(values) else answer


def _first_unexplained(step: StepComparison) -> ComparedTensor | None:
    """Return the first tensor that differs and that nothing executed before explains; else any first one."""
    different = [tensor for tensor in step.rows if tensor.verdict in _BAD]
    grown = [tensor for tensor in different if tensor.bound is None or not tensor.bound.explained]
    first = min(grown or different, key=lambda tensor: tensor.number, default=None)
    if first is not None and not step.flow.is_in_order:
        return _without_order(step, different) or replace(first, reason=f"{first.reason}; {_BY_PATH}")
    moved = [tensor for tensor in grown or different if _is_parameter(step, tensor)]
    if first in moved:
        return _first_far(moved)
    return first and (_number_before(step, first) or first)


def _number_before(step: StepComparison, first: ComparedTensor) -> ComparedTensor | None:
    """Return a number such as a loss that is further off than usual, if what comes after it differs, too.

    By itself, it may be small because its addends cancel.
    """
    for row in step.rows:
        bound, metrics = row.bound, row.metrics
        if row.reason == CANCELS and first.number > row.number and bound and metrics and bound.times > _OFF:
            off = f"relative difference {relative_difference(metrics):.2g}, {bound.times:.2g} times the limit"
            reason = f"{off}, and {first.name_a or first.name_b} differs after it"
            return replace(row, verdict=Verdict.DIFFERENT, reason=reason, level="likely")
    return None


def _without_order(step: StepComparison, different: Sequence[ComparedTensor]) -> ComparedTensor | None:
    """Return a parameter, or what differs although all that its operator read agrees, or what wrote it."""
    if moved := [tensor for tensor in different if _is_parameter(step, tensor)]:
        return _first_far(moved)
    flow, apart = step.flow, {tensor.number: tensor for tensor in different if tensor.name_a}
    names = {step.a.keys[n].op_name for n in apart if flow.parts[n] is StepPart.ACTIVATION}
    every = range(len(flow.keys))
    for is_of_input in (False, True):
        for number, tensor in sorted(apart.items()):
            made_of = flow.written_as(number) if is_of_input else flow.reads(number, every)
            within = f"{step.a.keys[number].op_name}."
            is_made_of_equal = bool(made_of) and apart.keys().isdisjoint(made_of or ())
            if is_made_of_equal and not any(name.startswith(within) for name in names):
                return replace(tensor, reason=f"{tensor.reason}; {_NO_ORDER}")
    return None


def _is_parameter(step: StepComparison, tensor: ComparedTensor) -> bool:
    return bool(tensor.name_a) and step.flow.parts[tensor.number] is StepPart.PARAMETER


def _first_far(moved: Sequence[ComparedTensor]) -> ComparedTensor:
    """Return the first of the parameters that are furthest from their limits: one update has made all."""
    times = [tensor.bound.times if tensor.bound is not None else math.inf for tensor in moved]
    most = max(times) / _FAR
    far = (tensor for tensor, own in zip(moved, times, strict=True) if own >= most)
    return min(far, key=lambda tensor: tensor.number)


def _scaled_before(gradient: ComparedTensor, parameter: ComparedTensor) -> FirstDifference:
    ratio = gradient.metrics.norm_ratio if gradient.metrics else math.nan
    why = f"{ratio:.4g} times B, as all gradients are, and {parameter.name_a} was moved by them"
    return FirstDifference(replace(gradient, verdict=Verdict.DIFFERENT, reason=why, level="shown"), ())


def _of_one_side_before(step: StepComparison, first: ComparedTensor) -> ComparedTensor | None:
    """Return what only one side ran to make the input that differs first: a module or function left out.

    It has the bytes of the input. Or it is right before it: what was computed before agrees, so what is in
    between made the difference.
    """
    in_b = step.flow.in_b
    if not is_input(first.io) or first.number not in in_b:
        return None
    rows = {
        (row.verdict, row.number): row
        for row in step.rows
        if row.verdict in UNMATCHED and row.op_type not in ("Gradient", "Parameter")
    }
    for verdict, side, number in (
        (Verdict.ONLY_B, step.b, in_b[first.number]),
        (Verdict.ONLY_A, step.a, first.number),
    ):
        own = side.contents[number]
        made = ((verdict, n) for n in range(number) if any(own) and side.contents[n] == own)
        maker = next((rows[each] for each in made if each in rows and is_output(side.keys[each[1]].io)), None)
        if maker is not None:
            why = f"{maker.verdict}, and {first.name_a}, which reads it, differs"
            return replace(maker, reason=why, level="shown")
        before = list(takewhile(rows.__contains__, ((verdict, n) for n in range(number - 1, -1, -1))))
        if before:
            row = rows[before[-1]]
            why = f"{row.verdict}, and {first.name_a}, which comes next, differs"
            return replace(row, reason=why, level="likely")
    return None


def _missing_call(step: StepComparison, first: ComparedTensor) -> ComparedTensor | None:
    """Return the module that one side calls more often, if a gradient that is added up differs."""
    other = step.flow.in_b.get(first.number) if first.name_a else None
    if other is None or step.flow.parts[first.number] is not StepPart.PARAMETER_GRADIENT:
        return None
    calls = step.a.keys[first.number].occurrence, step.b.keys[other].occurrence
    if calls[0] == calls[1]:
        return None
    verdict = Verdict.ONLY_A if calls[0] > calls[1] else Verdict.ONLY_B
    alone = (row for row in step.rows if row.verdict is verdict and row.op_type.startswith("Module."))
    row = min(alone, key=lambda row: row.number, default=None)
    why = f"{verdict}, which has a call more; {first.name_a} is added up over {calls[0] + 1} calls of A and "
    return row and replace(row, reason=f"{why}{calls[1] + 1} of B", level="shown")


def _unreduced_gradient(step: StepComparison, first: ComparedTensor) -> ComparedTensor | None:
    """Return the gradient of which each rank moved its replica by its own part alone; else None."""
    parts = step.before.parts
    part = parts.get(gradient_name(first.name_a))
    if part is None:
        return None
    parameters = (n for n in step.known if step.flow.parts[n] is StepPart.PARAMETER)
    moved = {gradient_name(step.known[n].name_a): n for n in parameters}
    if any(step.placed[moved[name]].is_same_everywhere for name in parts if name in moved):
        return None  # gradients are dumped before they are reduced
    why = f"each rank holds a part of the sum, and moved {first.name_a} by that part alone"
    return replace(part, verdict=Verdict.DIFFERENT, reason=why, level="shown")


def _held_otherwise(step: StepComparison, first: ComparedTensor) -> ComparedTensor | None:
    """Return the first tensor that ranks hold unlike others of its kind, if what is held so was read.

    Functions that are called in no module are not of one kind with others of their name.
    """
    placed, keys = step.placed, step.a.keys
    unusual = (n for n in sorted(placed) if placed[n].usual and not is_numbered(*keys[n][2:4]))
    number = next(unusual, first.number)
    if number >= first.number or first.number not in placed:
        return None
    read = step.flow.reads(first.number, step.known) or []
    if placed[number].cuts not in (placed[n].cuts for n in read) or _is_harmless(step, number, first.number):
        return None
    own, usual = placed[number].held.placement, placed[number].usual
    why = f"held as {own}, in other layers as {usual}; {first.name_a} was computed from it"
    return replace(step.known[number], verdict=Verdict.DIFFERENT, reason=why, level="likely")


def _is_harmless(step: StepComparison, number: int, end: int) -> bool:
    """Return whether a module that a tensor is within has given the same afterwards, whole on all ranks."""
    keys, known, placed = step.a.keys, step.known, step.placed
    later = (n for n in range(number + 1, end) if n in placed and keys[n].op_type.startswith("Module."))
    whole = (n for n in later if is_output(keys[n].io) and placed[n].is_same_everywhere)
    given = (n for n in whole if n in known and known[n].verdict not in _BAD)
    return any(keys[number].op_name.startswith(f"{keys[n].op_name}.") for n in given)


def _unreduced(step: StepComparison, first: ComparedTensor) -> ComparedTensor | None:
    """Return the sum of which each rank read its own part as the whole, if that is why they differ."""
    placed = step.placed.get(first.number)
    if placed is None or placed.is_same_everywhere:
        return None  # so all ranks have read the same
    parts = step.flow.parts
    earlier = [n for n in sorted(step.known) if n < first.number and parts[n] is not StepPart.PARAMETER]
    # What was made of parts and of what is whole is neither, so that it is open how ranks hold it.
    told = (n for n in reversed(earlier) if step.known[n].verdict is not Verdict.UNKNOWN)
    read = step.flow.reads(first.number, step.known) or list(islice(told, 1))
    sums = [n for n in read if n in earlier and _is_part_of_sum(step, n, first)]
    if not sums:
        return None
    # What was computed from parts is parts of a sum, too, as long as that is linear.
    place = bisect_left(earlier, sums[0])
    while place and _is_part_of_sum(step, earlier[place - 1], step.known[earlier[place]]):
        place -= 1
    why = f"each rank holds a part of the sum, and computed {first.name_a} from that part alone"
    return replace(step.known[earlier[place]], verdict=Verdict.DIFFERENT, reason=why, level="shown")


def _is_part_of_sum(step: StepComparison, number: int, following: ComparedTensor) -> bool:
    """Return whether each rank holds a part of what B has whole, and what follows does not reduce it.

    A number is none: a loss is that of the samples of each rank, and its backward pass begins with it.
    """
    if math.prod(step.a.shapes[number]) == 1:
        return False
    own, other = (step.a.keys[n].op_name for n in (number, following.number))
    is_reduction = own.startswith((f"{other}.", f"{other}_")) or other.startswith((f"{own}.", f"{own}_"))
    return step.placed[number].is_certain_sum and not is_reduction


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
