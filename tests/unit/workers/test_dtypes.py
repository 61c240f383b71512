"""Element types: which array takes them, and how they come back."""

import ml_dtypes
import numpy as np
import pytest

from workers.formats.dtypes import from_name, from_npy_descr


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


def test_numpy_dtype_of_an_element_has_its_byte_order() -> None:
    assert from_npy_descr(">f4").to_numpy() == np.dtype(">f4")
    assert from_npy_descr("<E2").to_numpy() == np.dtype(ml_dtypes.bfloat16)
    assert from_npy_descr("[('a', '>i2')]").to_numpy() == np.dtype([("a", ">i2")])


@pytest.mark.parametrize("name", ["nonsense", "", "[", "f(", "[('a', 'nonsense')]"])
def test_unknown_name_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="element type"):
        from_name(name)
