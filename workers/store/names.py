"""How tensors, and the groups of ranks and steps, are named."""

from __future__ import annotations

import re

#: No other name stands for a number, such as `01`, and none for one that int64 does not hold.
_NUMBER = "(0|[1-9][0-9]{0,17})"
_RANK, _STEP = re.compile(f"rank_{_NUMBER}"), re.compile(f"step_{_NUMBER}")


def rank_named(name: str) -> int | None:
    """Return the rank whose group has this name; None for any other name."""
    match = _RANK.fullmatch(name)
    return None if match is None else int(match[1])


def step_named(name: str) -> int | None:
    """Return the step whose group has this name in the group of its rank; None for any other name."""
    match = _STEP.fullmatch(name)
    return None if match is None else int(match[1])


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
