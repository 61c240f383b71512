"""Which ranks hold the same bytes of a tensor."""

import numpy as np
import pytest

from ingest.questions.placement.equal_holders import EqualHolders, tells_nothing
from workers.arrays.statistics import summarise


@pytest.mark.parametrize(
    ("groups", "is_replicated", "is_distinct", "pattern"),
    [
        (((0, 1, 2),), True, False, (0, 0, 0)),
        (((0,), (1,), (2,)), False, True, (0, 1, 2)),
        (((0, 2), (1, 3)), False, False, (0, 1, 0, 1)),
        (((0,),), False, False, (0,)),  # a single rank tells nothing
    ],
)
def test_ranks_hold_the_same_or_a_part_each(
    groups: tuple[tuple[int, ...], ...], pattern: tuple[int, ...], *, is_replicated: bool, is_distinct: bool
) -> None:
    held = EqualHolders(groups)
    assert (held.is_replicated, held.is_distinct, held.pattern) == (is_replicated, is_distinct, pattern)
    assert not EqualHolders(groups, is_known=False).is_distinct


@pytest.mark.parametrize(
    ("groups", "odd"),
    [
        (((0, 1, 3), (2,)), (2,)),
        (((0,), (1, 2, 3, 5), (4,)), (0, 4)),
        (((0, 2), (1, 3)), (0, 1, 2, 3)),
        (((0,), (1,)), (0, 1)),
    ],
)
def test_ranks_that_do_not_hold_what_most_hold_are_odd(
    groups: tuple[tuple[int, ...], ...], odd: tuple[int, ...]
) -> None:
    assert EqualHolders(groups).odd == odd


@pytest.mark.parametrize(
    ("values", "nothing"),
    [([1.0, 1.0], True), ([np.nan, np.inf], True), ([1.0, 2.0], False), ([1.0, 2.0, np.nan], False)],
)
def test_equal_elements_and_none_that_is_finite_tell_nothing(values: list[float], *, nothing: bool) -> None:
    statistics = np.array(summarise(np.array(values)).as_row())
    assert tells_nothing(statistics) == nothing
