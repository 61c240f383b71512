"""A label that tells of a disagreement is recognised by whoever reads it later."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.store.tables import disagreeing, with_disagreement


def test_the_text_is_that_of_earlier_versions() -> None:
    """Stores have it, and rules look for it there."""
    differences = ["max: 3 is reported, 2 computed", "nan_count: 1 is reported, 0 computed"]
    text = "s.csv disagrees: max: 3 is reported, 2 computed, nan_count: 1 is reported, 0 computed"
    assert with_disagreement("", "s.csv", differences) == text
    assert with_disagreement("torn", "s.csv", differences) == f"torn; {text}"


@given(st.lists(st.tuples(st.text(max_size=5), st.booleans()), max_size=8))
def test_labels_with_a_disagreement_are_recognised(rows: list[tuple[str, bool]]) -> None:
    labels = [with_disagreement(text, "s.csv", ["max"]) if differs else text for text, differs in rows]
    column = np.array([*labels, ""], object)
    assert disagreeing(column).tolist() == [*(differs for _, differs in rows), False]
