"""Where the elements of a host array are in device memory, or in a run of bytes, and how they are copied.

Views pick their elements by strides (PyTorch, `torch/_utils.py`): element (i, j, ...) of a tensor is at
storage_offset + i * stride[0] + j * stride[1] + ... Strides are never negative, and zero for an axis that was
expanded.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import COMPLEX32, ElementType
from workers.model import Positional, ceil_div

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
#: The sizes of the integers of numpy, in bytes.
INTEGER_SIZES = (1, 2, 4, 8)
Box: TypeAlias = tuple[tuple[int, int], ...]
"""The first place and the one after the last, for each axis."""
Dim: TypeAlias = tuple[int, int, int]
"""An axis of what is copied: its length, its stride on the host and its stride on the device, in elements."""

#: Bytes that are copied as one element, at most.
_LARGEST_CELL = 4096


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where each element of a host array is, if each axis of the host is one or two of the device."""

    device: Shape
    """Lengths of the axes in device memory; blocks have an axis of their own."""
    host: Shape
    """Lengths of the axes on the host; adjacent ones may be taken as one."""
    parts: tuple[Shape, ...]
    """For each axis of the host, the axes of the device that it is spread over: its own, or that of the
    blocks and that within a block."""
    strides: Shape = ()
    """Strides of the axes in device memory, in elements; () if they are nested in C order."""

    def to_host(self, device: Array, host: Array) -> None:
        """Fill a 1-D host array from a 1-D device array."""
        for box in self._boxes():
            _copy(host, box.host_at, device, box.device_at, box.dims)

    def to_device(self, host: Array, device: Array) -> None:
        """Fill a 1-D device array, except for the padding, from a 1-D host array."""
        for box in self._boxes():
            dims = [(length, device_stride, host_stride) for length, host_stride, device_stride in box.dims]
            _copy(device, box.device_at, host, box.host_at, dims)

    def _boxes(self) -> Iterator[_Box]:
        if not math.prod(self.host):
            return
        device_strides = self.strides or nested_strides(self.device)
        stretches = [
            _stretches(length, [(self.device[axis], device_strides[axis]) for axis in parts], stride)
            for length, parts, stride in zip(self.host, self.parts, nested_strides(self.host), strict=True)
        ]
        for combination in itertools.product(*stretches):
            yield _Box(
                sum(stretch.host_at for stretch in combination),
                sum(stretch.device_at for stretch in combination),
                [dim for stretch in combination for dim in stretch.dims],
            )

    def block_size(self, axis: int) -> int:
        """Return the device elements in one block of a host axis, at one place of the axes before it."""
        before = {part for parts in self.parts[:axis] for part in parts} | {self.parts[axis][0]}
        return math.prod(length for part, length in enumerate(self.device) if part not in before)

    def axis_to_cut(self, limit: int) -> int | None:
        """Return the first axis of the host whose blocks have at most `limit` elements, or None."""
        for axis, parts in enumerate(self.parts):
            if self.block_size(axis) <= limit:
                return axis
            # An axis in blocks cannot be passed: one place on it takes a whole block of the device.
            if len(parts) > 1:
                return None
        return None

    def cut(self, axis: int, blocks: int) -> Iterator[tuple[Box, Shape]]:
        """Cut a host axis into pieces of this number of blocks, at each place of the axes before it.

        Yields:
            A box of the device array, and the shape of the part of the host array that it holds.
        """
        outer, *inner = self.parts[axis]
        width = self.device[inner[0]] if inner else 1
        if not math.prod(self.host):
            return
        for place in itertools.product(*(range(length) for length in self.host[:axis])):
            for start in range(0, ceil_div(self.host[axis], width), blocks):
                box = [(0, length) for length in self.device]
                for at, parts in zip(place, self.parts, strict=False):
                    box[parts[0]] = (at, at + 1)
                stop = min(start + blocks, self.device[outer])
                box[outer] = (start, stop)
                length = min(stop * width, self.host[axis]) - start * width
                yield tuple(box), (*(1 for _ in place), length, *self.host[axis + 1 :])


