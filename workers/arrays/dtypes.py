"""Element types: from the name in a dump to the bytes in the store.

A payload is stored exactly as the dump held it, so an element type is little more than a name, an item
size and a byte order. Types that Zarr cannot name are stored as `uint8`, with the name kept in the index.

In addition to the types of numpy, there are these, under the names of ml_dtypes and TensorStore:

- `bfloat16` and the float8 types, which Zarr has too;
- packed types, several elements to a byte (`int4`, `uint4`, `int2`, `uint2`, `uint1`, `float4_e2m1fn`). CANN
  puts the first element into the lowest bits, except for `uint1`, where it is in the highest (msaccucmp,
  "dump data" decoding of INT4 and UINT1). No source specifies the order of 2-bit integers and 4-bit floats:
  that of `int4` is assumed. They are stored as dumped, packed, and `unpack` returns their values;
- opaque types (`hifloat8`, `float6_e3m2`, ...), which no public software decodes. It is not settled for all
  of them how many elements a byte holds, so one element here is one byte;
- `complex32`, two float16, which numpy lacks: a structured type with the fields `real` and `imag`.

`canonical` knows the names that dump systems give to element types in tables, in JSON and in file names.

`NumberFormat` is a floating-point format as far as rounding to it can overflow or lose a number. Rounding is
to nearest, ties to even, as casts of ml_dtypes and of accelerators do. Names and ranges are those of
ml_dtypes (https://github.com/jax-ml/ml_dtypes), those of the block formats of "OCP Microscaling Formats (MX)
Specification" 1.0 and of NVIDIA's NVFP4.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from workers.errors import UsageError
from workers.model import ceil_div

AnyDType: TypeAlias = np.dtype[Any]
Payload: TypeAlias = bytes | bytearray | memoryview

#: Zarr v3 core data types (zarr-specs, "Core data types"), by their numpy name.
_CORE = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
#: The one-byte floats of ml_dtypes.
FLOAT8 = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
#: Types that numpy does not have itself, under the names that TensorStore and zarrs use.
_EXTENDED: dict[str, AnyDType] = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", *FLOAT8)}

#: The largest finite number of each floating-point type.
LIMITS: Mapping[str, float] = {
    name: float(ml_dtypes.finfo(name).max)  # type: ignore[no-untyped-call]  # ml_dtypes has no types
    for name in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float4_e2m1fn",
    )
}


@dataclass(frozen=True, slots=True)
class _Packing:
    """How the elements of a packed type share a byte."""

    bits: int
    values: AnyDType
    """The type of the unpacked elements."""
    low_first: bool = True


_PACKED: dict[str, _Packing] = {
    **{
        name: _Packing(bits, np.dtype(getattr(ml_dtypes, name)))
        for name, bits in (("int4", 4), ("uint4", 4), ("float4_e2m1fn", 4), ("int2", 2), ("uint2", 2))
    },
    "uint1": _Packing(1, np.dtype(np.uint8), low_first=False),
}
_OPAQUE = frozenset(["hifloat8", "hifloat4", "hifloat4_scale", "float6_e3m2", "float6_e2m3", "float4_e1m2"])
COMPLEX32: AnyDType = np.dtype([("real", "<f2"), ("imag", "<f2")])


@dataclass(frozen=True, slots=True)
class ElementType:
    """How the elements of one tensor are laid out in bytes.

    `name` is the Zarr name (`float32`, `bfloat16`), that of a packed or opaque type or `complex32`, or
    else the numpy descr (`<U5`).
    """

    name: str
    itemsize: int
    """Bytes per element; 1 for packed types, although a byte holds several of them: see `bits`."""
    big_endian: bool = False

    @property
    def bits(self) -> int:
        """Bits per element: fewer than 8 for packed types."""
        return _PACKED[self.name].bits if self.is_packed else 8 * self.itemsize

    @property
    def is_packed(self) -> bool:
        """Whether several elements share a byte, so that `unpack` is needed to get their values."""
        return self.name in _PACKED

    @property
    def is_opaque(self) -> bool:
        """Whether nothing decodes the elements: their values are then the bytes of the payload."""
        return self.name in _OPAQUE

    def nbytes(self, size: int) -> int:
        """Return the bytes of a payload of `size` elements; the last byte may be partly filled."""
        return ceil_div(size * self.bits, 8)

    @property
    def stored_name(self) -> str:
        """The type of the array that holds these elements; Zarr's own name of it is `core_name`."""
        return self.name if self.is_native else "uint8"

    @property
    def is_native(self) -> bool:
        """Whether Zarr has a data type for these elements."""
        return self.name in _CORE or self.name in _EXTENDED

    @property
    def array(self) -> str:
        """The name of the packed array that stores these elements."""
        if not self.is_native:
            return "bytes"
        return f"{self.name}_big_endian" if self.big_endian else self.name

    @property
    def stored_itemsize(self) -> int:
        """Bytes per element of the packed array."""
        return self.itemsize if self.is_native else 1

    def to_numpy(self) -> AnyDType:
        """Return the numpy dtype with which the payload bytes can be viewed: `uint8` for packed types."""
        dtype = np.dtype(np.uint8) if self.is_packed else _dtype_of(self.name)
        return dtype.newbyteorder(">") if self.big_endian else dtype

    @property
    def values(self) -> AnyDType:
        """The numpy dtype of the elements that `unpack` returns."""
        return _PACKED[self.name].values if self.is_packed else self.to_numpy()


