"""Which elements and bits of the output of a broken operator differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingest.questions.divergence.result import BrokenOperator
from ingest.reader.compare_bits import BitDifference, compare_bits
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import COLUMNS
from ingest.reader.tensor import Tensor
from ingest.reader.tensor_filter import TensorFilter

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
    return compare_bits(first, second)


def _tensor(snapshot: Snapshot, rank: int, operator: BrokenOperator) -> Tensor | None:
    step = snapshot.step(rank, operator.step)
    if step is None:
        return None
    name = operator.outputs[0]
    choice = TensorFilter({"graph": operator.graph, "op_type": operator.op_type, "name": name}, COLUMNS)
    named = (Tensor(step, row) for row in step.rows(choice))
    return next((tensor for tensor in named if (tensor.net, tensor.name) == (operator.net, name)), None)
