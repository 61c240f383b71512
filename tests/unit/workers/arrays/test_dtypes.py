"""Element types: which array takes them, and how they come back."""

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.dtypes import FLOAT8, from_name, from_npy_descr, unpack

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
