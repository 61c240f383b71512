"""Tensors in the memory formats of Ascend devices, and the order of their axes on the host.

A device format splits axes into blocks (of 16 channels, say), orders the blocks in its own way, and fills up
the last block of an axis with padding. `workers.arrays.device_formulas` has the formula of each.

Conversion moves bits and does not interpret them. Padding is normally zero; `padding_is_zero` checks it, so
that converting back gives the same bytes again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from workers.arrays.arrangements import (
    INTEGER_SIZES,
    Arrangement,
    Array,
    Box,
    GroupedArrangement,
    Shape,
    byte_ranges,
    cell_type,
    contiguous_run,
)
from workers.arrays.device_formulas import FORMATS, PERMUTED, find_arrangement
from workers.arrays.dtypes import ElementType
from workers.model import MIB


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """How a tensor lay in the memory of the accelerator, if not in the order of its axes."""

    format: str
    """Name of the format, such as `NC1HWC0`."""
    shape: tuple[int, ...]
    """Lengths of the axes in device memory."""
    groups: int = 1
    """Groups of a convolution (`sub_format`), for FRACTAL_Z."""


Payload: TypeAlias = bytes | bytearray | memoryview | Array

#: A slab of 16 MiB that needs more reads than this is not worth it.
_MAX_RANGES = 10_000


def is_known(name: str) -> bool:
    """Return whether tensors in a format, of blocks or of permuted axes, can be brought into host layout."""
    return name in FORMATS or sorted(name) in PERMUTED


def convertible(layout: DeviceLayout, shape: Shape, element: ElementType) -> bool:
    """Return whether `to_host` and `to_device` know the layout, and its shape follows from `shape`."""
    return not element.is_packed and _find(layout, shape) is not None


def to_host(
    payload: Payload, layout: DeviceLayout, shape: Shape, element: ElementType, *, out: Array | None = None
) -> Array:
    """Return a tensor in the order of its axes on the host, without the padding.

    Args:
        payload: the bytes of the tensor in device memory; of an array, its elements in C order.
        layout: how they are arranged there.
        shape: lengths of the axes on the host.
        element: the type of the elements, which must not be packed.
        out: the array to fill: C-contiguous, of this shape and item size. None makes a new array.

    Raises:
        ValueError: the tensor is not `convertible`, or the payload or `out` has another size.
    """
    arrangement = _arrangement(layout, shape)
    cell = cell_type(element.itemsize)
    device = _cells(payload, cell)
    if element.is_packed or device.size != math.prod(layout.shape):
        message = f"{device.size} elements of {element.name} do not make a tensor of shape {layout.shape}"
        raise ValueError(message)
    host: Array = np.empty(shape, element.to_numpy()) if out is None else out
    if host.shape != shape or host.itemsize != element.itemsize or not host.flags.c_contiguous:
        message = f"the output is not a C-contiguous array of {element.name} and shape {shape}"
        raise ValueError(message)
    arrangement.to_host(device, host.reshape(-1).view(cell))
    return host


def to_device(host: Array, layout: DeviceLayout) -> Array:
    """Return a host array as it is in device memory, of shape `layout.shape`; padding is zero.

    Raises:
        ValueError: the tensor is not `convertible`.
    """
    arrangement = _arrangement(layout, host.shape)
    cell = cell_type(host.itemsize)
    device = np.zeros(math.prod(layout.shape), cell)
    arrangement.to_device(_cells(host, cell), device)
    return device.view(host.dtype).reshape(layout.shape)


def padding_is_zero(payload: Payload, host: Array) -> bool:
    """Return whether `to_device` turns `host` back into the same payload that `to_host` made it from.

    Each host element is one device element, and the others are padding. All padding is zero if both sides
    have the same number of elements with any bit set.
    """
    cell = cell_type(host.itemsize) if host.itemsize in INTEGER_SIZES else np.dtype(np.uint8)
    device, elements = _cells(payload, cell), _cells(host, cell)
    return device.size == elements.size or np.count_nonzero(device) == np.count_nonzero(elements)


@dataclass(frozen=True, slots=True)
class Slab:
    """A run of a host array in C order, and the pieces of the device payload that hold it.

    The slabs of a tensor, one after the other, are the whole host array. Each byte of the payload, padding
    included, belongs to exactly one of them.
    """

    ranges: tuple[tuple[int, int], ...]
    """(offset, nbytes) of the pieces of the payload, in ascending order."""
    size: int
    """Elements of the host array."""
    arrangement: Arrangement
    """That of the pieces, joined in their order."""

    @property
    def nbytes(self) -> int:
        """Bytes of the pieces together."""
        return sum(nbytes for _, nbytes in self.ranges)

    def to_host(self, pieces: Payload, element: ElementType) -> Array:
        """Return the next `size` elements of the host array, 1-D, from the joined pieces."""
        host = np.empty(self.size, element.to_numpy())
        cell = cell_type(element.itemsize)
        self.arrangement.to_host(_cells(pieces, cell), host.view(cell))
        return host


def slabs(
    layout: DeviceLayout, shape: Shape, element: ElementType, limit_nbytes: int
) -> Iterator[Slab] | None:
    """Return the slabs by which a tensor of any size can be converted in bounded memory.

    Args:
        layout: how the tensor is arranged in device memory.
        shape: lengths of the axes on the host.
        element: the type of the elements, which must not be packed.
        limit_nbytes: bytes of the payload that a slab may take; its host bytes are not more.

    Returns:
        The slabs in the order of the host array. None if the tensor is not `convertible`, or cannot be cut:
        grouped FRACTAL_Z; C1HWNCoC0; an axis whose blocks are larger than the limit (16 outputs of FRACTAL_Z
        with all their channels and places); too many pieces that are too small.
    """
    arrangement = _find(layout, shape) if not element.is_packed else None
    if not isinstance(arrangement, Arrangement) or arrangement.strides:
        return None
    limit = limit_nbytes // element.itemsize
    axis = arrangement.axis_to_cut(limit)
    if axis is None:
        return None
    blocks = max(limit // max(arrangement.block_size(axis), 1), 1)
    for box, _ in arrangement.cut(axis, blocks):
        count, size, _ = contiguous_run(arrangement.device, box)
        if count > 1 and _MAX_RANGES * size * element.itemsize < 16 * MIB:
            return None
        break
    return _slabs(arrangement, arrangement.cut(axis, blocks), element.itemsize)


def _slabs(whole: Arrangement, cuts: Iterator[tuple[Box, Shape]], itemsize: int) -> Iterator[Slab]:
    for box, host in cuts:
        part = Arrangement(tuple(stop - start for start, stop in box), host, whole.parts)
        yield Slab(tuple(byte_ranges(whole.device, box, itemsize)), math.prod(host), part)


def _find(layout: DeviceLayout, shape: Shape) -> Arrangement | GroupedArrangement | None:
    return find_arrangement(layout.format, layout.shape, shape, groups=layout.groups)


def _arrangement(layout: DeviceLayout, shape: Shape) -> Arrangement | GroupedArrangement:
    arrangement = _find(layout, shape)
    if arrangement is None:
        message = f"{layout.format} of shape {layout.shape} is not known as a layout of shape {shape}"
        raise ValueError(message)
    return arrangement


def _cells(data: Payload, cell: np.dtype[Any]) -> Array:
    """Return the elements of a payload as a 1-D array."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, cell)
