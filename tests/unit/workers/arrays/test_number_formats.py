"""Ranges and bounds of number formats, against the casts of ml_dtypes."""

import math

import ml_dtypes
import numpy as np
import pytest

from workers.arrays.dtypes import NAMED, format_named
from workers.errors import UsageError

#: Casts of ml_dtypes cut off what is too large for these, which have neither infinities nor NaN.
CUT_OFF = ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")
CASTABLE = [name for name, known in NAMED.items() if not known.block]


def cast(number: np.float32, name: str) -> float:
    """Return a float32 as the format has it."""
    dtype = np.dtype(name if name == "float16" else getattr(ml_dtypes, name))
    with np.errstate(over="ignore"):
        return float(np.array([number]).astype(dtype).astype(np.float64)[0])


@pytest.mark.parametrize("name", CASTABLE)
def test_the_range_is_that_of_ml_dtypes(name: str) -> None:
    known = NAMED[name]
    limits = ml_dtypes.finfo(name)  # type: ignore[no-untyped-call]  # ml_dtypes has no types
    assert known.largest == float(limits.max)
    assert known.vanishing == float(limits.smallest_subnormal) / 2


@pytest.mark.parametrize("name", CASTABLE)
def test_what_is_above_the_limit_overflows(name: str) -> None:
    limit = NAMED[name].limit
    kept = np.float32(limit)
    if float(kept) > limit:
        kept = np.nextafter(kept, np.float32(0))
    assert cast(kept, name) == NAMED[name].largest
    if name not in CUT_OFF:
        assert not math.isfinite(cast(np.nextafter(kept, np.float32(np.inf)), name))


@pytest.mark.parametrize("name", CASTABLE)
def test_half_of_the_smallest_number_vanishes(name: str) -> None:
    vanishing = np.float32(NAMED[name].vanishing)
    assert cast(vanishing, name) == 0
    assert cast(np.nextafter(vanishing, np.float32(1)), name) > 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("e5m10", "float16"), ("e8m7", "bfloat16"), ("e4m3b7fn", "float8_e4m3fn"), ("e4m3b7", "float8_e4m3"),
        ("E5M2FNUZ", "float8_e5m2fnuz"), ("e4m3b11fnuz", "float8_e4m3b11fnuz"),
    ],
)  # fmt: skip
def test_bits_and_bias_make_a_format(text: str, name: str) -> None:
    made, known = format_named(text), NAMED[name]
    assert (made.largest, made.limit, made.vanishing) == (known.largest, known.limit, known.vanishing)


@pytest.mark.parametrize("text", ["float9", "e1m3", "e4m0", "e11m3", "e4m60", "e4m3b9999", ""])
def test_what_is_not_a_format_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        format_named(text)
    assert raised.value.hint
