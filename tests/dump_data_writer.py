"""Write DumpData files by the specification of the format, without code of the decoder, and read them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from workers.arrays.dtypes import from_name
from workers.dump.formats.dump_data import read_headers
from workers.dump.formats.header import TensorHeader

# Write DumpData files by the specification of the format, without using code of the decoder.
#
# Also writes what the decoder must survive: wrong sizes, missing addresses, unknown codes.


#: Codes of the field `data_type` by the name of the element type.
DATA_TYPES = {
    "float32": 1,
    "float16": 2,
    "int8": 3,
    "uint8": 4,
    "int16": 5,
    "uint16": 6,
    "int32": 7,
    "int64": 8,
    "uint32": 9,
    "uint64": 10,
    "bool": 11,
    "float64": 12,
    "complex64": 16,
    "complex128": 17,
    "bfloat16": 27,
    "int4": 28,
    "uint1": 29,
    "int2": 30,
    "uint2": 31,
    "complex32": 32,
    "hifloat8": 33,
    "float8_e5m2": 34,
    "float8_e4m3fn": 35,
    "float8_e8m0fnu": 36,
    "float6_e3m2": 37,
    "float6_e2m3": 38,
    "float4_e2m1fn": 39,
    "float4_e1m2": 40,
    "hifloat4": 41,
    "hifloat4_scale": 42,
}
#: Names of formats by their codes in the field `format`.
FORMATS = dict(
    enumerate(
        [
            "NCHW",
            "NHWC",
            "ND",
            "NC1HWC0",
            "FRACTAL_Z",
            "NC1C0HWPAD",
            "NHWC1C0",
            "FSR_NCHW",
            "FRACTAL_DECONV",
            "C1HWNC0",
            "FRACTAL_DECONV_TRANSPOSE",
            "FRACTAL_DECONV_SP_STRIDE_TRANS",
            "NC1HWC0_C04",
            "FRACTAL_Z_C04",
            "CHWN",
            "FRACTAL_DECONV_SP_STRIDE8_TRANS",
            "HWCN",
            "NC1KHKWHWC0",
            "BN_WEIGHT",
            "FILTER_HWCK",
            "HASHTABLE_LOOKUP_LOOKUPS",
            "HASHTABLE_LOOKUP_KEYS",
            "HASHTABLE_LOOKUP_VALUE",
            "HASHTABLE_LOOKUP_OUTPUT",
            "HASHTABLE_LOOKUP_HITS",
            "C1HWNCoC0",
            "MD",
            "NDHWC",
            "FRACTAL_ZZ",
            "FRACTAL_NZ",
            "NCDHW",
            "DHWCN",
            "NDC1HWC0",
            "FRACTAL_Z_3D",
            "CN",
            "NC",
            "DHWNC",
            "FRACTAL_Z_3D_TRANSPOSE",
            "FRACTAL_ZN_LSTM",
            "FRACTAL_Z_G",
            "RESERVED",
            "ALL",
            "NULL",
            "ND_RNN_BIAS",
            "FRACTAL_ZN_RNN",
            "YUV",
            "YUV_A",
            "NCL",
            "FRACTAL_Z_WINO",
            "C1HWC0",
        ]
    )
)
FORMAT_CODES = {name: code for code, name in FORMATS.items()} | {"MAX": 255}


@dataclass(frozen=True)
class Tensor:
    """One input or output: its description in the header, and its bytes."""

    payload: bytes
    data_type: int = 1
    shape: Sequence[int] = ()
    original_shape: Sequence[int] | None = None
    format: int = FORMAT_CODES["ND"]
    sub_format: int = 0
    address: int | None = 0x12C0_0000_0000
    """The device address; None leaves the field out, as old writers do."""
    dumped: bool = True
    """Whether the payload is written at all."""
    size: int | None = None
    """The size that the header announces; None: the length of the payload."""
    original: tuple[bytes, int] = (b"original", 1)
    """The operator of the model, and which of its outputs it is."""

    @property
    def announced(self) -> int:
        return len(self.payload) if self.size is None else self.size


def varint(value: int) -> bytes:
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F)
    return bytes([group | 0x80 for group in groups[:-1]] + [groups[-1]])


def number(field: int, value: int) -> bytes:
    """Return a field of an integer type, or nothing for 0, as in proto3."""
    return varint(field << 3) + varint(value % 2**64) if value else b""


def chunk(field: int, content: bytes) -> bytes:
    """Return a field that holds text, bytes or a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def dims(shape: Sequence[int], *, packed: bool = True) -> bytes:
    """Return a message Shape, with -1 written as CANN writes it."""
    if not packed:
        return b"".join(varint(1 << 3) + varint(n % 2**64) for n in shape)
    return chunk(1, b"".join(varint(n % 2**64) for n in shape)) if shape else b""


def op_input(tensor: Tensor, *, inside: bool = False, packed: bool = True) -> bytes:
    """Return a message OpInput; `inside` puts the payload into the message (version 1)."""
    message = number(1, tensor.data_type) + number(2, tensor.format)
    message += chunk(3, dims(tensor.shape, packed=packed))
    if inside and tensor.payload:
        message += chunk(4, tensor.payload)
    message += number(5, tensor.announced)
    if tensor.original_shape is not None:
        message += chunk(6, dims(tensor.original_shape, packed=packed))
    return message + number(7, tensor.sub_format) + number(8, tensor.address or 0)


