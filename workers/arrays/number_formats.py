"""Floating-point formats as far as rounding to them can overflow or lose a number: range, and smallest step.

Rounding is to nearest, ties to even, as casts of ml_dtypes and of accelerators do. Names and ranges are those
of ml_dtypes (https://github.com/jax-ml/ml_dtypes), those of the block formats of "OCP Microscaling Formats
(MX) Specification" 1.0 and of NVIDIA's NVFP4.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Final

from workers.errors import UsageError

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
    """The largest finite number."""
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
_ALIASES: Final = {
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
    if known := NAMED.get(_ALIASES.get(plain, plain)):
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
