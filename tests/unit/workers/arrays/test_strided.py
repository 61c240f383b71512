"""The elements of views are those that numpy picks by the same strides."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.arrangements import StridedView, elements_of, gather, inflate, span_nbytes
from workers.arrays.dtypes import from_name, from_npy_descr

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