def op_output(tensor: Tensor, *, inside: bool = False, packed: bool = True) -> bytes:
    """Return a message OpOutput, whose field numbers differ from those of OpInput."""
    message = number(1, tensor.data_type) + number(2, tensor.format)
    message += chunk(3, dims(tensor.shape, packed=packed))
    name, output = tensor.original
    message += chunk(4, chunk(1, name) + number(2, output) + number(3, tensor.data_type))
    if inside and tensor.payload:
        message += chunk(5, tensor.payload)
    message += number(6, tensor.announced)
    if tensor.original_shape is not None:
        message += chunk(7, dims(tensor.original_shape, packed=packed))
    message += number(8, tensor.sub_format) + number(9, tensor.address or 0)
    return message + chunk(10, number(1, 1) + number(2, 8)) + number(12, 3)  # dim_range, arg_index


def raw_part(payload: bytes, *, inside: bool = False) -> bytes:
    """Return a message OpBuffer or Workspace."""
    return (chunk(2, payload) if inside else b"") + number(3, len(payload))


def header(
    inputs: Iterable[Tensor] = (),
    outputs: Iterable[Tensor] = (),
    *,
    buffers: Iterable[bytes] = (),
    spaces: Iterable[bytes] = (),
    op_name: bytes = b"Default/MatMul-op0",
    version: bytes = b"2.0",
    inside: bool = False,
    packed: bool = True,
    extra: bytes = b"",
) -> bytes:
    """Return a message DumpData with its fields in order of their numbers, followed by `extra`."""
    message = chunk(1, version) + number(2, 1_722_484_800_000_000)
    message += b"".join(chunk(3, op_output(tensor, inside=inside, packed=packed)) for tensor in outputs)
    message += b"".join(chunk(4, op_input(tensor, inside=inside, packed=packed)) for tensor in inputs)
    message += b"".join(chunk(5, raw_part(payload, inside=inside)) for payload in buffers)
    message += chunk(6, op_name)
    message += chunk(7, chunk(1, b"attribute") + chunk(2, b"{}"))
    message += b"".join(chunk(8, raw_part(payload, inside=inside)) for payload in spaces)
    return message + extra


def dump_data(
    inputs: Sequence[Tensor] = (),
    outputs: Sequence[Tensor] = (),
    *,
    buffers: Sequence[bytes] = (),
    spaces: Sequence[bytes] = (),
    op_name: bytes = b"Default/MatMul-op0",
    packed: bool = True,
    extra: bytes = b"",
) -> bytes:
    """Return a file of version 2: the length of the header, the header, the payloads."""
    message = header(
        inputs, outputs, buffers=buffers, spaces=spaces, op_name=op_name, packed=packed, extra=extra
    )
    payloads = [tensor.payload for tensor in (*inputs, *outputs) if tensor.dumped]
    return framed(message) + b"".join([*payloads, *buffers, *spaces])


def framed(message: bytes) -> bytes:
    """Return a header preceded by its length."""
    return struct.pack("<Q", len(message)) + message


def version_1(
    inputs: Sequence[Tensor] = (),
    outputs: Sequence[Tensor] = (),
    *,
    buffers: Sequence[bytes] = (),
    spaces: Sequence[bytes] = (),
    op_name: bytes = b"Default/MatMul-op0",
) -> bytes:
    """Return a file of version 1, from 2020: one message that contains the payloads."""
    return header(
        inputs, outputs, buffers=buffers, spaces=spaces, op_name=op_name, version=b"1.0", inside=True
    )


# Files of DumpData as tests write them, and what is read of them.


FLOATS = Tensor(np.arange(6, dtype="<f4").tobytes(), shape=(2, 3))
BYTES = Tensor(b"abcdefgh", DATA_TYPES["uint8"], shape=(8,))
NULL = Tensor(bytes(16), shape=(4,), address=0, dumped=False)


def headers_of(content: bytes) -> tuple[TensorHeader, ...]:
    return read_headers(lambda offset, nbytes: content[offset : offset + nbytes], len(content))


def payload_of(content: bytes, found: TensorHeader) -> bytes:
    return content[found.offset : found.offset + found.nbytes]


def put_together(content: bytes, headers: Sequence[TensorHeader]) -> bytes:
    """Return the file as it comes out of its tensors, in their order."""
    return b"".join(found.lead + payload_of(content, found) + found.tail for found in headers)


def only(tensor: Tensor) -> TensorHeader:
    (found,) = headers_of(dump_data([tensor]))
    return found


@st.composite
def tensors(draw: st.DrawFn, *, padding: int = 40) -> tuple[Tensor, str]:
    """A tensor of any type in plain order, perhaps padded; and the name of its type."""
    name = draw(st.sampled_from(sorted(DATA_TYPES)))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    nbytes = from_name(name).nbytes(math.prod(shape))
    length = nbytes + draw(st.integers(0, padding)) if nbytes else 0
    payload = draw(st.binary(min_size=length, max_size=length))
    return Tensor(
        payload,
        DATA_TYPES[name],
        shape,
        original_shape=draw(st.sampled_from([None, shape])),
        address=draw(st.sampled_from([None, 1, 2**63])),
    ), name


PARTS = st.lists(st.binary(max_size=20), max_size=2)
