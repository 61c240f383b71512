"""What all formats have in common: the header of a tensor in a dump file, and how files are read.

Each format module has a function `read_headers(read, file_size)`, which returns the tensors of a file in the
order of their payloads. The parts of a file are then

    lead | payload | lead | payload | ... | tail

so that the file can be restored, byte for byte, from its tensors alone. Tensors that share bytes with others
(views of one storage) have no payload of their own, and come last.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from workers.arrays.arrangements import StridedView, span_nbytes
from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import ElementType, from_name
from workers.errors import UnreadableTensor
from workers.model import MIB

#: Up to this number, bytes that belong to no tensor are kept in the index; more become a separate part.
MAX_ENVELOPE_NBYTES = 64 * 1024
#: A view of more bytes, or out of more bytes, is not taken out of its storage: that takes memory.
MAX_VIEW_NBYTES = 256 * MIB
#: What all copied views of a file may take, in proportion to the file: elements that are there once may be
#: expanded to any number.
_MAX_EXPANSION = 16
_MIN_EXPANDED_NBYTES = 64 * MIB
_MAX_NAMES = 100


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor of a file, and where its elements are."""

    element: ElementType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    path: tuple[str, ...] = ()
    fortran_order: bool = False
    view: StridedView | None = None
    """Set if its elements do not lie one after the other, or are not as they are stored."""
    declared_dtype: str = ""
    full_name: str = ""
    """Its name, if the file holds nothing but this one."""
    attributes: Mapping[str, Any] = field(default_factory=dict)


def assemble(
    tensors: Sequence[PlacedTensor], attributes: Mapping[str, Any], read: ReadAt, file_size: int
) -> tuple[TensorHeader, ...]:
    """Return the payloads and other parts of a file in the order of the file, then the views.

    Args:
        tensors: all tensors, in the order in which the file names them.
        attributes: what is known of the file as a whole: values that are ready for JSON.
        read: reads parts of the file.
        file_size: bytes of the file.

    Raises:
        Truncated: the file is shorter than it was.
        UnreadableTensor: its views are far larger than the file.
    """
    payloads, views = _separate(tensors)
    # Elements that overlap elements of another type would be stored twice.
    again = [number for number, view in views.items() if view.base < 0 and tensors[number].view is None]
    if too_large := [number for number in again if not is_viewable(tensors[number])]:
        views = {number: view for number, view in views.items() if number not in too_large}
        names = names_of([tensors[number] for number in too_large])
        attributes = {**attributes, "not_taken_out": names}
    check_expansion(sum(tensors[number].nbytes for number in views), file_size)
    headers: list[TensorHeader] = []
    end = 0
    for place, number in enumerate(payloads):
        tensor = tensors[number]
        lead, part = _between(read, end, tensor.offset)
        headers += part
        end = tensor.offset + tensor.nbytes
        tail, part = _between(read, end, file_size) if place == len(payloads) - 1 else (b"", ())
        headers.append(_header(tensor, number, lead=lead, tail=tail))
        headers += part
    if not payloads:
        headers.append(_part(0, file_size))
    headers += [_header(tensors[number], number, view=view) for number, view in views.items()]
    if attributes:
        first = headers[0]
        before = f"{first.record[:-1]}, " if first.record else "{"
        headers[0] = first._replace(record=f'{before}"file": {json.dumps(dict(attributes))}}}')
    return tuple(headers)


def _separate(tensors: Sequence[PlacedTensor]) -> tuple[list[int], dict[int, StridedView]]:
    """Return which tensors are payloads, in the order of the file; and the others, each as a view."""
    views = {number: tensor.view for number, tensor in enumerate(tensors) if tensor.view is not None}
    dense = sorted(
        set(range(len(tensors))) - views.keys(),
        key=lambda number: (tensors[number].offset, -tensors[number].nbytes, number),
    )
    payloads: list[int] = []
    end = 0
    for number in dense:
        tensor = tensors[number]
        if tensor.offset >= end:
            payloads.append(number)
            end = tensor.offset + tensor.nbytes
        else:
            base = tensors[payloads[-1]]
            is_within = (
                tensor.offset + tensor.nbytes <= end
                and tensor.element == base.element
                and not base.element.is_packed
                and (tensor.offset - base.offset) % tensor.element.itemsize == 0
            )
            views[number] = StridedView(base=base.offset) if is_within else StridedView()
    return payloads, dict(sorted(views.items()))


