"""Tensors in the memory formats of Ascend devices, and the order of their axes on the host.

A device format splits axes into blocks (16 channels, say), orders the blocks in its own way and fills up the
last one. Formulas: MindSpore 2.5, `ms_device_shape_transfer.cc`; CANN GE, `formats/format_transfers`;
msProbe, `builtin_format_convert`. The length of the innermost block, C0, is always that of the last device
axis: it depends on the type, the processor and the version.

A device shape is verified against the host shape by the formula of its format. Where a format serves several
orders of the host's axes (NCHW or NHWC), the first in the order of MindSpore and PyTorch that fits is taken.

Conversion moves bits and interprets none. Padding is zero; that `padding_is_zero` tells whether converting
back would give the same bytes again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import ElementType


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """How a tensor lay in the memory of the accelerator, where that is not the order of its axes."""

    format: str
    """Name of the format, such as `NC1HWC0`."""
    shape: tuple[int, ...]
    """Lengths of the axes in device memory."""
    groups: int = 1
    """Groups of a convolution (`sub_format`), for FRACTAL_Z."""


Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Payload: TypeAlias = bytes | bytearray | memoryview | Array
Box: TypeAlias = tuple[tuple[int, int], ...]
"""The first place and the one behind the last, for each axis."""

#: Rows of a block of the FRACTAL formats.
_ROWS = 16
#: Larger shapes, which numpy could not even name, are those of damaged headers.
_MAX_ELEMENTS = 2**56
#: A slab of 16 MiB that needs more reads than these is not worth it.
_MAX_RANGES = 10_000
_MIB = 1024 * 1024
#: Item sizes of which there are unsigned integers.
_COUNTABLE = (1, 2, 4, 8)
#: Bytes that are copied as one element, at most.
_LARGEST_CELL = 4096


def is_known(name: str) -> bool:
    """Whether tensors in a format can be brought into host layout: one of blocks, or of permuted axes."""
    return name in _FORMATS or sorted(name) in _ORDERS


def convertible(layout: DeviceLayout, shape: Shape, element: ElementType) -> bool:
    """Whether `to_host` and `to_device` know the layout, and its shape is what `shape` makes of it."""
    return not element.is_packed and _find(layout, shape) is not None


def to_host(
    payload: Payload, layout: DeviceLayout, shape: Shape, element: ElementType, *, out: Array | None = None
) -> Array:
    """Return a tensor in the order of its axes on the host, without the padding.

    Args:
        payload: the bytes of the tensor in device memory; of an array, its elements in C order.
        layout: how they lie there.
        shape: lengths of the axes on the host.
        element: of any type that is not packed.
        out: where the result goes: C-contiguous, of this shape and item size. None makes a new array.

    Raises:
        ValueError: the tensor is not `convertible`, or the payload or `out` has another size.
    """
    arrangement = _found(layout, shape)
    cell = _cell(element.itemsize)
    device = _cells(payload, cell)
    if element.is_packed or device.size != math.prod(layout.shape):
        message = f"{device.size} elements of {element.name} are no tensor of shape {layout.shape}"
        raise ValueError(message)
    host: Array = np.empty(shape, element.to_numpy()) if out is None else out
    if host.shape != shape or host.itemsize != element.itemsize or not host.flags.c_contiguous:
        message = f"the output is no C-contiguous array of {element.name} and shape {shape}"
        raise ValueError(message)
    arrangement.to_host(device, host.reshape(-1).view(cell))
    return host


def to_device(host: Array, layout: DeviceLayout) -> Array:
    """Return a host array as it lies in device memory, of shape `layout.shape`; padding is zero.

    Raises:
        ValueError: the tensor is not `convertible`.
    """
    arrangement = _found(layout, host.shape)
    cell = _cell(host.itemsize)
    device = np.zeros(math.prod(layout.shape), cell)
    arrangement.to_device(_cells(host, cell), device)
    return device.view(host.dtype).reshape(layout.shape)


def padding_is_zero(payload: Payload, host: Array) -> bool:
    """Whether `to_device` makes of `host` the same bytes that `to_host` made it of, not one bit lost.

    Each host element is one device element, and the others are padding: all of them are zero when both sides
    have as many elements with any bit set.
    """
    cell = _cell(host.itemsize) if host.itemsize in _COUNTABLE else np.dtype(np.uint8)
    device, elements = _cells(payload, cell), _cells(host, cell)
    return device.size == elements.size or np.count_nonzero(device) == np.count_nonzero(elements)


@dataclass(frozen=True, slots=True)
class Slab:
    """A run of a host array in C order, and the pieces of the device payload that hold it.

    The slabs of a tensor, one after the other, are the whole host array; each byte of the payload, padding
    too, belongs to exactly one of them.
    """

    ranges: tuple[tuple[int, int], ...]
    """(offset, nbytes) of the pieces of the payload, in ascending order."""
    size: int
    """Elements of the host array."""
    arrangement: _Arrangement
    """Of the pieces, joined in their order."""

    @property
    def nbytes(self) -> int:
        """Bytes of the pieces together."""
        return sum(nbytes for _, nbytes in self.ranges)

    def to_host(self, pieces: Payload, element: ElementType) -> Array:
        """Return the next `size` elements of the host array, 1-D, from the joined pieces."""
        host = np.empty(self.size, element.to_numpy())
        cell = _cell(element.itemsize)
        self.arrangement.to_host(_cells(pieces, cell), host.view(cell))
        return host


def slabs(
    layout: DeviceLayout, shape: Shape, element: ElementType, limit_nbytes: int
) -> Iterator[Slab] | None:
    """Return the slabs by which a tensor of any size is converted in bounded memory.

    Args:
        layout: how the tensor lies in device memory.
        shape: lengths of the axes on the host.
        element: of any type that is not packed.
        limit_nbytes: bytes of the payload that a slab may take; its host bytes are not more.

    Returns:
        The slabs in the order of the host array. None where the tensor is not `convertible`, or cannot be
        cut: grouped FRACTAL_Z; C1HWNCoC0; a block larger than the limit of an axis that is in blocks (16
        outputs of FRACTAL_Z, all their channels and places); pieces that are too many and too small.
    """
    arrangement = _find(layout, shape) if not element.is_packed else None
    if not isinstance(arrangement, _Arrangement) or arrangement.strides:
        return None
    limit = limit_nbytes // element.itemsize
    axis = arrangement.axis_to_cut(limit)
    if axis is None:
        return None
    blocks = max(limit // max(arrangement.block_size(axis), 1), 1)
    for box, _ in arrangement.cut(axis, blocks):
        count, size, _ = _run(arrangement.device, box)
        if count > 1 and _MAX_RANGES * size * element.itemsize < 16 * _MIB:
            return None
        break
    return _slabs(arrangement, arrangement.cut(axis, blocks), element.itemsize)


def _slabs(whole: _Arrangement, cuts: Iterator[tuple[Box, Shape]], itemsize: int) -> Iterator[Slab]:
    for box, host in cuts:
        part = _Arrangement(tuple(stop - start for start, stop in box), host, whole.parts)
        yield Slab(tuple(_ranges(whole.device, box, itemsize)), math.prod(host), part)


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """Where each element of a host array is, if an axis of the host is one or two of the device."""

    device: Shape
    """Lengths of the axes in device memory, blocks apart."""
    host: Shape
    """Lengths of the axes on the host; adjacent ones may be taken as one."""
    parts: tuple[Shape, ...]
    """For each axis of the host, the axes of the device that it is spread over: blocks, then within one."""
    strides: Shape = ()
    """Of the axes in device memory, in elements, where they are not simply nested."""

    def to_host(self, device: Array, host: Array) -> None:
        """Fill a 1-D host array."""
        for shape, (host_at, host_strides), (device_at, device_strides) in self._boxes():
            _copy(shape, (host, host_at, host_strides), (device, device_at, device_strides))

    def to_device(self, host: Array, device: Array) -> None:
        """Fill a 1-D device array, but for the padding."""
        for shape, (host_at, host_strides), (device_at, device_strides) in self._boxes():
            _copy(shape, (device, device_at, device_strides), (host, host_at, host_strides))

    def _boxes(self) -> Iterator[tuple[Shape, tuple[int, Shape], tuple[int, Shape]]]:
        """Yield boxes that cover the host: shape, and first element and strides on either side."""
        if not math.prod(self.host):
            return
        device_strides = self.strides or _nested(self.device)
        ways = [
            _stretches(length, [(self.device[axis], device_strides[axis]) for axis in parts], stride)
            for length, parts, stride in zip(self.host, self.parts, _nested(self.host), strict=True)
        ]
        for box in itertools.product(*ways):
            dims = [dim for stretch in box for dim in stretch.dims]
            yield (
                tuple(length for length, _, _ in dims),
                (sum(stretch.host_at for stretch in box), tuple(stride for _, stride, _ in dims)),
                (sum(stretch.device_at for stretch in box), tuple(stride for _, _, stride in dims)),
            )

    def block_size(self, axis: int) -> int:
        """Return the device elements of one block of a host axis, at one place of the axes before it."""
        before = {part for parts in self.parts[:axis] for part in parts} | {self.parts[axis][0]}
        return math.prod(length for part, length in enumerate(self.device) if part not in before)

    def axis_to_cut(self, limit: int) -> int | None:
        """Return the axis of the host to cut, with blocks of at most `limit` elements, if there is one."""
        for axis, parts in enumerate(self.parts):
            if self.block_size(axis) <= limit:
                return axis
            # One place of the host is then the whole of a block on the device.
            if len(parts) > 1:
                return None
        return None

    def cut(self, axis: int, blocks: int) -> Iterator[tuple[Box, Shape]]:
        """Cut a host axis after so many blocks, at each place of the axes before it.

        Yields:
            A box of the device array, and the shape of what it holds of the host array.
        """
        outer, *inner = self.parts[axis]
        width = self.device[inner[0]] if inner else 1
        if not math.prod(self.host):
            return
        for place in itertools.product(*(range(length) for length in self.host[:axis])):
            for start in range(0, -(-self.host[axis] // width), blocks):
                box = [(0, length) for length in self.device]
                for at, parts in zip(place, self.parts, strict=False):
                    box[parts[0]] = (at, at + 1)
                stop = min(start + blocks, self.device[outer])
                box[outer] = (start, stop)
                length = min(stop * width, self.host[axis]) - start * width
                yield tuple(box), (*(1 for _ in place), length, *self.host[axis + 1 :])


@dataclass(frozen=True, slots=True)
class _Grouped:
    """FRACTAL_Z of a convolution with groups: some groups share a block, along its diagonal."""

    device: Shape
    """Blocks of groups, C1, H, W, outputs, C0."""
    host: Shape
    """Groups, outputs of a group, channels of a group, H, W."""
    groups_per_block: int

    def to_host(self, device: Array, host: Array) -> None:
        """Fill a 1-D host array."""
        host.reshape(self.host)[...] = device.reshape(self.device)[self._index()]

    def to_device(self, host: Array, device: Array) -> None:
        """Fill a 1-D device array, but for the padding."""
        device.reshape(self.device)[self._index()] = host.reshape(self.host)

    def _index(self) -> Any:
        groups, outputs, channels, _, _ = self.host
        group, output, channel = np.ogrid[:groups, :outputs, :channels]
        block, within = np.divmod(group, self.groups_per_block)
        channel_of_block = within * channels + channel
        c0 = self.device[-1]
        every = slice(None)
        return (
            block,
            channel_of_block // c0,
            every,
            every,
            within * outputs + output,
            channel_of_block % c0,
        )


Found: TypeAlias = _Arrangement | _Grouped
Candidate: TypeAlias = tuple[Shape, Found]
"""The device shape that a host shape should have, and how it is arranged then."""


def _find(layout: DeviceLayout, shape: Shape) -> Found | None:
    device = layout.shape
    if any(min(lengths, default=0) < 0 for lengths in (device, shape)) or len(shape) > 32:
        return None
    if max(math.prod(max(length, 1) for length in lengths) for lengths in (device, shape)) > _MAX_ELEMENTS:
        return None
    if not device or not shape or (0 in device) != (0 in shape):
        return None
    if layout.groups > 1:
        candidates = _grouped(device, shape, layout.groups) if layout.format == "FRACTAL_Z" else iter(())
    elif layout.format in _FORMATS:
        candidates = _FORMATS[layout.format](device, shape)
    else:
        candidates = _permuted(layout.format, device, shape)
    return next((found for expected, found in candidates if expected == device), None)


def _found(layout: DeviceLayout, shape: Shape) -> Found:
    found = _find(layout, shape)
    if found is None:
        message = f"{layout.format} of shape {layout.shape} is not known as a layout of shape {shape}"
        raise ValueError(message)
    return found


def _images(shape: Shape) -> Iterator[tuple[Shape, str]]:
    """Yield the ways in which a host shape is one of images or weights; MindSpore's own is the first."""
    if len(shape) == 4:
        yield from ((shape, order) for order in ("NCHW", "NHWC", "HWCN"))
    elif 1 <= len(shape) < 4:
        yield (1, *shape, *(1 for _ in range(3 - len(shape)))), "NCHW"


