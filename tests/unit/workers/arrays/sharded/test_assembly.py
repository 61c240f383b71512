"""Whole tensors from pieces, by range."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.in_memory import elements
from workers.arrays.sharded.assembly import (
    AxisSegment,
    Joined,
    Piece,
    Same,
    Summed,
    interleaved,
    joined,
    pieces_read,
    replicas,
    zigzag,
)

WHOLE = np.arange(6 * 8 * 10, dtype=np.float32).reshape(6, 8, 10)


@given(
    axis=st.integers(0, 2),
    count=st.integers(1, 5),
    ends=st.tuples(st.integers(0, WHOLE.size), st.integers(0, WHOLE.size)),
)
@settings(max_examples=60, deadline=None)
def test_any_range_of_joined_pieces_is_that_of_the_whole(
    axis: int, count: int, ends: tuple[int, int]
) -> None:
    parts = np.array_split(WHOLE, count, axis=axis)
    whole = joined([Piece(number, part.shape) for number, part in enumerate(parts)], axis)
    start, stop = sorted(ends)
    assert whole.shape == WHOLE.shape
    assert whole.read(elements(parts), start, stop).tolist() == WHOLE.reshape(-1)[start:stop].tolist()


def test_padding_at_the_end_is_cut_off() -> None:
    padded = np.concatenate([WHOLE[4:], np.full((1, 8, 10), -1, np.float32)])
    whole = joined([Piece(0, (4, 8, 10)), Piece(1, (3, 8, 10))], 0, 6)
    assert whole.shape == (6, 8, 10)
    read = whole.read(elements([WHOLE[:4], padded]), 0, WHOLE.size)
    assert np.array_equal(read, WHOLE.reshape(-1))


def test_blocks_and_chunks_are_put_into_their_order() -> None:
    thirds = np.split(WHOLE, 3)
    ranks = [np.concatenate([third[rank : rank + 1] for third in thirds]) for rank in (0, 1)]
    parts = [Piece(number, (3, 8, 10)) for number in (0, 1)]
    fused = interleaved(parts, 0, [1, 1, 1])
    assert np.array_equal(fused.read(elements(ranks), 0, WHOLE.size), WHOLE.reshape(-1))
    early_and_late = [np.concatenate([WHOLE[:, :2], WHOLE[:, 6:]], axis=1), WHOLE[:, 2:6]]
    halves = zigzag([Piece(number, (6, 4, 10)) for number in (0, 1)], 1)
    assert np.array_equal(halves.read(elements(early_and_late), 7, 400), WHOLE.reshape(-1)[7:400])
    sequences = [[0, 3, 4, 7], [1, 2, 5, 6]]  # two of four positions each
    packed = zigzag([Piece(number, (6, 4, 10)) for number in (0, 1)], 1, (4, 4))
    read = packed.read(elements([WHOLE[:, own] for own in sequences]), 0, WHOLE.size)
    assert np.array_equal(read, WHOLE.reshape(-1))


@pytest.mark.parametrize(("factor", "expected"), [(1.0, [4.0, 6.0]), (0.5, [2.0, 3.0])])
def test_sums_and_means(factor: float, expected: list[float]) -> None:
    parts = elements([np.array([1, 2], np.float16), np.array([3, 4], np.float16)])
    summed = Summed((Piece(0, (2,)), Piece(1, (2,))), factor)
    assert summed.read(parts, 0, 2).tolist() == expected
    assert summed.shape == (2,)


def test_replicas_are_every_choice_among_what_should_be_the_same() -> None:
    same = Same((Piece(0, (2,)), Piece(1, (2,))))
    whole = Joined((same, Piece(2, (2,))), 0, (AxisSegment(0, 0, 2), AxisSegment(1, 0, 2)))
    assert list(map(pieces_read, replicas(whole))) == [(0, 2), (1, 2)]
    assert pieces_read(whole) == (0, 2)