def check_expansion(nbytes: int, file_size: int) -> None:
    """Raise UnreadableTensor if the copied views of a file have far more bytes than the file."""
    if nbytes > max(_MAX_EXPANSION * file_size, _MIN_EXPANDED_NBYTES):
        raise UnreadableTensor(
            f"its tensors are views that would take {nbytes} bytes, of {file_size} in the file"
        )


def _between(read: ReadAt, begin: int, end: int) -> tuple[bytes, tuple[TensorHeader, ...]]:
    """Return bytes that belong to no tensor: as they are, or as a part of their own."""
    if end - begin > MAX_ENVELOPE_NBYTES:
        return b"", (_part(begin, end),)
    return read_exactly(read, begin, end - begin) if end > begin else b"", ()


def _part(begin: int, end: int) -> TensorHeader:
    return TensorHeader(
        element=from_name("uint8"), shape=(end - begin,), offset=begin, nbytes=end - begin, is_part=True
    )


def _header(
    tensor: PlacedTensor,
    number: int,
    *,
    lead: bytes = b"",
    tail: bytes = b"",
    view: StridedView | None = None,
) -> TensorHeader:
    return TensorHeader(
        element=tensor.element,
        shape=tensor.shape,
        offset=tensor.offset,
        nbytes=tensor.nbytes,
        lead=lead,
        tail=tail,
        fortran_order=tensor.fortran_order,
        declared_dtype=tensor.declared_dtype,
        full_name=tensor.full_name,
        path=tensor.path,
        number=number,
        record=_record(tensor, view),
        view=view,
    )


def _record(tensor: PlacedTensor, view: StridedView | None) -> str:
    record: dict[str, Any] = {}
    if tensor.attributes:
        record["tensor"] = dict(tensor.attributes)
    if any("." in part or not part for part in tensor.path):
        record["path"] = list(tensor.path)  # which its joined text does not tell
    if view is not None:
        record["view"] = {
            "strides": view.strides,
            "conjugate": view.conjugate,
            "negative": view.negative,
            "inline": view.inline.hex(),
            "deflated": view.deflated,
            "skipped": view.skipped,
        }
    return json.dumps(record) if record else ""


def is_viewable(tensor: PlacedTensor) -> bool:
    """Return whether a tensor is small enough to be taken out of its storage, if it must be."""
    strides = tensor.view.strides if tensor.view else None
    span = tensor.nbytes if strides is None else span_nbytes(tensor.shape, strides, tensor.element.itemsize)
    return max(tensor.nbytes, span) <= MAX_VIEW_NBYTES


def names_of(tensors: Sequence[PlacedTensor]) -> list[str]:
    """Return the names of the first tensors, for the attribute that says which ones were not taken out."""
    return [".".join(tensor.path) for tensor in tensors[:_MAX_NAMES]]


ReadAt: TypeAlias = Callable[[int, int], bytes]
"""`read(offset, nbytes)` returns that many bytes of a file, fewer only at its end."""

#: A header with more axes than this is taken for damaged, in every format.
MAX_NDIM = 64


class Container(StrEnum):
    """The format of a file that holds tensors."""

    NPY = "npy"
    DUMP_DATA = "dump_data"
    """Ascend CANN's protobuf header, followed by payloads."""
    PT = "pt"
    """What `torch.save` wrote: tensors, or values that hold some."""
    SAFETENSORS = "safetensors"
    NPZ = "npz"
    """Arrays that `numpy.savez` wrote."""
    DISTCP = "distcp"
    """What `torch.distributed.checkpoint` wrote for one rank."""
    TENSOR_PROTO = "tensor_proto"
    """A tensor of ONNX: one protobuf message."""
    RAW = "raw"
    """Only elements; type and shape are in the name of the file."""