@lru_cache(maxsize=256)
def from_name(name: str, *, big_endian: bool = False) -> ElementType:
    """Return the element type with this `ElementType.name`.

    Raises:
        ValueError: the name is not known.
    """
    if name in _PACKED:
        return ElementType(name, 1)
    return ElementType(name, _dtype_of(name).itemsize, big_endian)


def core_name(name: str) -> str:
    """Return the core data type of Zarr that holds the bits of a type which `ElementType.stored_name` names.

    Types that not every Zarr library has (bfloat16, float8) become unsigned integers.
    """
    return f"uint{8 * _EXTENDED[name].itemsize}" if name in _EXTENDED else name


@lru_cache(maxsize=256)
def from_npy_descr(descr: str) -> ElementType:
    """Return the element type that the `descr` of an npy header names.

    Args:
        descr: the text of the descr: a type string, or the list of fields of a structured type.
            `<E2` is what MindSpore's CPU back end writes for bfloat16; numpy does not know it.

    Raises:
        ValueError: the descr does not name a type of fixed size, or names one that holds Python objects.
    """
    if descr in ("<E2", "|E2", "=E2"):
        return ElementType("bfloat16", 2)
    descr.encode()  # half a surrogate pair, which no text column can hold, is a ValueError too
    dtype = _numpy_dtype(descr)
    if dtype.hasobject:
        raise ValueError(f"element type {descr:.80} holds pickled Python objects, which are never loaded")
    if dtype.shape:
        raise ValueError(f"element type {descr:.80} is an array of its own")
    if dtype.itemsize == 0:
        raise ValueError(f"element type {descr:.80} has no size")
    big_endian = dtype.byteorder == ">"
    # zarrs 0.2 exchanges the parts of big-endian complex elements: bytes are better than wrong numbers.
    if dtype.name in _CORE and not (big_endian and dtype.kind == "c"):
        return ElementType(dtype.name, dtype.itemsize, big_endian=big_endian)
    # Types that are packed elsewhere: in npy files each element has at least one byte of its own.
    return ElementType("|V1" if descr in _PACKED else descr, dtype.itemsize)


