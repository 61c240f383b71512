"""A bias that every rank adds before a reduction, so that the sum has it once for each rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.placement.equal_holders import EqualHolders
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.reader.parallel.told_placement import Told
from workers.arrays.comparison import is_real
from workers.arrays.dtypes import from_name
from workers.arrays.sharded.assembly import widened
from workers.errors import DamagedStore
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.operands import Operand, elements_of

#: The most elements of an output that is looked at.
_MAX_SIZE = 4 * 1024 * 1024
#: How far the rest may be from a bias, relative to it.
_CLOSE = 1e-3
#: How many tensors behind a partial sum are tried as its reduction.
AHEAD = 4

_Values = npt.NDArray[np.float64]


def find_repeated_biases(
    held: HeldTensors, holders_of: Mapping[int, EqualHolders]
) -> Iterator[LayoutFinding]:
    """Yield outputs that are the sum of what ranks hold and a multiple of a bias, which should be there once.

    Looked at are tensors that the dump tells to be partial sums, or that are named so.
    """
    for number, holders in holders_of.items():
        if (
            not holders.is_distinct
            or not is_partial(held.keys[number], held.told(number))
            or len(set(held.shapes(number))) > 1
        ):
            continue
        for output in range(number + 1, min(number + 1 + AHEAD, len(held.keys))):
            is_like = held.shapes(output)[0] == held.shapes(number)[0]
            if is_like and holders_of[output].is_replicated:
                if text := _repeated(held, number, output, holders_of):
                    ranks = tuple(holder.rank for holder in held.holders[output])
                    name = held.keys[output].name
                    yield LayoutFinding(held.step, ranks, name, "bias on every rank", text)
                break


def is_partial(key: TensorKey, told: Told) -> bool:
    """Return whether ranks hold partial sums: the dump tells it, or its name does."""
    return "partial sum" in told.values() or "partial" in key.op_name


def is_bias(key: TensorKey) -> bool:
    """Return whether a tensor is a bias, by its name."""
    name = f"{key.op_type}.{key.op_name}".lower()
    return "bias" in name and "grad" not in name


def _repeated(held: HeldTensors, number: int, output: int, holders_of: Mapping[int, EqualHolders]) -> str:
    """Describe the repeated bias in an output; "" if there is none, or if the output cannot be read."""
    shape = held.shapes(output)[0]
    if not shape or not 0 < math.prod(shape) <= _MAX_SIZE or not _have_real_elements(held, number, output):
        return ""
    parts = _read([*held.operands(number), held.operands(output)[0]], math.prod(shape))
    if not parts:
        return ""
    rest = (parts[-1] - sum(parts[:-1])).reshape(-1, shape[-1])
    if not np.abs(rest - rest[0]).max() <= _CLOSE * max(np.abs(rest).max(), 1e-30):
        return ""
    for bias in _biases(held, shape[-1], holders_of):
        values = _read(held.operands(bias)[:1], shape[-1])
        times = _times(rest[0], values[0]) if values else 0
        if times > 1:
            return (
                f"it is the sum of {held.keys[number].name} over ranks and {times} times "
                f"{held.keys[bias].name}: every rank adds the bias before the reduction"
            )
    return ""


def _biases(held: HeldTensors, length: int, holders_of: Mapping[int, EqualHolders]) -> Iterator[int]:
    for number, key in enumerate(held.keys):
        is_fitting = is_bias(key) and held.shapes(number)[0] == (length,)
        if is_fitting and holders_of[number].is_replicated and _have_real_elements(held, number):
            yield number


def _have_real_elements(held: HeldTensors, *numbers: int) -> bool:
    """Return whether elements of these tensors are in the store, and are real numbers, on all ranks."""
    return not any(map(held.is_removed, numbers)) and all(
        side.dumped[number] and is_real(from_name(side.dtypes[number]))
        for tensor in numbers
        for side, number in ((held.ranks[holder.rank], holder.number) for holder in held.holders[tensor])
    )


def _read(operands: Sequence[Operand], size: int) -> list[_Values]:
    """Return the elements of operands; none if one cannot be read: whoever verifies it names the damage."""
    try:
        return [widened(elements.read(0, size)) for elements in elements_of(operands)]
    except (DamagedStore, ValueError):
        return []


def _times(rest: _Values, bias: _Values) -> int:
    """Return how many times a bias the rest is; 0 if it is not a multiple of it."""
    norm = float(bias @ bias)
    if not norm:
        return 0
    factor = float(rest @ bias) / norm
    whole = round(factor)
    apart = float(np.linalg.norm(rest - whole * bias))
    return whole if whole and apart <= _CLOSE * abs(whole) * math.sqrt(norm) else 0
