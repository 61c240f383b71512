"""What the formats have in common: one tensor in a dump file, and how a file is read to find it.

Each format module offers `read_headers(read, file_size)`, which returns the tensors of a file in the order of
their payloads. The parts of a file are then

    lead | payload | lead | payload | ... | tail

so that the file can be put together again, byte for byte, from its tensors alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import ElementType
from workers.errors import UnreadableTensor
from workers.model import Positional

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""`read(offset, nbytes)` returns that many bytes of a file, fewer only at its end."""

#: The most axes that are believed, in every format.
MAX_NDIM = 64


class Container(StrEnum):
    """The format of a file that holds tensors."""

    NPY = "npy"
    DUMP_DATA = "dump_data"
    """Ascend CANN's protobuf header with payloads behind it."""
    PT = "pt"
    """One tensor saved by `torch.save`."""
    RAW = "raw"
    """Nothing but elements; type and shape are in the name of the file."""


class Truncated(UnreadableTensor):
    """The file is shorter than its header says: still being written, or its writer died."""


class HoldsNoTensor(UnreadableTensor):
    """The file is whole, but what it holds is no tensor: a pickled `None`, where a writer saves arguments."""


@dataclass(frozen=True, slots=True)
class TensorHeader(Positional):
    """One tensor of a dump file: where its bytes are, what they mean, and what stands around them."""

    element: ElementType
    shape: tuple[int, ...]
    """Lengths of the axes as the framework sees them."""
    offset: int
    """Where the payload begins in the file, in bytes."""
    nbytes: int
    """Bytes of the payload in the file, in device layout if there is one."""
    lead: bytes = b""
    """What stands between the payload before (or the beginning of the file) and this one."""
    tail: bytes = b""
    """What stands between this payload and the end of the file; only of the last tensor of a file."""
    fortran_order: bool = False
    device: DeviceLayout | None = None
    """None where the payload is in the order of `shape`."""
    io: str = ""
    """`input` or `output`, where the content says so."""
    slot: int = -1
    full_name: str = ""
    """The name of the operator as the framework spells it, where the content says so."""
    format: str = ""
    """The name of the memory format, where the content says so."""
    declared_dtype: str = ""
    """What the content calls the type, where `element` is another."""
    problem: str = ""
    """What is wrong with this tensor, though its bytes could be taken."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)
