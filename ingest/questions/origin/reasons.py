"""Why something bad began in the operator of a root: from the elements of its inputs and outputs."""

from __future__ import annotations

from ingest.questions.origin.calls import Mask, rows_of
from ingest.questions.origin.roots import Root
from ingest.questions.why import WhyAnswer, explain
from ingest.reader.flow.operator_kinds import is_input, is_output
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor


def why_of(step: Step, root: Root, bad: Mask, *, infinity: bool) -> WhyAnswer | None:
    """Return why a root is bad; None if the elements of its tensors are not known.

    Args:
        step: the step of its rank.
        root: the root.
        bad: which rows of the step are bad.
        infinity: whether infinity alone was searched for.

    Raises:
        DamagedStore: the elements are damaged.
    """
    op_type = root.call.op_type
    if root.operand is not None:
        return explain(op_type, (), Tensor(step, root.operand.row), infinity=infinity)
    tensors = [Tensor(step, row) for row in rows_of(step, root.call.key)]
    inputs = [tensor for tensor in tensors if is_input(tensor.io)]
    outputs = [
        tensor
        for tensor in tensors
        if is_output(tensor.io) and not is_input(tensor.io) and bool(bad[tensor.row])
    ]
    # An output with NaN before one with infinity: that may be a mask.
    outputs.sort(key=lambda tensor: not tensor.statistics.nan_count > 0)
    return explain(op_type, inputs, outputs[0], infinity=infinity) if outputs else None
