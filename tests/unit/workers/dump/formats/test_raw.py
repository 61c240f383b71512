"""Files of elements only: their size must be that of the type and the shape in their name."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.dtypes import from_name
from workers.dump.formats import npy
from workers.dump.formats.header import Truncated
from workers.errors import UnreadableTensor


@given(
    st.sampled_from(["float32", "int8", "complex128", "bfloat16"]), st.lists(st.integers(0, 9), max_size=4)
)
def test_file_of_the_right_size_is_one_tensor(dtype: str, shape: list[int]) -> None:
    nbytes = from_name(dtype).nbytes(math.prod(shape))
    header = npy.raw_header(dtype, tuple(shape), nbytes)
    assert (header.shape, header.offset, header.nbytes, header.element.name) == (
        tuple(shape),
        0,
        nbytes,
        dtype,
    )


@pytest.mark.parametrize(
    ("dtype", "nbytes", "size"), [("float32", 24, 6), ("int4", 3, 6), ("uint1", 2, 16), ("|V1", 5, 5)]
)
def test_without_a_shape_all_elements_are_on_one_axis(dtype: str, nbytes: int, size: int) -> None:
    assert npy.raw_header(dtype, None, nbytes).shape == (size,)


def test_short_file_may_still_grow_and_a_long_one_is_damaged() -> None:
    with pytest.raises(
        Truncated, match=r"has 20 bytes, but its name announces 24 \(float32, shape \(2, 3\)\)"
    ):
        npy.raw_header("float32", (2, 3), 20)
    with pytest.raises(UnreadableTensor, match="has 28 bytes") as error:
        npy.raw_header("float32", (2, 3), 28)
    assert not isinstance(error.value, Truncated)