def unpack(payload: Payload, element: ElementType, size: int) -> npt.NDArray[Any]:
    """Return at most `size` elements of a payload as a 1-D array of `element.values`.

    Packed elements get a byte each (`ml_dtypes.int4`, ...; `uint1` becomes `uint8` of 0 and 1). For any other
    type the result is a view of the payload. Bytes and bits after the last element are left out. If the
    payload has fewer elements, so has the result.
    """
    dtype, bits = _view_of(element)
    size = min(size, memoryview(payload).nbytes * 8 // bits)
    if not element.is_packed:
        return np.frombuffer(payload, dtype, size)
    packed = np.frombuffer(payload, np.uint8, element.nbytes(size))
    return _unpacking(element.name)[packed].view(element.values)[:size]


@lru_cache(maxsize=256)  # asked for every tensor
def _view_of(element: ElementType) -> tuple[AnyDType, int]:
    return element.to_numpy(), element.bits


@lru_cache(maxsize=len(_PACKED))
def _unpacking(name: str) -> npt.NDArray[Any]:
    """Return a table: for each byte, its elements with a byte each, together as one unsigned integer."""
    packing = _PACKED[name]
    shifts = np.arange(0, 8, packing.bits)
    codes = np.arange(256)[:, None] >> (shifts if packing.low_first else shifts[::-1])
    codes &= (1 << packing.bits) - 1
    # ml_dtypes keeps an element in the low bits of its byte.
    return codes.astype(np.uint8).view(f"u{len(shifts)}").reshape(256)


def _dtype_of(name: str) -> AnyDType:
    if name == "complex32":
        return COMPLEX32
    if name in _OPAQUE:
        return np.dtype(np.uint8)
    return _EXTENDED.get(name) or _numpy_dtype(name)


def _numpy_dtype(name: str) -> AnyDType:
    try:
        return np.dtype(ast.literal_eval(name) if name.startswith("[") else name)
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as exc:
        raise ValueError(f"unknown element type {name:.80}") from exc


_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bf16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "float8_e8m0": "float8_e8m0fnu",
    "float4_e2m1": "float4_e2m1fn",
    "float6_e2m3fn": "float6_e2m3",
    "float6_e3m2fn": "float6_e3m2",
}
_PREFIXES = ("torch.", "mindspore.", "dt_", "knumbertype")


def canonical(text: str) -> str:
    """Return our name of an element type, however it is spelled; the text itself if it is unknown.

    >>> [canonical(name) for name in ("Float32", "DT_FLOAT", "torch.bfloat16", "BF16", "unsupported(3)")]
    ['float32', 'float32', 'bfloat16', 'bfloat16', 'unsupported(3)']
    """
    name = text.lower()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    name = _ALIASES.get(name, name)
    try:
        known = from_name(name).name
    except ValueError:
        return text
    return known if known == name else text


