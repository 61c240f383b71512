"""Tensors in the memory formats of Ascend devices, and the order of their axes on the host.

A device format splits axes into blocks (of 16 channels, say), orders the blocks in its own way, and fills up
the last block of an axis with padding. The length of the innermost block, C0, is always that of the last
device axis: it depends on the type, the processor and the version. (MindSpore 2.5,
`ms_device_shape_transfer.cc`; CANN GE, `formats/format_transfers`; msProbe, `builtin_format_convert`.)

The device shape is verified against the host shape by the formula of the format. If a format serves several
orders of the host's axes (NCHW or NHWC), the first one that fits is taken, in the order of MindSpore and
PyTorch.

Conversion moves bits and does not interpret them. Padding is normally zero; `padding_is_zero` checks it, so
that converting back gives the same bytes again.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
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
    nested_strides,
)
from workers.arrays.dtypes import ElementType
from workers.model import MIB, ceil_div


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """How a tensor lay in the memory of the accelerator, if not in the order of its axes."""

    format: str
    """Name of the format, such as `NC1HWC0`."""
    shape: tuple[int, ...]
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
        raise ValueError(
            f"{device.size} elements of {element.name} do not make a tensor of shape {layout.shape}"
        )
    host: Array = np.empty(shape, element.to_numpy()) if out is None else out
    if host.shape != shape or host.itemsize != element.itemsize or not host.flags.c_contiguous:
        raise ValueError(f"the output is not a C-contiguous array of {element.name} and shape {shape}")
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


def _arrangement(layout: DeviceLayout, shape: Shape) -> Arrangement | GroupedArrangement:
    arrangement = _find(layout, shape)
    if arrangement is None:
        raise ValueError(f"{layout.format} of shape {layout.shape} is not known as a layout of shape {shape}")
    return arrangement


def _cells(data: Payload, cell: np.dtype[Any]) -> Array:
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, cell)


Candidate: TypeAlias = tuple[Shape, Arrangement | GroupedArrangement]
"""The device shape that a host shape should have, and how it is arranged then."""

#: Rows of a block of the FRACTAL formats.
_ROWS = 16
#: Larger shapes, which numpy could not even name, are those of damaged headers.
_MAX_ELEMENTS = 2**56


def _find(layout: DeviceLayout, host: Shape) -> Arrangement | GroupedArrangement | None:
    """Return the arrangement of a host array in device memory; None if format and shapes do not fit.

    The lengths of axes may be any numbers, as in damaged headers.
    """
    name, device, groups = layout.format, layout.shape, layout.groups
    if not _is_plausible(device, host):
        return None
    if groups > 1:
        candidates = _grouped(device, host, groups) if name == "FRACTAL_Z" else iter(())
    elif name in FORMATS:
        candidates = FORMATS[name](device, host)
    else:
        candidates = _permuted(name, device, host)
    return next((arrangement for expected, arrangement in candidates if expected == device), None)


def _is_plausible(device: Shape, host: Shape) -> bool:
    if not device or not host or len(host) > 32 or min(*device, *host) < 0:
        return False
    if max(math.prod(max(length, 1) for length in lengths) for lengths in (device, host)) > _MAX_ELEMENTS:
        return False
    return (0 in device) == (0 in host)


def _images(shape: Shape) -> Iterator[tuple[Shape, str]]:
    """Yield a host shape as one of images or weights, with the names of its axes; MindSpore's order first."""
    if len(shape) == 4:
        yield from ((shape, order) for order in ("NCHW", "NHWC", "HWCN"))
    elif 1 <= len(shape) < 4:
        yield (1, *shape, *(1 for _ in range(3 - len(shape)))), "NCHW"


def _volumes(shape: Shape) -> Iterator[tuple[Shape, str]]:
    if len(shape) == 5:
        yield from ((shape, order) for order in ("NCDHW", "NDHWC", "DHWCN"))


def _arranged(
    shape: Shape, order: str, device: dict[str, int], parts: dict[str, str], strides: Shape = ()
) -> Arrangement:
    """Return an arrangement by the names of axes.

    Args:
        shape: the lengths of the axes on the host.
        order: the names of its axes, a letter each.
        device: length of each axis in device memory, by name.
        parts: the names of the device axes of each host axis that is not a device axis itself.
        strides: of the device axes, if they are not nested in C order.
    """
    names = list(device)
    indices = tuple(tuple(names.index(part) for part in parts.get(axis, axis).split()) for axis in order)
    return Arrangement(tuple(device.values()), shape, indices, strides)


def _channels_in_blocks(device: Shape, shape: Shape, order: str) -> Iterator[Candidate]:
    """Yield what NC1HWC0 makes of images, and NDC1HWC0 of volumes: the channels in blocks of C0."""
    names = re.findall(r"[A-Z]\d?", order)
    c0 = device[-1] if len(device) == len(names) else 0
    for padded, host in (_volumes(shape) if "D" in names else _images(shape)) if c0 else ():
        length = dict(zip(host, padded, strict=True))
        split = {name: length.get(name, c0) for name in names} | {"C1": ceil_div(length["C"], c0)}
        if host not in ("HWCN", "DHWCN"):
            yield tuple(split.values()), _arranged(padded, host, split, {"C": "C1 C0"})


