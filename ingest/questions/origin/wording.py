"""How an answer describes calls and roots, in words and as values."""

from __future__ import annotations

from collections.abc import Iterable

from ingest.questions.origin.answer import OriginOperator, OriginTensor
from ingest.questions.origin.calls import Call, Mask, rows_of
from ingest.questions.origin.roots import Root
from ingest.reader.context import SourceLine, context_of
from ingest.reader.operator_kinds import is_input, is_output, is_parameter
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.errors import DamagedStore

#: How many items a list in words names.
_LISTED = 5


def describe_root(root: Root) -> str:
    """Describe what began, how, and in which operator, without the rank."""
    what = root.holds or "NaN or Inf"
    name = f"{root.call.op_type} ({root.call.op_name})"
    if root.operand is None:
        return f"{what} born in {name}"
    parameter = parameter_read(root)
    apposition = f", which is {parameter}," if parameter else ""
    return f"{what} came in with {root.operand.io} {root.operand.slot}{apposition} of {name}"


def parameter_read(root: Root) -> str | None:
    """Return the parameter that the bad input of a root is; None if it is none, or the root itself.

    Only dumps that contain parameters as entries of their own tell.
    """
    if root.operand is None:
        return None
    content = root.operand.content
    parameters = (call for call in root.trace.calls if is_parameter(call.op_type))
    values = ((call.op_name, output) for call in parameters for output in call.bad_outputs)
    name = next((name for name, value in values if value.content == content), None)
    return name if name != root.call.op_name else None


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
    operands = [
        OriginTensor(
            tensor.name,
            tensor.io,
            tensor.slot,
            tensor.dtype,
            tensor.shape,
            tensor.statistics,
            bool(bad[tensor.row]),
        )
        for tensor in (Tensor(step, row) for row in rows_of(step, call.key))
    ]
    inputs = tuple(operand for operand in operands if is_input(operand.io))
    return inputs, tuple(each for each in operands if is_output(each.io) and not is_input(each.io))


def source_of(snapshot: Snapshot, step: Step, call: Call) -> tuple[SourceLine | None, tuple[str, ...]]:
    """Return the line of the program that made a call, and the operators of the model that are fused in it.

    None and empty if the dump does not have them, or is damaged.
    """
    try:
        context, tensor = context_of(snapshot.store, call.rank), Tensor(step, call.row)
        return context.source_line(tensor), context.original_names(tensor)
    except DamagedStore:
        return None, ()


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
