"""Elements between host and device: boxes, strides and pieces, against plain loops."""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.arrangements import (
    Arrangement,
    Box,
    byte_ranges,
    contiguous_run,
    nested_strides,
)

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
