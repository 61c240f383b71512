"""Parts of an array of the consolidated view: the objects that they consist of, and the elements in these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.store.consolidated.cubes import GROUP
from workers.store.consolidated.nd_arrays import ArrayLayout

#: Chunks that are requested at once, so that those in flight take little memory beside a decoded cube.
_CHUNKS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """What is read of an array: all of it, or its chunks at one position along its first axis."""

    layout: ArrayLayout
    shape: tuple[int, ...]
    keys: Mapping[tuple[int, ...], str]
    """The objects of its chunks, by their positions in the part."""
    first: int
    """Position of its first chunk along the first axis."""

    @classmethod
    def of(cls, layout: ArrayLayout, shape: tuple[int, ...], first: int | None = None) -> ArrayPart:
        """Return an array of this shape; with `first`, only its chunks at that position of the first axis."""
        shift = first or 0
        indexes = layout.keys(shape if first is None else (layout.chunk[0], *shape[1:]))
        keys = {index: f"{GROUP}/{layout.key((index[0] + shift, *index[1:]))}" for index in indexes}
        return cls(layout, shape, keys, shift)

    def decode(self, objects: Mapping[str, bytes]) -> npt.NDArray[Any]:
        """Return the part from its objects.

        Raises:
            DamagedStore: one is damaged.
        """
        if len(self.keys) == 1:
            ((_, key),) = self.keys.items()
            return self.layout.decode(objects.get(key), key)[tuple(map(slice, self.shape))]
        whole = np.empty(self.shape, self.layout.dtype)
        for index, key in self.keys.items():
            target = whole[
                tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, self.layout.chunk, strict=True))
            ]
            target[...] = self.layout.decode(objects.get(key), key)[tuple(map(slice, target.shape))]
        return whole


def batches(parts: Mapping[str, ArrayPart]) -> Iterator[dict[str, ArrayPart]]:
    """Yield parts that are requested at once: of few chunks together, or a large one alone."""
    batch: dict[str, ArrayPart] = {}
    chunks = 0
    for name, part in parts.items():
        if batch and chunks + len(part.keys) > _CHUNKS_AT_ONCE:
            yield batch
            batch, chunks = {}, 0
        batch[name] = part
        chunks += len(part.keys)
    yield batch
