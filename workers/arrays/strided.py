"""Tensors that are views: their elements are picked from a run of bytes by strides.

PyTorch, `torch/_utils.py`: element (i, j, ...) of a tensor is at storage_offset + i * stride[0] + j *
stride[1] + ... Strides are never negative, and zero for an axis that was expanded.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workers.arrays.arrangements import Array, Shape, cell_type
from workers.arrays.dtypes import COMPLEX32, ElementType
from workers.model import Positional


@dataclass(frozen=True, slots=True)
class StridedView(Positional):
    """How the elements of a tensor are picked from the bytes of a file."""

    strides: tuple[int, ...] | None = None
    """Bytes from one position to the next, for each axis. None: the elements lie one after the other."""
    base: int = -1
    """Where the payload of the same element type begins in the file that contains all elements, one after
    the other; -1 if there is none, so that the elements are stored once more."""
    conjugate: bool = False
    negative: bool = False
    """Whether the elements are the conjugates, or the negatives, of what is in the file."""
    inline: bytes = b""
    """The elements, if the file does not have them as they are: those of an array of numpy in a pickle."""
    deflated: int = 0
    """Compressed bytes in the file that hold the elements (RFC 1951); 0 if they are not compressed."""
    skipped: int = 0
    """Decompressed bytes before the elements."""


def span_nbytes(shape: Shape, strides: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes from the first element of a view to the end of the last."""
    if 0 in shape:
        return 0
    return sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + itemsize


def gather(span: bytes | bytearray, view: StridedView, shape: Shape, element: ElementType) -> Array:
    """Return the elements of a view as an array in C order.

    Args:
        span: the bytes from its first element on.
        view: where its elements are in them.
        shape: lengths of the axes.
        element: the type of the elements, which must not be packed.

    Raises:
        ValueError: the bytes are too few.
    """
    cell = cell_type(element.itemsize)
    if 0 in shape:
        return np.zeros(shape, element.to_numpy())
    strided: Array = np.ndarray(shape, cell, span, strides=view.strides)
    values: Array = np.array(strided, order="C", copy=True).reshape(shape).view(element.to_numpy())
    return _resolved(values, view)


def can_resolve(view: StridedView, element: ElementType) -> bool:
    """Return whether elements of a type can be conjugated and negated as a view says."""
    try:
        _resolved(np.zeros(1, element.to_numpy()), view)
    except TypeError:
        return False
    return True


def _resolved(values: Array, view: StridedView) -> Array:
    """Return elements of the same type and byte order, conjugated and negated as a view says."""
    dtype = values.dtype
    if dtype.names == COMPLEX32.names:
        pairs = values.view(dtype["real"]).reshape(*values.shape, 2)
        signs = np.array([-1 if view.negative else 1, -1 if view.conjugate != view.negative else 1], "f2")
        resolved: Array = (pairs * signs).astype(dtype["real"]).view(dtype).reshape(values.shape)
        return resolved
    if view.conjugate:
        values = np.conjugate(values)
    if view.negative:
        values = np.negative(values)
    return values.astype(dtype, copy=False)  # numpy returns its own byte order


def inflate(compressed: bytes | bytearray, nbytes: int) -> bytes:
    """Decompress to exactly `nbytes`. Never makes more than that.

    Raises:
        ValueError: it is damaged, or has another length.
    """
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = decompressor.decompress(compressed, nbytes + 1)
    except zlib.error as exc:
        raise ValueError(str(exc)) from exc
    if len(content) != nbytes:
        message = (
            f"{'more than ' if len(content) > nbytes else ''}{min(len(content), nbytes)} bytes, not {nbytes}"
        )
        raise ValueError(message)
    return content


def elements_of(
    read: Callable[[int, int], bytes | bytearray], view: StridedView, shape: Shape, element: ElementType
) -> memoryview:
    """Return the elements of a view, one after the other.

    Args:
        read: returns bytes of the file, given where they begin behind the first one, and how many they are.
        view: where the elements are.
        shape: lengths of the axes.
        element: their type.

    Raises:
        ValueError: they cannot be decompressed, or are too few.
    """
    nbytes = element.nbytes(math.prod(shape))
    if view.inline:
        return memoryview(view.inline)
    if view.deflated:
        return memoryview(inflate(read(0, view.deflated), view.skipped + nbytes))[view.skipped :]
    if view.strides is None:
        return memoryview(read(0, nbytes))
    values = gather(read(0, span_nbytes(shape, view.strides, element.itemsize)), view, shape, element)
    return values.reshape(-1).view(np.uint8).data