class Truncated(UnreadableTensor):
    """The file is shorter than its header says: still being written, or its writer died."""


class HoldsNoTensor(UnreadableTensor):
    """The file is complete, but holds no tensor: writers that save arguments also save a pickled `None`."""

    def __init__(self, message: str, *, record: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.record = record
        """What the file holds instead, as JSON, if that is known."""


class TensorHeader(NamedTuple):
    """One tensor of a dump file: where its bytes are, what they mean, and their envelope.

    The envelope of a payload is what its file holds besides it, before it (`lead`) and behind it (`tail`).

    A tuple, because there is one for each of many small files, and a frozen dataclass takes five times as
    long to make.
    """

    element: ElementType
    shape: tuple[int, ...]
    """Lengths of the axes, as the framework sees them."""
    offset: int
    nbytes: int
    """Bytes of the payload in the file, in device layout if there is one."""
    lead: bytes = b""
    """The bytes between the previous payload (or the beginning of the file) and this one."""
    tail: bytes = b""
    """The bytes between this payload and the end of the file; only for the last tensor of a file."""
    fortran_order: bool = False
    device: DeviceLayout | None = None
    """None if the payload is in the order of `shape`."""
    io: str = ""
    """`input` or `output`, if the content says so."""
    slot: int = -1
    full_name: str = ""
    """The name of the operator as the framework spells it, if the content has it."""
    format: str = ""
    """The name of the memory format, if the content has it."""
    declared_dtype: str = ""
    """The file's name for the type, if it differs from the name in `element`."""
    problem: str = ""
    """What is wrong with this tensor, although its bytes could be read."""
    path: tuple[str, ...] = ()
    """Its name in the file, if the file names its tensors: keys and indices."""
    number: int = -1
    """Its place among the tensors of the file, in the order in which the file names them."""
    record: str = ""
    """What else is known of it, and of the file if it is the first one, as JSON."""
    view: StridedView | None = None
    """How its elements are picked from the bytes of the file, if they are not a payload of their own."""
    is_part: bool = False
    """Whether this is not a tensor, but bytes of the file that belong to none."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class FileParts(NamedTuple):
    """What a file consists of.

    The envelope of a tensor is kept apart from its header where many files have headers that differ in
    nothing else: then all of them share one.
    """

    headers: tuple[TensorHeader, ...]
    envelope: bytes | None = None
    """All bytes of the file but the payload of its only header, which has no `lead` and no `tail` then. None:
    headers have their envelopes."""
    record: str = ""
    """The record of that header, which has none then."""

    @property
    def complete(self) -> tuple[TensorHeader, ...]:
        """The headers with their envelopes."""
        if self.envelope is None:
            return self.headers
        (header,) = self.headers
        lead, tail = self.envelope[: header.offset], self.envelope[header.offset :]
        return (header._replace(lead=lead, tail=tail, record=self.record),)


def is_addressable(shape: Iterable[int], itemsize: int) -> bool:
    """Return whether numpy could make an array of a shape: its other axes count even if one of them is 0."""
    return math.prod(n for n in shape if n) * itemsize < 2**63


def refuse_impossible(shape: Sequence[int], itemsize: int, *, of: str = "") -> None:
    """Raise UnreadableTensor for a shape that no array has; `of` begins its message."""
    if len(shape) > MAX_NDIM or not all(0 <= n < 2**62 for n in shape):
        raise UnreadableTensor(f"{of}has an impossible shape")
    if not is_addressable(shape, itemsize):
        raise UnreadableTensor(f"{of}has a shape of more bytes than there are addresses")


def read_exactly(read: ReadAt, offset: int, nbytes: int) -> bytes:
    """Return exactly `nbytes` from `offset` on.

    Raises:
        Truncated: the file has fewer.
    """
    data = read(offset, nbytes)
    if len(data) < nbytes:
        raise Truncated(f"ends at byte {offset + len(data)}; it was longer when its size was read")
    return data
