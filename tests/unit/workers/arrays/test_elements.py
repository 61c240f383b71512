"""Types and elements: names, bounds, spans, digests, filters, strides and aggregates."""

from __future__ import annotations

import itertools
import math
import pickle
import zlib
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays.arrangements import (
    Arrangement,
    Box,
    StridedView,
    byte_ranges,
    contiguous_run,
    elements_of,
    gather,
    inflate,
    nested_strides,
    span_nbytes,
)
from workers.arrays.digest import DIGEST_BYTES, digest, new_digest
from workers.arrays.dtypes import FLOAT8, NAMED, canonical, format_named, from_name, from_npy_descr, unpack
from workers.arrays.filter import BoundedColumn, Decided, Filter
from workers.arrays.statistics import aggregated, divisor_for, joined
from workers.errors import UsageError

# Element types: which array takes them, and how they come back.


PACKED: dict[str, tuple[int, Any]] = {
    "int4": (4, ml_dtypes.int4),
    "uint4": (4, ml_dtypes.uint4),
    "float4_e2m1fn": (4, ml_dtypes.float4_e2m1fn),
    "int2": (2, ml_dtypes.int2),
    "uint2": (2, ml_dtypes.uint2),
    "uint1": (1, np.uint8),
}
OPAQUE = ["hifloat8", "hifloat4", "hifloat4_scale", "float6_e3m2", "float6_e2m3", "float4_e1m2"]


@pytest.mark.parametrize(
    ("descr", "name", "array"),
    [
        ("<f4", "float32", "float32"),
        (">f4", "float32", "float32_big_endian"),
        ("|b1", "bool", "bool"),
        ("|i1", "int8", "int8"),
        (">u8", "uint64", "uint64_big_endian"),
        ("<c8", "complex64", "complex64"),
        ("<E2", "bfloat16", "bfloat16"),
        ("<U5", "<U5", "bytes"),
        ("|V7", "|V7", "bytes"),
        ("<M8[ns]", "<M8[ns]", "bytes"),
        ("<f16", "<f16", "bytes"),
        ("[('a', '<f4'), ('b', '>i2', (3,))]", "[('a', '<f4'), ('b', '>i2', (3,))]", "bytes"),
        # zarrs would exchange real and imaginary parts.
        (">c8", ">c8", "bytes"),
    ],
)
def test_descr_names_its_array(descr: str, name: str, array: str) -> None:
    element = from_npy_descr(descr)
    assert (element.name, element.array) == (name, array)
    big_endian = array.endswith("_big_endian")
    assert from_name(name, big_endian=big_endian) == element


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_is_a_type_of_zarr(name: str) -> None:
    element = from_name(name)
    assert (element.array, element.stored_name, element.itemsize, element.bits) == (name, name, 1, 8)
    assert element.to_numpy() == element.values == np.dtype(getattr(ml_dtypes, name))


@pytest.mark.parametrize("name", [*PACKED, *OPAQUE, "complex32"])
def test_what_zarr_cannot_name_is_stored_as_bytes(name: str) -> None:
    element = from_name(name)
    assert (element.name, element.array, element.stored_name, element.stored_itemsize) == (
        name,
        "bytes",
        "uint8",
        1,
    )
    assert pickle.loads(pickle.dumps(element)) == element  # noqa: S301


@pytest.mark.parametrize(
    ("name", "payload", "values"),
    [
        ("int4", b"\xf7\x81", [7, -1, 1, -8]),
        ("uint4", b"\xf7\x81", [7, 15, 1, 8]),
        ("int2", b"\xe4", [0, 1, -2, -1]),
        ("uint2", b"\xe4", [0, 1, 2, 3]),
        ("uint1", b"\xb1", [1, 0, 1, 1, 0, 0, 0, 1]),
        ("float4_e2m1fn", b"\xf1\x3a", [0.5, -6, -1, 1.5]),
    ],
)
def test_packed_elements_by_hand(name: str, payload: bytes, values: list[float]) -> None:
    for size in range(len(values) + 1):
        found = unpack(payload, from_name(name), size)
        assert found.dtype == from_name(name).values == np.dtype(PACKED[name][1])
        assert found.astype(float).tolist() == values[:size]


