"""Which call wrote a tensor: the latest earlier one with an output of the same bits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ingest.reader.flow.operator_kinds import is_container


class Caller(Protocol):
    """A call of an operator."""

    @property
    def op_type(self) -> str:
        """The type of the operator."""


class IndexedOperand(Protocol):
    """An input or output of a call."""

    @property
    def row(self) -> int:
        """Its row in the index of its step: rows are in the order of execution."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""


_Call = TypeVar("_Call", bound=Caller)
_Operand = TypeVar("_Operand", bound=IndexedOperand)

#: The latest calls that may have written a tensor, of which the best one is chosen.
_CANDIDATES = 64


def latest_writer(
    reader: _Call, operand: _Operand, writers: Sequence[tuple[_Call, _Operand]], *, ordered: bool
) -> tuple[_Call, _Operand] | None:
    """Return the latest call before an operand that wrote its content, preferably with the same shape.

    Args:
        reader: the call that read the operand; it is never the answer.
        operand: what it read.
        writers: the calls that wrote this content, with the output, by row.
        ordered: whether the rows are in the order of execution. If not, later ones count, too.
    """
    end = bisect_left(writers, operand.row, key=row_of) if ordered else len(writers)
    # Tensors that are NaN all over have equal content. Comparing all pairs of them would take too long.
    near = writers[max(end - _CANDIDATES, 0) : end]
    possible = [written for written in near if written[0] is not reader]

    def preference(candidate: tuple[_Call, _Operand]) -> tuple[bool, bool, int]:
        writer, output = candidate
        return not is_container(writer.op_type), output.shape == operand.shape, output.row

    return max(possible, key=preference, default=None)


def row_of(written: tuple[_Call, _Operand]) -> int:
    """Return the row of an output of a call."""
    return written[1].row
