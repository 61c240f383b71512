"""How an answer describes calls and roots, in words and as values."""

from __future__ import annotations

from collections.abc import Iterable

from ingest.questions.origin.answer import OriginOperator, OriginTensor
from ingest.questions.origin.calls import Call, Mask, rows_of
from ingest.questions.origin.roots import CAME_IN, THROUGH, Root, parameter_of
from ingest.reader.context import SourceLine, context_of
from ingest.reader.flow.operator_kinds import is_input, is_output
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.errors import DamagedStore

#: How many items a list in words names.
_LISTED = 5


def how_it_began(root: Root) -> str:
    """Describe how something bad began, for a text that names the operator: `was born in it`."""
    if root.how == CAME_IN and root.operand is not None:
        return f"came in with {root.operand.io} {root.operand.slot}"
    return "came through it" if root.how == THROUGH else "was born in it"


def describe_root(root: Root) -> str:
    """Describe what began, how, and in which operator, without the rank."""
    what = root.holds or "NaN or Inf"
    name = f"{root.call.op_type} ({root.call.op_name})"
    if root.how == CAME_IN and root.operand is not None:
        parameter = _other_parameter(root)
        apposition = f", which is {parameter}," if parameter else ""
        return f"{what} came in with {root.operand.io} {root.operand.slot}{apposition} of {name}"
    return f"{what} born in {name}"


def name_of_input(root: Root) -> str | None:
    """Return the name of the input that was bad, and of the parameter that it is, if the dump contains it."""
    if root.operand is None:
        return None
    parameter = _other_parameter(root)
    apposition = f" (Parameter {parameter})" if parameter else ""
    return f"{root.call.name_of(root.operand)}{apposition}"


def _other_parameter(root: Root) -> str | None:
    """Return the parameter that the bad input of a root is; None if it is none, or the root itself."""
    if root.operand is None:
        return None
    parameter = parameter_of(root.flow, root.call.rank, root.operand)
    return parameter if parameter != root.call.op_name else None


def operator_of(call: Call, reason: str = "", *, is_assumed: bool = False) -> OriginOperator:
    """Return a call as an operator of an answer, with a reason."""
    key = call.key
    return OriginOperator(
        call.rank, call.step, key.graph, key.op_type, key.op_name, key.occurrence, reason, is_assumed
    )


def tensors_of(
    step: Step, call: Call, bad: Mask
) -> tuple[tuple[OriginTensor, ...], tuple[OriginTensor, ...]]:
    """Return all inputs and all outputs of a call, with their statistics."""
    tensors = [Tensor(step, row) for row in rows_of(step, call.key)]
    inputs = tuple(_operand(tensor, bad) for tensor in tensors if is_input(tensor.io))
    outputs = tuple(
        _operand(tensor, bad) for tensor in tensors if is_output(tensor.io) and not is_input(tensor.io)
    )
    return inputs, outputs


def _operand(tensor: Tensor, bad: Mask) -> OriginTensor:
    return OriginTensor(
        tensor.name,
        tensor.io,
        tensor.slot,
        tensor.dtype,
        tensor.shape,
        tensor.statistics,
        bool(bad[tensor.row]),
    )


def source_line(snapshot: Snapshot, step: Step, call: Call) -> SourceLine | None:
    """Return the line of the program that made a call; None if the dump does not have it, or is damaged."""
    try:
        return context_of(snapshot.store, call.rank).source_line(Tensor(step, call.row))
    except DamagedStore:
        return None


def fused_from(snapshot: Snapshot, step: Step, call: Call) -> tuple[str, ...]:
    """Return the operators of the model that were fused into that of a call; empty if not known."""
    try:
        return context_of(snapshot.store, call.rank).original_names(Tensor(step, call.row))
    except DamagedStore:
        return ()


def sentence(text: str) -> str:
    """Return a text with a capital letter at the start and a full stop at the end.

    A name, which is a word with dots, underlines or digits in it, stays as it is spelt.
    """
    word = text.split(maxsplit=1)[0]
    first = text[0].upper() if word.rstrip(",:;").isalpha() else text[0]
    return f"{first}{text[1:]}." if not text.endswith(".") else text


def list_in_words(items: Iterable[str]) -> str:
    """List the first items, and the number of the others: `a, b and 3 more`."""
    texts = list(items)
    rest = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
