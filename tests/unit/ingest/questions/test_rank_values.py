"""The values of a heatmap alone, read from the consolidated view and from the steps."""

import numpy as np
import pytest

import ingest
from ingest.questions.heatmap import heatmap
from ingest.questions.matrix import rank_values
from tests.replicas import gappy_replicas


@pytest.mark.parametrize("pattern", [None, "*", "Adam.w.*"])
@pytest.mark.parametrize("is_consolidated", [False, True])
def test_they_are_the_values_of_the_heatmap(pattern: str | None, *, is_consolidated: bool) -> None:
    store = gappy_replicas().store
    if is_consolidated:
        ingest.consolidate(store.url)
    field = heatmap(store, pattern, "max")
    values = rank_values(store, pattern, "max")
    assert list(values) == field["step"].values.tolist() == [0, 1, 2, 3]
    for step, known in values.items():
        column = field.sel(step=step, rank=known.ranks)
        np.testing.assert_array_equal(known.values, column)
    assert [values[step].ranks.tolist() for step in (0, 1)] == [[0, 1], [0]]
