"""Pieces of tensors that are in memory, for what reads them by range."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from workers.arrays.sharded.placement_search import Pieces, Search, search

Values = np.ndarray[Any, Any]


class InMemory:
    """The elements of an array, in C order."""

    def __init__(self, values: Values) -> None:
        self.values = np.ascontiguousarray(values).reshape(-1)
        self.read_elements = 0

    def read(self, start: int, stop: int) -> Values:
        self.read_elements += stop - start
        return self.values[start:stop]


def elements(arrays: Sequence[Values]) -> list[InMemory]:
    return [InMemory(array) for array in arrays]


def pieces_of(arrays: Sequence[Values]) -> Pieces:
    first: dict[object, int] = {}
    twins = tuple(first.setdefault((a.shape, a.tobytes()), number) for number, a in enumerate(arrays))
    return Pieces(tuple(a.shape for a in arrays), twins)


def search_in(a: Sequence[Values], b: Sequence[Values]) -> Search:
    """Search how the pieces of A and B make up the same tensor."""
    return search(pieces_of(a), pieces_of(b), elements(a), elements(b))