@given(st.sampled_from(sorted(PACKED)), st.binary(max_size=20), st.data())
def test_packed_elements_bit_by_bit(name: str, payload: bytes, data: st.DataObject) -> None:
    bits, values = PACKED[name]
    size = data.draw(st.integers(0, len(payload) * 8 // bits))
    places = range(0, 8, bits) if name != "uint1" else range(7, -1, -1)
    codes = [byte >> place & (1 << bits) - 1 for byte in payload for place in places]
    found = unpack(payload, from_name(name), size)
    assert found.view(np.uint8).tolist() == codes[:size]
    # In the form that ml_dtypes itself gives them.
    assert found.tobytes() == found.astype(np.float32).astype(values).tobytes()


@pytest.mark.parametrize(
    ("name", "size"), [("int4", 4), ("float16", 1), ("uint1", 16), ("hifloat8", 2), ("float32", 0)]
)
def test_short_payload_gives_what_it_has(name: str, size: int) -> None:
    """A payload that arrives in pieces is unpacked piece by piece."""
    assert unpack(b"ab", from_name(name), 1000).size == size


@pytest.mark.parametrize("name", sorted(PACKED))
def test_npy_holds_no_packed_elements(name: str) -> None:
    """There each has a byte of its own, so the name would make two of it."""
    try:
        element = from_npy_descr(name)
    except ValueError:
        return
    assert (element.name, element.nbytes(3)) == ("|V1", 3)


# One name for an element type, however a dump system spells it.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.float32", "float32"),
        ("Float32", "float32"),
        ("kNumberTypeFloat16", "float16"),
        ("DT_FLOAT", "float32"),
        ("DT_BF16", "bfloat16"),
        ("torch.half", "float16"),
        ("mindspore.int64", "int64"),
        ("Bool", "bool"),
        ("FLOAT8_E8M0", "float8_e8m0fnu"),
        ("FLOAT4_E2M1", "float4_e2m1fn"),
        ("torch.long", "int64"),
        ("complex32", "complex32"),
    ],
)
def test_spellings_of_dump_systems_have_one_name(text: str, name: str) -> None:
    assert canonical(text) == name


@pytest.mark.parametrize("text", ["", "unsupported(3)", "torch.quint8", "f4", "<f4", "object", "STRING"])
def test_unknown_types_keep_their_spelling(text: str) -> None:
    """Also what numpy would understand, but no dump system writes."""
    assert canonical(text) == text


# Ranges and bounds of number formats, against the casts of ml_dtypes.


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


# Conditions over what is known between two bounds, against the same conditions over values between them.


_COLUMNS = frozenset(["a", "b", "known"])
_NUMBERS = st.sampled_from(
    [-math.inf, -3.0, -1.0, -0.5, 0.0, 1e-308, 0.5, 1.0, 2.0, 1e308, math.inf, math.nan]
)
_LITERALS = st.sampled_from(["0", "1", "-1", "2.5", "1e308", "inf", "-nan"])
_TERMS = st.recursive(
    st.sampled_from(sorted(_COLUMNS)) | _LITERALS,
    lambda term: (
        st.tuples(term, st.sampled_from("+-*/"), term).map(lambda parts: f"({' '.join(parts)})")
        | term.map("abs({})".format)
        | term.map("(-{})".format)
    ),
    max_leaves=5,
)
_COMPARED = st.tuples(_TERMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _TERMS).map(" ".join) | (
    st.tuples(_TERMS, st.sampled_from(["in", "not in"]), _LITERALS, _LITERALS).map(
        lambda parts: f"{parts[0]} {parts[1]} [{parts[2]}, {parts[3]}]"
    )
)
_CONDITIONS = st.recursive(
    _COMPARED,
    lambda condition: (
        st.tuples(condition, st.sampled_from(["and", "or"]), condition).map(
            lambda parts: f"({' '.join(parts)})"
        )
        | condition.map("not ({})".format)
    ),
    max_leaves=3,
)


