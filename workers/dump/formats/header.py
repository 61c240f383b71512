"""What all formats have in common: the header of a tensor in a dump file, and how files are read.

Each format module has a function `read_headers(read, file_size)`, which returns the tensors of a file in the
order of their payloads. The parts of a file are then

    lead | payload | lead | payload | ... | tail

so that the file can be restored, byte for byte, from its tensors alone. Tensors that share bytes with others
(views of one storage) have no payload of their own, and come last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from workers.arrays.arrangements import StridedView
from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import ElementType
from workers.errors import UnreadableTensor

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
    """Where the payload begins in the file, in bytes."""
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


def read_exactly(read: ReadAt, offset: int, nbytes: int) -> bytes:
    """Return exactly `nbytes` from `offset` on.

    Raises:
        Truncated: the file has fewer.
    """
    data = read(offset, nbytes)
    if len(data) < nbytes:
        raise Truncated(f"ends at byte {offset + len(data)}; it was longer when its size was read")
    return data
