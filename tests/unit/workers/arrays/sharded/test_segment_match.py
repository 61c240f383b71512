"""Where positions of an axis lie in a whole, by content."""

import numpy as np

from tests.in_memory import InMemory, elements
from workers.arrays.sharded.assembly import AxisSegment
from workers.arrays.sharded.placement_search import match_order

WHOLE = np.random.default_rng(2).normal(size=(3, 10, 4)).astype(np.float32)


def test_stretches_are_found_with_rounding() -> None:
    order = [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]
    parts = np.split(WHOLE[:, order], 2, axis=1)
    noisy = [part * np.float32(1 + 1e-6) for part in parts]
    found = match_order(elements(noisy), [part.shape for part in parts], InMemory(WHOLE), WHOLE.shape, 1)
    assert found is not None
    assert [list(map(tuple, stretches)) for stretches in found.stretches] == [
        [(0, 7, 3), (3, 0, 2)],
        [(0, 2, 5)],
    ]
    assert found.segments(10) == [AxisSegment(0, 3, 2), AxisSegment(1, 0, 5), AxisSegment(0, 0, 3)]
    assert found.segments(11) == []


def test_nothing_is_said_of_equal_positions_and_of_other_values() -> None:
    same = np.ones((4, 3), np.float32)
    assert match_order(elements([same[:2]]), [(2, 3)], InMemory(same), (4, 3), 0) is None
    other = np.random.default_rng(3).normal(size=(3, 5, 4)).astype(np.float32)
    assert match_order(elements([other]), [(3, 5, 4)], InMemory(WHOLE), WHOLE.shape, 1) is None


def test_packed_sequences_are_found_if_they_are_not_short() -> None:
    """Each of 40 sequences is cut into four chunks, of which a rank has an early and a late one."""
    rng = np.random.default_rng(4)
    for length, is_clear in ((40, True), (12, False)):
        whole = rng.normal(size=(40 * length, 6)).astype(np.float32)
        chunks = whole.reshape(40, 4, length // 4, 6)
        parts = [chunks[:, [rank, 3 - rank]].reshape(-1, 6) for rank in range(2)]
        found = match_order(elements(parts), [part.shape for part in parts], InMemory(whole), whole.shape, 0)
        assert (found is not None) == is_clear
        assert found is None or bool(found.segments(len(whole)))


def test_values_in_random_order_are_not_an_order() -> None:
    whole = np.random.default_rng(5).normal(size=(512, 6)).astype(np.float32)
    mixed = whole[np.random.default_rng(6).permutation(512)]
    parts = np.split(mixed, 2)
    assert match_order(elements(parts), [(256, 6)] * 2, InMemory(whole), whole.shape, 0) is None
