"""The row of a tensor that only one side of a comparison has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ingest.questions.compare.compared_tensor import ComparedTensor, Verdict
from ingest.questions.compare.matching import TensorPair
from ingest.questions.compare.step_tensors import StepTensors
from workers.model import StepKey
from workers.store.consolidated.blocks import OperatorKey, TensorKey


def one_sided_row(
    steps: tuple[StepKey, StepKey],
    number: int,
    key: TensorKey,
    form: tuple[str, tuple[int, ...]],
    verdict: Verdict,
    *,
    is_a: bool,
) -> ComparedTensor:
    """Return the row of a tensor that the other side does not have.

    Args:
        steps: of A and of B.
        number: the place of the tensor in the order of execution of its side.
        key: its name.
        form: the type of its elements, and its shape.
        verdict: `ONLY_A`, `ONLY_B`, or `IGNORED`.
        is_a: whether A has it.
    """
    dtype, shape = form
    return ComparedTensor(
        key_a=steps[0],
        key_b=steps[1],
        number=number,
        name_a=key.name if is_a else "",
        name_b="" if is_a else key.name,
        graph=key.graph,
        op_type=key.op_type,
        io=key.io,
        dtype_a=dtype if is_a else "",
        dtype_b="" if is_a else dtype,
        shape_a=shape if is_a else None,
        shape_b=None if is_a else shape,
        verdict=verdict,
    )


def counterparts(
    a: StepTensors, b: StepTensors, pairs: Sequence[TensorPair]
) -> dict[tuple[str, OperatorKey], OperatorKey]:
    """Return the counterpart of each operator, by side: the one with which it shares most tensors."""
    shared = Counter((a.keys[pair.a].operator, b.keys[pair.b].operator) for pair in pairs)
    partners: dict[tuple[str, OperatorKey], OperatorKey] = {}
    for (first, second), _ in shared.most_common():
        partners.setdefault(("A", first), second)
        partners.setdefault(("B", second), first)
    return partners
