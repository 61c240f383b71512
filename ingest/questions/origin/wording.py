"""Calls and roots as an answer tells of them."""

from __future__ import annotations

from ingest.questions.origin.answer import OriginOperator, OriginTensor
from ingest.questions.origin.calls import Call, Mask, rows_of
from ingest.questions.origin.kinds import is_input, is_output
from ingest.questions.origin.roots import CAME_IN, THROUGH, Root, parameter_of
from ingest.reader.context import SourceLine, context_of
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.errors import DamagedStore


def how(root: Root) -> str:
    """Say how something bad began at a call that is named beside it."""
    if root.how == CAME_IN and root.operand is not None:
        return f"came in with {root.operand.io} {root.operand.slot}"
    return "came through it" if root.how == THROUGH else "was born in it"


def beginning(root: Root) -> str:
    """Say what began, how, and in which operator; on which rank is not said."""
    what = root.holds or "NaN or Inf"
    name = f"{root.call.op_type} ({root.call.op_name})"
    if root.how == CAME_IN and root.operand is not None:
        parameter = parameter_of(root.flow, root.call.rank, root.operand)
        known = f", which is {parameter}," if parameter and parameter != root.call.op_name else ""
        return f"{what} came in with {root.operand.io} {root.operand.slot}{known} of {name}"
    return f"{what} born in {name}"


def came_in(root: Root) -> str | None:
    """Name the input that was bad already, and the parameter that it is, if the dump has that by itself."""
    if root.operand is None:
        return None
    parameter = parameter_of(root.flow, root.call.rank, root.operand)
    known = f" (Parameter {parameter})" if parameter and parameter != root.call.op_name else ""
    return f"{root.call.name_of(root.operand)}{known}"


def operator_of(call: Call, reason: str = "", *, is_assumed: bool = False) -> OriginOperator:
    """Return a call as an operator with a reason."""
    key = call.key
    return OriginOperator(
        call.rank, call.step, key.graph, key.op_type, key.op_name, key.occurrence, reason, is_assumed
    )


def tensors_of(
    step: Step, call: Call, bad: Mask
) -> tuple[tuple[OriginTensor, ...], tuple[OriginTensor, ...]]:
    """Return all inputs and all outputs of a call, with their statistics."""
    inputs: list[OriginTensor] = []
    outputs: list[OriginTensor] = []
    for row in rows_of(step, call.key):
        one = Tensor(step, row)
        if is_input(one.io) or is_output(one.io):
            told = OriginTensor(
                one.name, one.io, one.slot, one.dtype, one.shape, one.statistics, bool(bad[row])
            )
            (inputs if is_input(one.io) else outputs).append(told)
    return tuple(inputs), tuple(outputs)


def source_line(snapshot: Snapshot, step: Step, call: Call) -> SourceLine | None:
    """Return the line of the program that made a call; None where the dump does not tell, or is damaged."""
    try:
        return context_of(snapshot.store, call.rank).source_line(Tensor(step, call.row))
    except DamagedStore:
        return None


def sentence(text: str) -> str:
    """Begin with a capital letter, and end with a full stop."""
    return f"{text[0].upper()}{text[1:]}." if not text.endswith(".") else text
