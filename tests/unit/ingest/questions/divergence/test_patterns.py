"""Who agrees with whom, and on what agreeing tells nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ingest.questions.divergence.patterns import ABSENT, Patterns, patterns_of
from workers.arrays.statistics import FIELDS, summarise
from workers.store.consolidated.blocks import Block


@settings(max_examples=60, deadline=None)
@given(
    codes=arrays.arrays(
        np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 12)), elements=st.integers(0, 3)
    ),
    data=st.data(),
)
def test_a_pattern_is_who_agrees_with_whom(codes: np.ndarray, data: st.DataObject) -> None:
    """Against the obvious way to say it."""
    present = data.draw(arrays.arrays(np.bool_, codes.shape))
    digest = np.zeros((*codes.shape, 16), np.uint8)
    digest[:, :, 7] = codes + 1
    digest[:, :, 9] = 5
    digest[~present] = 0
    statistics = np.full((*codes.shape, len(FIELDS)), np.nan)
    ranks = tuple(range(10, 10 + len(codes)))
    row = np.where(present, 0, -1).astype(np.int32)
    patterns = Patterns(len(ranks))
    found = patterns_of(Block(3, ranks, row, statistics, digest), ranks, patterns)
    for tensor in range(codes.shape[1]):
        expected = [
            min(j for j in range(len(codes)) if present[j, tensor] and codes[j, tensor] == codes[i, tensor])
            if present[i, tensor]
            else ABSENT
            for i in range(len(codes))
        ]
        assert patterns[found.by_content[tensor]].tolist() == expected


@settings(max_examples=100, deadline=None)
@given(value=st.floats(-1e3, 1e3), other=st.floats(-1e3, 1e3), size=st.integers(3, 50), data=st.data())
def test_what_holds_two_values_tells_nothing(
    value: float, other: float, size: int, data: st.DataObject
) -> None:
    """A mask agrees by accident; what holds three values that are far apart does not."""
    which = data.draw(arrays.arrays(np.bool_, size))
    two = np.where(which, value, other)
    three = np.concatenate([[-3.0, 0.5, 3.0], two])
    statistics = np.array([[summarise(two).as_row(), summarise(three).as_row()]])
    block = Block(0, (0,), np.zeros((1, 2), np.int32), statistics, np.ones((1, 2, 16), np.uint8))
    assert not patterns_of(block, (0,), Patterns(1)).tells[0]
