"""Fibres: the vectors of a tensor along its last axis (rows) and along the one before (columns).

However a parameter is fused, split, stacked, sharded, transposed or permuted by rows, the fibres along one of
its axes stay whole. Each has a number of 64 bits: the sum, modulo 2**64, of its bit patterns times random odd
coefficients (multilinear hashing; Lemire and Kaser, "Strongly universal string hashing is fast", 2014). It
does not depend on the tensor that a fibre lies in, and columns are summed up block by block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import from_name
from workers.arrays.sharded.assembly import Elements

Array: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = npt.NDArray[np.uint64]

ROWS, COLUMNS = 0, 1
#: Elements of a vector that make a fibre: fused biases are cut at multiples of it.
_OF_VECTOR = 8
#: Shorter fibres do not tell tensors apart.
SHORTEST = 4
#: Elements that are read at once.
_BLOCK = 1 << 20
#: A tensor with fewer different values among its first ones does not tell how it was rounded.
_VARIED, _FIRST = 32, 4096
_NARROW = ("bfloat16", "float16")


def as_blocks(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return how a tensor is looked at: matrices, rows of each, and columns."""
    match shape:
        case (int(length),):
            return (1, length // _OF_VECTOR, _OF_VECTOR) if length % _OF_VECTOR == 0 else (1, 1, length)
        case (rows, columns):
            return 1, rows, columns
        case (blocks, rows, columns):
            return blocks, rows, columns
        case _:
            return 1, shape[0] if shape else 1, math.prod(shape[1:])


def fibres_of(values: Array, axis: int) -> Array:
    """Return the fibres of a tensor along an axis, (fibre, element)."""
    blocks, rows, columns = as_blocks(values.shape)
    cut = values.reshape(blocks, rows, columns)
    return cut.reshape(-1, columns) if axis == ROWS else cut.swapaxes(1, 2).reshape(-1, rows)


def fibre_length(shape: tuple[int, ...], axis: int) -> int:
    """Return how many elements a fibre has."""
    _, rows, columns = as_blocks(shape)
    return columns if axis == ROWS else rows


def fibre_count(shape: tuple[int, ...], axis: int) -> int:
    """Return how many fibres a tensor has."""
    return math.prod(shape) // max(fibre_length(shape, axis), 1)


@lru_cache(maxsize=1)
def _coefficients(count: int) -> Numbers:
    return np.random.default_rng(43).integers(0, 2**64, count, np.uint64) | np.uint64(1)


def _coefficient(count: int) -> Numbers:
    return _coefficients(1 << max(count.bit_length(), 16))[:count]


def zero_number(length: int) -> int:
    """Return the number of a fibre of zeros."""
    return (length * 0x9E3779B97F4A7C15) % 2**64


def rounded(values: Array, dtype: str) -> Array:
    """Return values rounded to a type: to nearest, ties to even."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(from_name(dtype).values.newbyteorder("="), copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Fibres:
    """The numbers of the fibres of one tensor, rounded to one type."""

    dtype: str
    rows: Numbers
    columns: Numbers
    """Of a vector: none."""
    exact: bool
    """Whether the type holds all elements as they are."""

    def along(self, axis: int) -> Numbers:
        """Return the numbers of rows or of columns."""
        return self.rows if axis == ROWS else self.columns


def held_types(elements: Elements, dtype: str, size: int) -> tuple[str, bool]:
    """Return the narrowest type that holds all elements of a float32 tensor; and whether they tell that."""
    if dtype != "float32":
        return dtype, True
    first = elements.read(0, min(size, _FIRST))
    varied = len(np.unique(first)) > _VARIED
    for narrow in _NARROW:
        if _holds(first, narrow) and all(
            _holds(elements.read(*ends), narrow) for ends in pairwise([*range(0, size, _BLOCK), size])
        ):
            return narrow, varied
    return dtype, varied


def _holds(values: Array, dtype: str) -> bool:
    return bool((rounded(values, dtype).astype(values.dtype) == values).all())


def numbers_of(elements: Elements, shape: tuple[int, ...], dtypes: set[str]) -> dict[str, Fibres]:
    """Return the fibres of a tensor rounded to each of some types. Reads every element once, in order."""
    blocks, rows, columns = as_blocks(shape)
    of_rows = {dtype: np.zeros((blocks, rows), np.uint64) for dtype in dtypes}
    of_columns = {dtype: np.zeros((blocks, columns), np.uint64) for dtype in dtypes}
    exact = dict.fromkeys(dtypes, True)
    at_once = max(_BLOCK // max(columns, 1), 1)
    along, across = _coefficient(columns), _coefficient(rows)
    for block in range(blocks):
        for begin in range(0, rows, at_once):
            end = min(begin + at_once, rows)
            values = elements.read((block * rows + begin) * columns, (block * rows + end) * columns)
            for dtype in dtypes:
                cast = rounded(values, dtype)
                exact[dtype] &= _is_kept(cast, values)
                bits = cast.view(f"u{cast.dtype.itemsize}").astype(np.uint64).reshape(end - begin, columns)
                of_rows[dtype][block, begin:end] = bits @ along
                of_columns[dtype][block] += across[begin:end] @ bits
    for dtype in dtypes:
        of_rows[dtype] += np.uint64(zero_number(columns))
        of_columns[dtype] += np.uint64(zero_number(rows))
    has_columns = len(shape) > 1 and rows >= SHORTEST
    return {
        dtype: Fibres(
            dtype,
            of_rows[dtype].reshape(-1),
            of_columns[dtype].reshape(-1) if has_columns else np.zeros(0, np.uint64),
            exact[dtype],
        )
        for dtype in dtypes
    }


def _is_kept(cast: Array, values: Array) -> bool:
    return cast.dtype == values.dtype or bool((cast.astype(values.dtype) == values).all())


class FibreIndex:
    """Finds fibres by their numbers among those of many tensors, rounded to one type."""

    def __init__(self, tensors: list[Fibres]) -> None:
        """Sort the numbers of all rows and columns."""
        sets = [
            (place, axis, each.along(axis)) for place, each in enumerate(tensors) for axis in (ROWS, COLUMNS)
        ]
        numbers = np.concatenate([np.zeros(0, np.uint64), *(of_axis for _, _, of_axis in sets)])
        order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[order]
        self.tensor, self.axis, self.fibre = (
            np.concatenate([np.zeros(0, np.int64), *parts])[order]
            for parts in (
                [np.full(len(of_axis), place) for place, _, of_axis in sets],
                [np.full(len(of_axis), axis) for _, axis, of_axis in sets],
                [np.arange(len(of_axis)) for _, _, of_axis in sets],
            )
        )

    def places(self, numbers: Numbers) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return for each number where its entries begin and end."""
        return np.searchsorted(self._numbers, numbers), np.searchsorted(self._numbers, numbers, "right")