def _fractal_z(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _images(shape) if c0 else ():
        n, c, h, w = (padded[order.index(axis)] for axis in "NCHW")
        split = {"C1": ceil_div(c, c0), "H": h, "W": w, "N1": ceil_div(n, _ROWS), "N0": _ROWS, "C0": c0}
        expected = (split["C1"] * h * w, split["N1"], _ROWS, c0)
        yield expected, _arranged(padded, order, split, {"C": "C1 C0", "N": "N1 N0"})


def _weights_3d(device: Shape, shape: Shape, *, rows: str, columns: str) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _volumes(shape) if c0 else ():
        length = dict(zip(order, padded, strict=True))
        row_blocks, column_blocks = ceil_div(length[rows], _ROWS), ceil_div(length[columns], c0)
        d, h, w = (length[axis] for axis in "DHW")
        split = {"D": d, "K1": column_blocks, "H": h, "W": w, "M1": row_blocks, "M0": _ROWS, "K0": c0}
        expected = (d * column_blocks * h * w, row_blocks, _ROWS, c0)
        yield expected, _arranged(padded, order, split, {columns: "K1 K0", rows: "M1 M0"})


def _fractal_z_c04(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _images(shape) if c0 and c0 % 4 == 0 else ():
        n, c, h, w = padded
        if order == "NCHW" and c <= 4:
            # H and W are one axis; a block of it holds C0 / 4 places with four channels each.
            split = {
                "K1": ceil_div(4 * h * w, c0),
                "N1": ceil_div(n, _ROWS),
                "N0": _ROWS,
                "K0": c0 // 4,
                "C": 4,
            }
            expected = (split["K1"], split["N1"], _ROWS, c0)
            yield expected, _arranged((n, c, h * w), "NCK", split, {"N": "N1 N0", "K": "K1 K0"})


def _matrix_in_blocks(device: Shape, shape: Shape, order: str) -> Iterator[Candidate]:
    """Yield what FRACTAL_NZ (K1 M1 M0 K0) and FRACTAL_ZZ (M1 K1 M0 K0) make of matrices."""
    is_nz = order.startswith("K1")
    shape = (1, *shape) if is_nz and len(shape) == 1 else shape
    if len(shape) < 2 or len(device) < 2:
        return
    *batch, m, k = shape
    m0, k0 = (_ROWS if is_nz else device[-2]), device[-1]
    if m0 and k0:
        blocks = {"K1": ceil_div(k, k0), "M1": ceil_div(m, m0), "M0": m0, "K0": k0}
        split = {"B": math.prod(batch)} | {name: blocks[name] for name in order.split()}
        expected = (*batch, *tuple(split.values())[1:])
        yield expected, _arranged((split["B"], m, k), "BMK", split, {"M": "M1 M0", "K": "K1 K0"})


def _c1hwncoc0(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 6 else 0
    for padded, order in _images(shape) if c0 else ():
        n, c, h, w = (padded[order.index(axis)] for axis in "NCHW")
        split = {"C1": ceil_div(c, c0), "H": h, "W": w, "N": n, "C0": c0}
        expected = (split["C1"], h, w, n, c0, c0)
        # Only the diagonal of each square of C0 x C0 is data.
        *outer, _, _ = nested_strides(expected)
        strides = (*outer, c0 + 1)
        yield expected, _arranged(padded, order, split, {"C": "C1 C0"}, strides)


def _grouped(device: Shape, shape: Shape, groups: int) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    if not c0 or len(shape) != 4 or not all(shape) or shape[0] % groups:
        return
    n, channels, h, w = shape
    outputs = n // groups
    per_block = min(math.lcm(math.lcm(channels, c0) // channels, math.lcm(outputs, _ROWS) // outputs), groups)
    c1, n1 = ceil_div(per_block * channels, c0), ceil_div(per_block * outputs, _ROWS)
    blocks = ceil_div(groups, per_block)
    split = (blocks, c1, h, w, n1 * _ROWS, c0)
    expected = (blocks * c1 * h * w, n1, _ROWS, c0)
    yield expected, GroupedArrangement(split, (groups, outputs, channels, h, w), per_block)


def _permuted(name: str, device: Shape, shape: Shape) -> Iterator[Candidate]:
    """Yield the arrangements that only permute the axes; such a format is named after its order."""
    targets = [(shape, "NC"), *itertools.islice(_images(shape), 1), *itertools.islice(_volumes(shape), 1)]
    for padded, order in targets:
        if sorted(name) == sorted(order) and len(padded) == len(order):
            split = {axis: padded[order.index(axis)] for axis in name}
            yield tuple(split.values()), _arranged(padded, order, split, {})
    if sorted(name) in PERMUTED:
        # The framework has its axes in the same order.
        yield shape, Arrangement(device, shape, tuple((axis,) for axis in range(len(shape))))


#: The axes, sorted, of formats that only permute them.
PERMUTED = [sorted(order) for order in ("NC", "NCHW", "NCDHW")]
#: The other formats: functions of the device shape and the host shape.
FORMATS: dict[str, Callable[[Shape, Shape], Iterator[Candidate]]] = {
    "NC1HWC0": partial(_channels_in_blocks, order="NC1HWC0"),
    "NC1HWC0_C04": lambda device, shape: (
        _channels_in_blocks(device, shape, "NC1HWC0") if device[-1:] == (4,) else iter(())
    ),
    "NDC1HWC0": partial(_channels_in_blocks, order="NDC1HWC0"),
    "FRACTAL_Z": _fractal_z,
    "FRACTAL_Z_3D": partial(_weights_3d, rows="N", columns="C"),
    "FRACTAL_Z_3D_TRANSPOSE": partial(_weights_3d, rows="C", columns="N"),
    "FRACTAL_Z_C04": _fractal_z_c04,
    "FRACTAL_NZ": partial(_matrix_in_blocks, order="K1 M1 M0 K0"),
    "FRACTAL_ZZ": partial(_matrix_in_blocks, order="M1 K1 M0 K0"),
    "C1HWNCoC0": _c1hwncoc0,
}