def decide(text: str, a: BoundedColumn, b: BoundedColumn | None = None, known: float = 0.0) -> Decided:
    columns = {"a": a, "b": a if b is None else b, "known": np.array([known])}
    return Filter(text, _COLUMNS).decide(columns)


def between(*ends: float) -> BoundedColumn:
    return BoundedColumn(np.array([min(ends)]), np.array([max(ends)]))


@settings(max_examples=300, deadline=None)
@given(
    _CONDITIONS, st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), _NUMBERS
)
def test_what_is_certain_holds_and_what_holds_is_possible(
    text: str, a: tuple[float, ...], b: tuple[float, ...], known: float
) -> None:
    """The bounds and the value between them are any three numbers."""
    (a_low, a_value, a_high), (b_low, b_value, b_high) = sorted_or_unknown(a), sorted_or_unknown(b)
    decided = decide(text, between(a_low, a_high), between(b_low, b_high), known)
    truth = Filter(text, _COLUMNS).evaluate(
        {"a": np.array([a_value]), "b": np.array([b_value]), "known": np.array([known])}
    )
    assert truth.all() or not decided.certain.any()
    assert decided.possible.all() or not truth.any()


def sorted_or_unknown(numbers: tuple[float, ...]) -> list[float]:
    """Return numbers in order, or three NaN if one is."""
    return [math.nan] * 3 if any(map(math.isnan, numbers)) else sorted(numbers)


def test_unknown_values_fulfil_nothing_but_inequality() -> None:
    unknown = between(math.nan, math.nan)
    assert not decide("a > 1 or a <= 1 or abs(a) >= 0 or a / known > 0", unknown).possible.any()
    assert decide("a != 1 and a - b != 0", unknown).certain.all()


# Distances that float64 cannot hold are those of halves.


LARGEST, LEAST = float(np.finfo(np.float64).max), float(np.finfo(np.float64).smallest_subnormal)


@pytest.mark.parametrize(
    ("low", "high", "divisor"),
    [(-LARGEST, LARGEST, 2.0), (0.0, LARGEST, 1.0), (0.0, LEAST, 1.0), (-1.0, 1.0, 1.0)],
)
def test_the_difference_is_finite_and_not_lost(low: float, high: float, divisor: float) -> None:
    assert divisor_for(low, high) == divisor
    assert 0 < high / divisor - low / divisor < math.inf


# Digests are those of XXH3-128, whole or in pieces.


@given(st.binary(max_size=300), st.integers(0, 300))
def test_pieces_give_the_digest_of_the_whole(data: bytes, cut: int) -> None:
    running = new_digest()
    running.update(data[:cut])
    running.update(memoryview(data)[cut:])
    assert running.digest() == digest(data) == digest(bytearray(data))
    assert len(digest(data)) == DIGEST_BYTES


# Several tensors as one number.


NAN = np.nan
VALUES = np.array([[1.0, NAN, 3.0], [NAN, NAN, NAN], [-np.inf, 2.0, NAN]])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("max", [3, NAN, 2]),
        ("min", [1, NAN, -np.inf]),
        ("sum", [4, NAN, -np.inf]),
        ("mean", [2, NAN, -np.inf]),
    ],
)
def test_what_is_not_known_does_not_count(how: str, expected: list[float]) -> None:
    np.testing.assert_array_equal(aggregated(VALUES, how), expected)
    np.testing.assert_array_equal(aggregated(np.zeros((2, 0)), how), [NAN, NAN])


