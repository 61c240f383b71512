"""How a tensor is named."""

from __future__ import annotations


def tensor_name(op_type: str, op_name: str, io: str, slot: int, occurrence: int = 0) -> str:
    """Return the name of a tensor: operator type, operator name, `slot_name`.

    >>> tensor_name("MatMul", "net_MatMul-op0", "output", 0, 2)
    'MatMul.net_MatMul-op0.output.0#2'
    """
    return f"{op_type}.{op_name}.{slot_name(io, slot, occurrence)}"


def slot_name(io: str, slot: int, occurrence: int = 0) -> str:
    """Return the name of a tensor among the tensors of its operator.

    Args:
        io: `input`, `output`, or what else the dump calls it.
        slot: which input or output, from 0.
        occurrence: number of the dump among the dumps of the same slot in one step; 0 is left out.
    """
    return f"{io}.{slot}#{occurrence}" if occurrence else f"{io}.{slot}"
