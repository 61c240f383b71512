"""How the ranks of a group compare, judged by one pattern."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.questions.divergence.agreement import ABSENT, UNKNOWN
from ingest.questions.divergence.partitions import judge, partition_of, within


def pattern(*labels: int) -> np.ndarray:
    """Return a pattern: for each rank, the place of the first rank with the same content."""
    return np.array(labels, np.int32)


@pytest.mark.parametrize(
    ("labels", "odd", "has_majority", "agrees"),
    [
        ((0, 0, 0, 0), (), True, True),
        ((0, 0, 2, 0), (2,), True, False),
        ((0, 0, 2, 3), (2, 3), True, False),
        ((0, 1), (0, 1), False, False),
        ((0, 0, 2, 2), (0, 1, 2, 3), False, False),
        ((0, 1, 2), (0, 1, 2), False, False),
        ((0, ABSENT, 0, UNKNOWN), (), True, True),
    ],
)
def test_a_majority_of_at_least_two_says_who_is_odd(
    labels: tuple[int, ...], odd: tuple[int, ...], has_majority: bool, agrees: bool
) -> None:
    (verdict,) = judge(pattern(*labels), (tuple(range(len(labels))),))
    assert (verdict.odd, verdict.has_majority, verdict.agrees) == (odd, has_majority, agrees)


def test_each_block_is_judged_alone_and_those_without_two_ranks_are_left_out() -> None:
    blocks = ((0, 2), (1, 3), (4, 5))
    verdicts = judge(pattern(0, 1, 0, 3, ABSENT, 5), blocks)
    assert [(verdict.block, verdict.agrees) for verdict in verdicts] == [((0, 2), True), ((1, 3), False)]


def test_statistics_are_compared_only_with_statistics() -> None:
    """A label of at least the number of ranks stands for statistics."""
    (verdict,) = judge(pattern(0, 0, 6, 7), ((0, 1, 2, 3),))
    assert (verdict.compared, verdict.by_statistics) == ((0, 1), False)
    (verdict,) = judge(pattern(0, 5, 5, 5), ((0, 1, 2, 3),))
    assert (verdict.compared, verdict.by_statistics, verdict.agrees) == ((1, 2, 3), True, True)


def test_near_is_more_than_half_of_three_or_more() -> None:
    near = {
        labels: judge(pattern(*labels), (tuple(range(len(labels))),))[0].is_near
        for labels in ((0, 0, 2), (0, 0, 2, 2), (0, 0), (0, 1))
    }
    assert near == {(0, 0, 2): True, (0, 0, 2, 2): False, (0, 0): False, (0, 1): False}


def test_a_partition_has_blocks_of_one_size() -> None:
    assert partition_of(pattern(0, 1, 0, 1)) == ((0, 2), (1, 3))
    assert partition_of(pattern(0, 0, ABSENT, 0)) == ((0, 1, 3),)
    assert partition_of(pattern(0, 0, 0, 3)) is None
    assert partition_of(pattern(0, 1, 2)) is None
    assert partition_of(pattern(ABSENT, ABSENT)) is None


@given(st.lists(st.integers(0, 3), min_size=2, max_size=8))
def test_the_partition_that_a_pattern_shows_agrees_with_it(contents: list[int]) -> None:
    labels = pattern(*(contents.index(content) for content in contents))
    partition = partition_of(labels)
    if partition is not None:
        assert all(verdict.agrees for verdict in judge(labels, partition))
        assert sorted(place for block in partition for place in block) == list(range(len(contents)))


def test_within_some_ranks_blocks_of_one_are_left_out() -> None:
    assert within(((0, 2), (1, 3)), (0, 1, 2)) == ((0, 2),)
    assert within(((0, 1, 2),), (0, 2)) == ((0, 2),)
