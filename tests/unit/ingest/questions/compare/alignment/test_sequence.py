"""The best alignment of two sequences: against all alignments of short ones, and by its properties."""

from functools import cache

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from ingest.questions.compare.alignment.align import align_sequences

Scores = npt.NDArray[np.int64]

tables = st_numpy.arrays(
    np.int64,
    st.tuples(st.integers(0, 7), st.integers(0, 7)),
    elements=st.integers(-2, 9),
)


def best_sum(scores: Scores) -> int:
    """Return the largest sum of all alignments, by its definition."""

    @cache
    def best(row: int, column: int) -> int:
        if row == scores.shape[0] or column == scores.shape[1]:
            return 0
        paired = scores[row, column] + best(row + 1, column + 1) if scores[row, column] > 0 else 0
        return max(int(paired), best(row + 1, column), best(row, column + 1))

    return best(0, 0)


def aligned(scores: Scores) -> list[tuple[int, int]]:
    return align_sequences(lambda row: scores[row], *scores.shape)


@given(tables)
def test_no_other_alignment_has_a_larger_sum(scores: Scores) -> None:
    pairs = aligned(scores)
    assert sum(int(scores[pair]) for pair in pairs) == best_sum(scores)
    assert all(scores[pair] > 0 for pair in pairs)
    places_a, places_b = [a for a, _ in pairs], [b for _, b in pairs]
    assert places_a == sorted(set(places_a))
    assert places_b == sorted(set(places_b))


@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_what_is_left_out_of_a_sequence_is_a_gap(text: str, more: str) -> None:
    """All of a sequence is found in one that has other members between."""
    longer = "".join(f"{more[place : place + 1].upper()}{letter}" for place, letter in enumerate(text))
    scores = np.array([[letter == other for other in longer] for letter in text], np.int64)
    pairs = aligned(scores.reshape(len(text), len(longer)))
    assert "".join(longer[b] for _, b in pairs) == text
    assert [a for a, _ in pairs] == list(range(len(text)))