@pytest.mark.parametrize("how", ["max", "min", "sum"])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_two_groups_together_are_as_all_of_them(how: str, place: int) -> None:
    parts = (aggregated(VALUES[:, :place], how), aggregated(VALUES[:, place:], how))
    np.testing.assert_array_equal(joined(*parts, how), aggregated(VALUES, how))


# Conditions: whole columns in, a mask out, and nothing of Python beyond that.


COLUMNS = {
    "nan_count": np.array([0.0, 3.0, np.nan, 7.0]),
    "max": np.array([1.0, -5.0, np.nan, 1e30]),
    "slot": np.array([0, 1, 2, 3]),
    "op_type": np.array(["Log", "Add", "", "Log"], object),
    "rank": 2,
}


def mask(text: str) -> list[bool]:
    return [bool(value) for value in Filter(text, frozenset(COLUMNS)).mask(COLUMNS, 4)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("nan_count > 0", [1, 3]),
        ("nan_count > 0 and op_type == 'Log'", [3]),
        ("nan_count > 0 or slot == 0", [0, 1, 3]),
        ("not nan_count > 0", [0, 2]),
        ("op_type in ['Log', 'Sub']", [0, 3]),
        ("op_type not in ('Log',)", [1, 2]),
        ("1 <= slot < 3", [1, 2]),
        ("abs(max) >= 5", [1, 3]),
        ("max != max", [2]),
        ("max < inf and max > -inf", [0, 1, 3]),
        ("slot * 2 + 1 == 3", [1]),
        ("nan_count / slot > 2", [1, 3]),
        ("rank == 2", [0, 1, 2, 3]),
        ("rank == 1", []),
        ("slot > 99999999999999999999999", []),
        ("1 / (slot - 1) > 0", [1, 2, 3]),
        ("  slot == 0\n", [0]),
    ],
)
def test_rows_that_fulfil_a_condition(text: str, rows: list[int]) -> None:
    assert [row for row, value in enumerate(mask(text)) if value] == rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slot",
        "slot + 1",
        "'text'",
        "slot ==",
        "slot = 1",
        "unknown > 1",
        "op_type > 1",
        "-op_type == 1",
        "abs(op_type) > 1",
        "__import__('os').system('true')",
        "slot.__class__",
        "slot[0] > 1",
        "(lambda: 1)() == 1",
        "[x for x in slot]",
        "slot ** 99 > 1",
        "f'{slot}' == ''",
        "slot if slot else slot",
        "abs(slot, 1) > 0",
        "abs(*slot) > 0",
        "print(slot) > 1",
        "slot > None",
        "slot > b'x'",
        "slot > ...",
        "slot is 1",
        "slot & 1 > 0",
        "(" * 500,
        "not " * 5000 + "slot",
        "slot + 99999999999999999999999 > 1",
        "nan_count and",
        "slot > 1; slot",
        "1 < 2 < 'a'",
    ],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    """The condition comes from a command line or a web form; nothing of it is ever run."""
    with pytest.raises(UsageError, match="where"):
        mask(text)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("nan_count = 2", "character 11 is '='; use '=='", "For example"),
        ("op_type == '=' && slot > 1", "character 16 is '&&'; use 'and'", "For example"),
        ("!slot == 1", "character 1 is '!'; use 'not'", "For example"),
        ("nan_count >", "something is missing after 'nan_count >'", "For example"),
        ("", "it is empty", "For example"),
        ("nan_count > > 2", "at character 13, '> 2'", "For example"),
        ("nan_cout > 0", "names 'nan_cout', which is not a column", "Did you mean nan_count?"),
        (
            "op_type == Sqrt",
            "names 'Sqrt' at character 12, which is not a column",
            "Quote it if it is text: op_type == 'Sqrt'.",
        ),
        ("weight > 0", "names 'weight', which is not a column", "Columns: rank, op_type, nan_count, max"),
        (
            "nan_count > 'a'",
            "cannot be evaluated: \"nan_count > 'a'\" takes text for a number",
            "For example",
        ),
        ("1 < slot < 'a'", "\"slot < 'a'\" at character 5 takes text for a number", "For example"),
        (
            "slot > 1 and max > 6.5GB",
            "'6.5GB' at character 20 is not a number; numbers have no unit",
            "For example",
        ),
        ("max == nan", "compares with nan at character 8, which no number equals", "Use nan_count > 0"),
        ("1 < slot != NaN", "compares with nan at character 13, which no number", "Use nan_count > 0"),
    ],
)
def test_a_message_names_the_place_and_the_remedy(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        mask(text)
    assert message in error.value.message
    assert hint in error.value.hint
    assert "ufunc" not in error.value.message


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert len(mask(text)) == 4


@pytest.mark.parametrize(
    "text", ["'a' * 10000000000 == 'b'", "op_type * 10000000000 == 'b'", "[1] * 10000000000 == 1"]
)
def test_text_and_lists_are_not_repeated(text: str) -> None:
    """Python would fill the memory with them."""
    condition = Filter(text, frozenset(["op_type"]))
    with pytest.raises(UsageError, match="only numbers can be"):
        condition.mask({"op_type": np.array(["Log", "Exp"], object)}, 2)


def test_a_condition_of_a_megabyte_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="characters, which is more than"):
        Filter("1 == 1 or " * 100_000 + "1 == 1", frozenset())


