"""Which elements and bits of the output of a broken operator differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingest.questions.divergence.result import BrokenOperator
from ingest.reader.anatomy.bits import BitDifference
from ingest.reader.compare_bits import compare_bits
from ingest.reader.snapshot import Snapshot
from ingest.reader.tensor import Tensor
from workers.errors import DamagedStore

#: Operators of which elements are read.
_READ = 20


def with_bits(broken: Sequence[BrokenOperator], snapshot: Snapshot) -> tuple[BrokenOperator, ...]:
    """Return operators with the difference of their first outputs; of the first 20, their elements are read.

    Memory: three pieces of both tensors, see `Tensor.pieces`.
    """
    read = [replace(operator, bits=_bits(operator, snapshot)) for operator in broken[:_READ]]
    return (*read, *broken[_READ:])


def _bits(operator: BrokenOperator, snapshot: Snapshot) -> BitDifference | None:
    other = operator.others[0] if operator.others else operator.ranks[1]
    tensors = [_tensor(snapshot, rank, operator) for rank in (operator.ranks[0], other)]
    first, second = tensors
    if first is None or second is None:
        return None
    try:
        return compare_bits(first, second)
    except DamagedStore:
        return None  # `verify` names the damage


def _tensor(snapshot: Snapshot, rank: int, operator: BrokenOperator) -> Tensor | None:
    step = snapshot.step(rank, operator.step)
    if step is None:
        return None
    labels = {"net": operator.net, "graph": operator.graph, "op_name": operator.op_name}
    rows = step.rows(equal={**labels, "op_type": operator.op_type})
    named = (Tensor(step, row) for row in rows)
    return next((tensor for tensor in named if tensor.name == operator.outputs[0]), None)