@dataclass(frozen=True, slots=True)
class GroupedArrangement:
    """FRACTAL_Z of a convolution with groups: several groups share a block, along its diagonal."""

    device: Shape
    """Blocks of groups, C1, H, W, outputs, C0."""
    host: Shape
    """Groups, outputs of a group, channels of a group, H, W."""
    groups_per_block: int

    def to_host(self, device: Array, host: Array) -> None:
        """Fill a 1-D host array from a 1-D device array."""
        host.reshape(self.host)[...] = device.reshape(self.device)[self._index()]

    def to_device(self, host: Array, device: Array) -> None:
        """Fill a 1-D device array, except for the padding, from a 1-D host array."""
        device.reshape(self.device)[self._index()] = host.reshape(self.host)

    def _index(self) -> Any:
        groups, outputs, channels, _, _ = self.host
        group, output, channel = np.ogrid[:groups, :outputs, :channels]
        block, within = np.divmod(group, self.groups_per_block)
        channel_of_block = within * channels + channel
        c0 = self.device[-1]
        whole = slice(None)
        return (
            block,
            channel_of_block // c0,
            whole,
            whole,
            within * outputs + output,
            channel_of_block % c0,
        )


@dataclass(frozen=True, slots=True)
class _Box:
    """A part of the host array, or of one of its axes, that is regular on both sides."""

    host_at: int
    """Index of its first element on the host."""
    device_at: int
    """Index of its first element on the device."""
    dims: Sequence[Dim]


def _stretches(length: int, parts: list[tuple[int, int]], stride: int) -> list[_Box]:
    """Return the parts of a host axis: the full blocks, and the rest in the last one.

    Args:
        length: the length of the axis on the host.
        parts: the length and stride of each of the one or two axes on the device.
        stride: the stride of the axis on the host.
    """
    if len(parts) == 1:
        return [_Box(0, 0, ((length, stride, parts[0][1]),))]
    (_, outer), (width, inner) = parts
    full, rest = divmod(length, width)
    stretches = []
    if full:
        stretches.append(_Box(0, 0, ((full, width * stride, outer), (width, stride, inner))))
    if rest:
        stretches.append(_Box(full * width * stride, full * outer, ((rest, stride, inner),)))
    return stretches


def _copy(target: Array, target_at: int, source: Array, source_at: int, dims: Sequence[Dim]) -> None:
    """Copy a box of elements from one 1-D array to another.

    Args:
        target: where the elements go.
        target_at: index of the first one.
        source: where they come from.
        source_at: index of the first one.
        dims: the axes of the box: length, stride in `target`, stride in `source`.
    """
    itemsize, cell = target.itemsize, target.dtype
    dims = [dim for dim in dims if dim[0] != 1]
    # Runs that are contiguous on both sides are copied as one large element: numpy does that twice as fast.
    run = 1
    for dim in sorted(dims, key=itemgetter(1)):
        if dim[1:] == (run, run) and dim[0] * run * itemsize <= _LARGEST_CELL:
            run *= dim[0]
            dims.remove(dim)
    if run > 1:
        cell = np.dtype(f"V{run * itemsize}")
    lengths = [length for length, _, _ in dims]
    targets: Array = np.ndarray(
        lengths, cell, target.data, target_at * itemsize, [stride * itemsize for _, stride, _ in dims]
    )
    sources: Array = np.ndarray(
        lengths, cell, source.data, source_at * itemsize, [stride * itemsize for _, _, stride in dims]
    )
    targets[...] = sources


def contiguous_run(shape: Shape, box: Box) -> tuple[int, int, int]:
    """Return how a box lies in an array in C order: number of pieces, elements of each, their first axis."""
    # Everything is contiguous from the last axis that the box does not take completely.
    last = max((axis for axis, length in enumerate(shape) if box[axis] != (0, length)), default=0)
    start, stop = box[last]
    count = math.prod(stop - start for start, stop in box[:last])
    return count, (stop - start) * nested_strides(shape)[last], last


def byte_ranges(shape: Shape, box: Box, itemsize: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length, in bytes, of the contiguous pieces of a box in an array in C order."""
    strides = nested_strides(shape)
    _, size, last = contiguous_run(shape, box)
    for place in itertools.product(*(range(*bounds) for bounds in box[:last])):
        at = sum(i * stride for i, stride in zip((*place, box[last][0]), strides, strict=False))
        yield at * itemsize, size * itemsize


def nested_strides(shape: Shape) -> Shape:
    """Return the strides, in elements, of an array in C order."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides))


def cell_type(itemsize: int) -> np.dtype[Any]:
    """Return a type for elements of this size whose bits are only moved: an integer if there is one."""
    return np.dtype(f"u{itemsize}" if itemsize in INTEGER_SIZES else f"V{itemsize}")


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
        raise ValueError(
            f"{'more than ' if len(content) > nbytes else ''}{min(len(content), nbytes)} bytes, not {nbytes}"
        )
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