#: How the largest exponent is used: for infinities and NaN; for numbers, and one NaN; for numbers alone.
_IEEE, _ONE_NAN, _NUMBERS = "ieee", "fn", "numbers"
_SPELLING = re.compile(r"e(\d{1,2})m(\d{1,2})(?:b(-?\d{1,4}))?(fn|fnuz)?")
#: Exponents of float64, in which bounds are expressed.
_MAX_EXPONENT_BITS, _MAX_MANTISSA_BITS = 10, 51


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A format, and the bounds that decide what becomes of a number."""

    name: str
    largest: float
    limit: float
    """Magnitudes above it overflow: they become infinite or NaN, or are cut off."""
    vanishing: float
    """Magnitudes up to it, a power of two, become zero: half of the smallest number above zero."""
    block: int = 0
    """How many elements share a scale; 0 if the tensor has one, or none."""
    has_power_scales: bool = False
    """Whether the scales of blocks are powers of two."""


def _format(name: str, exponent_bits: int, mantissa_bits: int, bias: int, kind: str) -> NumberFormat:
    highest = (1 << exponent_bits) - (2 if kind == _IEEE else 1) - bias
    step = math.ldexp(1.0, -mantissa_bits)
    largest = math.ldexp(2 - step * (2 if kind == _ONE_NAN else 1), highest)
    tie = largest + math.ldexp(step, highest) / 2
    # A tie goes to the even neighbour: upwards, unless NaN has taken the last number.
    limit = tie if kind == _ONE_NAN else math.nextafter(tie, 0)
    return NumberFormat(name, largest, limit, math.ldexp(1.0, -bias - mantissa_bits))


_E4M3 = _format("float8_e4m3fn", 4, 3, 7, _ONE_NAN)
_E5M2 = _format("float8_e5m2", 5, 2, 15, _IEEE)
_E2M1 = _format("float4_e2m1fn", 2, 1, 1, _NUMBERS)
#: All formats that have a name.
NAMED: Final = {
    known.name: known
    for known in (
        _format("float16", 5, 10, 15, _IEEE),
        _format("bfloat16", 8, 7, 127, _IEEE),
        _E4M3,
        _E5M2,
        replace(_E4M3, name="mxfp8_e4m3", block=32, has_power_scales=True),
        replace(_E5M2, name="mxfp8_e5m2", block=32, has_power_scales=True),
        replace(_E2M1, name="nvfp4", block=16),
        replace(_E2M1, name="mxfp4", block=32, has_power_scales=True),
        _E2M1,
        _format("float6_e2m3fn", 2, 3, 1, _NUMBERS),
        _format("float6_e3m2fn", 3, 2, 3, _NUMBERS),
        _format("float8_e3m4", 3, 4, 3, _IEEE),
        _format("float8_e4m3", 4, 3, 7, _IEEE),
        _format("float8_e4m3b11fnuz", 4, 3, 11, _NUMBERS),
        _format("float8_e4m3fnuz", 4, 3, 8, _NUMBERS),
        _format("float8_e5m2fnuz", 5, 2, 16, _NUMBERS),
    )
}
#: Other names that people use. `e4m3` is what frameworks call so, which has no infinity.
_FORMAT_ALIASES: Final = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
    "mxfp8": "mxfp8_e4m3",
    "e2m1": "float4_e2m1fn",
    "fp4": "float4_e2m1fn",
}


def format_named(text: str) -> NumberFormat:
    """Return the format that a text names: one of `NAMED`, or `e{bits}m{bits}`, such as `e5m7` or `e4m3b11`.

    The letter `b` and the bias may follow; the bias is 2**(bits-1) - 1 by default. The last part may be `fn`,
    for one NaN and no infinities, or `fnuz`, if NaN has taken the place of the negative zero.

    Raises:
        UsageError: the text names no format.
    """
    plain = text.strip().lower().replace("-", "_")
    if known := NAMED.get(_FORMAT_ALIASES.get(plain, plain)):
        return known
    spelled = _SPELLING.fullmatch(plain)
    if spelled is None:
        raise UsageError(
            f"{text!r:.80} is not a format of numbers",
            hint=f"Formats: {', '.join(NAMED)}, or bits and bias: e5m7, e4m3b11.",
        )
    exponent_bits, mantissa_bits = int(spelled[1]), int(spelled[2])
    kind = {"fn": _ONE_NAN, "fnuz": _NUMBERS, None: _IEEE}[spelled[4]]
    if not 2 <= exponent_bits <= _MAX_EXPONENT_BITS or not 1 <= mantissa_bits <= _MAX_MANTISSA_BITS:
        raise UsageError(
            f"{text!r:.80} has an impossible number of bits",
            hint=f"2 to {_MAX_EXPONENT_BITS} bits of exponent and 1 to {_MAX_MANTISSA_BITS} of mantissa.",
        )
    bias = int(spelled[3]) if spelled[3] else (1 << (exponent_bits - 1)) - 1 + (kind == _NUMBERS)
    if not -512 <= bias <= 512 + (1 << exponent_bits - 1):
        raise UsageError(f"{text!r:.80} has an impossible bias", hint="The bias moves the exponent by 512.")
    return _format(plain, exponent_bits, mantissa_bits, bias, kind)