def test_a_sum_of_counts_is_a_column_where_its_parts_are() -> None:
    counts = {
        "nan_count": np.array([0.0, 0.0, 0.0, 5.0]),
        "pos_inf_count": np.array([0.0, 2.0, np.nan, 0.0]),
        "neg_inf_count": np.array([0.0, 1.0, 4.0, 0.0]),
    }
    condition = Filter("inf_count > 0", frozenset(counts))
    assert condition.names == {"pos_inf_count", "neg_inf_count"}
    assert condition.mask(counts, 4).tolist() == [False, True, False, False]
    assert Filter("non_finite_count == 5", frozenset(counts)).mask(counts, 4).tolist() == [False] * 3 + [True]
    with pytest.raises(UsageError, match="'inf_count', which is not a column"):
        Filter("inf_count > 0", frozenset({"pos_inf_count"}))


# The elements of views are those that numpy picks by the same strides.


FLOAT = from_name("float32")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=4))
def test_elements_are_those_that_numpy_picks(axes: list[tuple[int, int]]) -> None:
    shape, strides = tuple(n for n, _ in axes), tuple(4 * stride for _, stride in axes)
    span = span_nbytes(shape, strides, 4)
    data = np.arange(span // 4, dtype=np.float32)
    expected = np.lib.stride_tricks.as_strided(data, shape, strides) if span else np.zeros(shape, np.float32)
    found = gather(data.tobytes(), StridedView(strides), shape, FLOAT)
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_operations_that_were_put_off_are_carried_out() -> None:
    values = np.array([1 + 2j, -3 - 4j], np.complex64)
    view = StridedView((8,), conjugate=True, negative=True)
    found = gather(values.tobytes(), view, (2,), from_name("complex64"))
    assert (found == -values.conj()).all()


@pytest.mark.parametrize("dtype", [">f4", "<f4", ">f8", ">c8", "<c16", ">i4", ">i8"])
def test_operations_that_were_put_off_keep_the_order_of_bytes(dtype: str) -> None:
    values = np.array([1.5, -2, 3]).astype(dtype)
    view = StridedView((values.itemsize,), conjugate=True, negative=True)
    picked = gather(values.tobytes(), view, (3,), from_npy_descr(dtype))
    assert picked.tobytes() == (-values.conj()).astype(dtype).tobytes()


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(("conjugate", "negative"), [(True, False), (False, True), (True, True)])
def test_complex_numbers_of_half_precision_are_conjugated(
    conjugate: bool, negative: bool, big_endian: bool
) -> None:
    element = from_name("complex32", big_endian=big_endian)
    values = np.array([(1, 2), (-3, 4.5)], element.to_numpy())
    view = StridedView((4,), conjugate=conjugate, negative=negative)
    picked = gather(values.tobytes(), view, (2,), element)
    assert picked.dtype == element.to_numpy()
    numbers = values["real"].astype("f4") + 1j * values["imag"].astype("f4")
    expected = numbers.conj() if conjugate else numbers
    expected = -expected if negative else expected
    assert (picked["real"].astype("f4") + 1j * picked["imag"].astype("f4") == expected).all()


def test_elements_come_from_where_they_are() -> None:
    values = np.arange(6, dtype=np.float32)
    file = b"head" + values.tobytes()

    def read(start: int, nbytes: int) -> bytes:
        return file[4 + start : 4 + start + nbytes]

    assert bytes(elements_of(read, StridedView(), (6,), FLOAT)) == values.tobytes()
    assert bytes(elements_of(read, StridedView((8,)), (3,), FLOAT)) == values[::2].tobytes()
    assert bytes(elements_of(read, StridedView(inline=b"abcd"), (1,), FLOAT)) == b"abcd"
    packed = zlib.compress(b"skip" + values.tobytes())[2:-4]
    view = StridedView(deflated=len(packed), skipped=4)
    assert bytes(elements_of(lambda _, nbytes: packed[:nbytes], view, (6,), FLOAT)) == values.tobytes()


def test_nothing_larger_than_announced_is_decompressed() -> None:
    bomb = zlib.compress(bytes(50_000_000))[2:-4]
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        inflate(bomb, 1000)
    with pytest.raises(ValueError, match="50000000 bytes, not 50000001"):
        inflate(bomb, 50_000_001)
    with pytest.raises(ValueError, match="invalid"):
        inflate(b"\xff" * 10, 10)


# Elements between host and device: boxes, strides and pieces, against plain loops.


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    shape = draw(shapes)
    box = []
    for length in shape:
        start = draw(st.integers(0, length - 1))
        box.append((start, draw(st.integers(start + 1, length))))
    return shape, tuple(box)


@given(shapes)
def test_strides_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    assert nested_strides(shape) == tuple(stride // 8 for stride in np.zeros(shape, np.int64).strides)


@given(boxes(), st.integers(1, 4))
def test_pieces_are_the_bytes_of_a_box_in_order(case: tuple[tuple[int, ...], Box], itemsize: int) -> None:
    shape, box = case
    places = np.arange(math.prod(shape)).reshape(shape)[tuple(slice(*bounds) for bounds in box)].reshape(-1)
    pieces = list(byte_ranges(shape, box, itemsize))
    covered = [at // itemsize for offset, nbytes in pieces for at in range(offset, offset + nbytes, itemsize)]
    assert covered == places.tolist()
    count, size, _ = contiguous_run(shape, box)
    assert len(pieces) == count
    assert {nbytes for _, nbytes in pieces} == {size * itemsize}


#: A matrix whose rows are in blocks of 4 on the device, blocks first: what NZ does to one axis.
BLOCKED = Arrangement(device=(3, 5, 4), host=(5, 10), parts=((1,), (0, 2)))


def test_axis_in_blocks_has_a_rest_in_its_last_block() -> None:
    host = np.arange(1, 51, dtype=np.uint16)
    device = np.zeros(3 * 5 * 4, np.uint16)
    BLOCKED.to_device(host, device)
    for row, column in itertools.product(range(5), range(10)):
        assert device.reshape(3, 5, 4)[column // 4, row, column % 4] == host.reshape(5, 10)[row, column]
    assert np.count_nonzero(device) == host.size
    back = np.zeros_like(host)
    BLOCKED.to_host(device, back)
    np.testing.assert_array_equal(back, host)