def _volumes(shape: Shape) -> Iterator[tuple[Shape, str]]:
    if len(shape) == 5:
        yield from ((shape, order) for order in ("NCDHW", "NDHWC", "DHWCN"))


def _arranged(
    shape: Shape, order: str, device: dict[str, int], parts: dict[str, str], strides: Shape = ()
) -> _Arrangement:
    """Return an arrangement by the names of axes.

    Args:
        shape: of the host.
        order: the names of its axes, a letter each.
        device: length of each axis in device memory, by name.
        parts: the names of the device axes of each host axis that has another than its own.
        strides: of the device axes, if they are not nested.
    """
    names = list(device)
    indices = tuple(tuple(names.index(part) for part in parts.get(axis, axis).split()) for axis in order)
    return _Arrangement(tuple(device.values()), shape, indices, strides)


def _nc1hwc0(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 5 else 0
    for padded, order in _images(shape) if c0 else ():
        n, c, h, w = (padded[order.index(axis)] for axis in "NCHW")
        split = {"N": n, "C1": -(-c // c0), "H": h, "W": w, "C0": c0}
        if order != "HWCN":
            yield tuple(split.values()), _arranged(padded, order, split, {"C": "C1 C0"})


def _nc1hwc0_c04(device: Shape, shape: Shape) -> Iterator[Candidate]:
    return _nc1hwc0(device, shape) if device[-1:] == (4,) else iter(())


def _ndc1hwc0(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 6 else 0
    for padded, order in _volumes(shape) if c0 else ():
        n, c, d, h, w = (padded[order.index(axis)] for axis in "NCDHW")
        split = {"N": n, "D": d, "C1": -(-c // c0), "H": h, "W": w, "C0": c0}
        if order != "DHWCN":
            yield tuple(split.values()), _arranged(padded, order, split, {"C": "C1 C0"})


def _fractal_z(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _images(shape) if c0 else ():
        n, c, h, w = (padded[order.index(axis)] for axis in "NCHW")
        split = {"C1": -(-c // c0), "H": h, "W": w, "N1": -(-n // _ROWS), "N0": _ROWS, "C0": c0}
        expected = (split["C1"] * h * w, split["N1"], _ROWS, c0)
        yield expected, _arranged(padded, order, split, {"C": "C1 C0", "N": "N1 N0"})


def _fractal_z_3d(device: Shape, shape: Shape) -> Iterator[Candidate]:
    return _weights_3d(device, shape, rows="N", columns="C")


def _fractal_z_3d_transpose(device: Shape, shape: Shape) -> Iterator[Candidate]:
    return _weights_3d(device, shape, rows="C", columns="N")


def _weights_3d(device: Shape, shape: Shape, *, rows: str, columns: str) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _volumes(shape) if c0 else ():
        length = dict(zip(order, padded, strict=True))
        row_blocks, column_blocks = -(-length[rows] // _ROWS), -(-length[columns] // c0)
        d, h, w = (length[axis] for axis in "DHW")
        split = {"D": d, "K1": column_blocks, "H": h, "W": w, "M1": row_blocks, "M0": _ROWS, "K0": c0}
        expected = (d * column_blocks * h * w, row_blocks, _ROWS, c0)
        yield expected, _arranged(padded, order, split, {columns: "K1 K0", rows: "M1 M0"})


def _fractal_z_c04(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _images(shape) if c0 and c0 % 4 == 0 else ():
        n, c, h, w = padded
        if order == "NCHW" and c <= 4:
            # H and W are one axis, of which a block holds C0 / 4 places with four channels each.
            split = {
                "K1": -(-4 * h * w // c0),
                "N1": -(-n // _ROWS),
                "N0": _ROWS,
                "K0": c0 // 4,
                "C": 4,
            }
            expected = (split["K1"], split["N1"], _ROWS, c0)
            yield expected, _arranged((n, c, h * w), "NCK", split, {"N": "N1 N0", "K": "K1 K0"})


def _fractal_nz(device: Shape, shape: Shape) -> Iterator[Candidate]:
    *batch, m, k = shape if len(shape) != 1 else (1, *shape)
    c0 = device[-1]
    if c0:
        split = {"B": math.prod(batch), "K1": -(-k // c0), "M1": -(-m // _ROWS), "M0": _ROWS, "K0": c0}
        expected = (*batch, *tuple(split.values())[1:])
        yield expected, _arranged((split["B"], m, k), "BMK", split, {"M": "M1 M0", "K": "K1 K0"})


def _fractal_zz(device: Shape, shape: Shape) -> Iterator[Candidate]:
    if len(shape) < 2 or len(device) < 2:
        return
    *batch, m, k = shape
    m0, k0 = device[-2:]
    if m0 and k0:
        split = {"B": math.prod(batch), "M1": -(-m // m0), "K1": -(-k // k0), "M0": m0, "K0": k0}
        expected = (*batch, *tuple(split.values())[1:])
        yield expected, _arranged((split["B"], m, k), "BMK", split, {"M": "M1 M0", "K": "K1 K0"})


def _c1hwncoc0(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 6 else 0
    for padded, order in _images(shape) if c0 else ():
        n, c, h, w = (padded[order.index(axis)] for axis in "NCHW")
        split = {"C1": -(-c // c0), "H": h, "W": w, "N": n, "C0": c0}
        expected = (split["C1"], h, w, n, c0, c0)
        # Of each square of C0 x C0 only the diagonal is data.
        *outer, _, _ = _nested(expected)
        strides = (*outer, c0 + 1)
        yield expected, _arranged(padded, order, split, {"C": "C1 C0"}, strides)


def _grouped(device: Shape, shape: Shape, groups: int) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    if not c0 or len(shape) != 4 or not all(shape) or shape[0] % groups:
        return
    n, channels, h, w = shape
    outputs = n // groups
    per_block = min(math.lcm(math.lcm(channels, c0) // channels, math.lcm(outputs, _ROWS) // outputs), groups)
    c1, n1 = -(-per_block * channels // c0), -(-per_block * outputs // _ROWS)
    blocks = -(-groups // per_block)
    split = (blocks, c1, h, w, n1 * _ROWS, c0)
    expected = (blocks * c1 * h * w, n1, _ROWS, c0)
    yield expected, _Grouped(split, (groups, outputs, channels, h, w), per_block)


def _permuted(name: str, device: Shape, shape: Shape) -> Iterator[Candidate]:
    """Yield the layouts that only order the axes differently; such a format is named after its order."""
    targets = [(shape, "NC"), *itertools.islice(_images(shape), 1), *itertools.islice(_volumes(shape), 1)]
    for padded, order in targets:
        if sorted(name) == sorted(order) and len(padded) == len(order):
            split = {axis: padded[order.index(axis)] for axis in name}
            yield tuple(split.values()), _arranged(padded, order, split, {})
    if sorted(name) in _ORDERS:
        # The framework has its axes in this order too.
        yield shape, _Arrangement(device, shape, tuple((axis,) for axis in range(len(shape))))


_ORDERS = [sorted(order) for order in ("NC", "NCHW", "NCDHW")]
_FORMATS: dict[str, Callable[[Shape, Shape], Iterator[Candidate]]] = {
    "NC1HWC0": _nc1hwc0,
    "NC1HWC0_C04": _nc1hwc0_c04,
    "NDC1HWC0": _ndc1hwc0,
    "FRACTAL_Z": _fractal_z,
    "FRACTAL_Z_3D": _fractal_z_3d,
    "FRACTAL_Z_3D_TRANSPOSE": _fractal_z_3d_transpose,
    "FRACTAL_Z_C04": _fractal_z_c04,
    "FRACTAL_NZ": _fractal_nz,
    "FRACTAL_ZZ": _fractal_zz,
    "C1HWNCoC0": _c1hwncoc0,
}


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of a host axis that is regular in device memory."""

    host_at: int
    device_at: int
    dims: tuple[tuple[int, int, int], ...]
    """Length, stride on the host and stride on the device."""


def _stretches(length: int, parts: list[tuple[int, int]], stride: int) -> list[_Stretch]:
    """Return the parts of a host axis: the full blocks, and what there is of the last one.

    Args:
        length: of the axis on the host.
        parts: length and stride of the one or two axes on the device.
        stride: of the axis on the host.
    """
    if len(parts) == 1:
        return [_Stretch(0, 0, ((length, stride, parts[0][1]),))]
    (_, outer), (width, inner) = parts
    full, rest = divmod(length, width)
    stretches = []
    if full:
        stretches.append(_Stretch(0, 0, ((full, width * stride, outer), (width, stride, inner))))
    if rest:
        stretches.append(_Stretch(full * width * stride, full * outer, ((rest, stride, inner),)))
    return stretches


def _copy(shape: Shape, target: tuple[Array, int, Shape], source: tuple[Array, int, Shape]) -> None:
    """Copy a box of elements; either side is a 1-D array, the place of the first element, and strides."""
    into, into_at, into_strides = target
    out_of, out_of_at, out_of_strides = source
    itemsize = into.itemsize
    cell = into.dtype
    dims = [
        (length, into_stride, out_of_stride)
        for length, into_stride, out_of_stride in zip(shape, into_strides, out_of_strides, strict=True)
        if length != 1
    ]
    # What is contiguous on both sides goes as one large element: numpy copies that twice as fast.
    run = 1
    for dim in sorted(dims, key=lambda dim: dim[1]):
        if dim[1:] == (run, run) and dim[0] * run * itemsize <= _LARGEST_CELL:
            run *= dim[0]
            dims.remove(dim)
    if run > 1:
        cell = np.dtype(f"V{run * itemsize}")
    lengths = [length for length, _, _ in dims]
    targets: Array = np.ndarray(
        lengths, cell, into.data, into_at * itemsize, [stride * itemsize for _, stride, _ in dims]
    )
    sources: Array = np.ndarray(
        lengths, cell, out_of.data, out_of_at * itemsize, [stride * itemsize for _, _, stride in dims]
    )
    targets[...] = sources


def _run(shape: Shape, box: Box) -> tuple[int, int, int]:
    """Return how a box lies in an array in C order: number of pieces, elements of each, their first axis."""
    # From the last axis that is not taken whole, all is contiguous.
    last = max((axis for axis, length in enumerate(shape) if box[axis] != (0, length)), default=0)
    start, stop = box[last]
    count = math.prod(stop - start for start, stop in box[:last])
    return count, (stop - start) * _nested(shape)[last], last


def _ranges(shape: Shape, box: Box, itemsize: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length, in bytes, of the contiguous pieces of a box of an array in C order."""
    strides = _nested(shape)
    _, size, last = _run(shape, box)
    for place in itertools.product(*(range(*bounds) for bounds in box[:last])):
        at = sum(i * stride for i, stride in zip((*place, box[last][0]), strides, strict=False))
        yield at * itemsize, size * itemsize


def _nested(shape: Shape) -> Shape:
    """Return the strides, in elements, of an array in C order."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides))


def _cell(itemsize: int) -> np.dtype[Any]:
    """Return a type for elements of this size of which only the bits count."""
    return np.dtype(f"u{itemsize}" if itemsize in _COUNTABLE else f"V{itemsize}")


def _cells(data: Payload, cell: np.dtype[Any]) -> Array:
    """Return the elements of a payload as a 1-D array."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, cell)
