"""Heatmaps: aggregates of the values of a trend, and gaps."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.heatmap import heatmap
from ingest.questions.trend import trend
from tests.replicas import gappy_replicas


def test_a_field_is_an_aggregate_of_the_trend(nan_log: Path) -> None:
    store = ingest.open_store(nan_log)
    for stat, how, default in (
        ("nan", "sum", True),
        ("norm", "max", True),
        ("min", "min", True),
        ("std", "mean", False),
    ):
        field = heatmap(store, "*output*", stat, aggregate=None if default else how)
        rows = trend(store, "*output*", stat).groupby(["rank", "step"])["value"].agg(how)
        assert field.attrs["aggregate"] == how
        assert field.dims == ("rank", "step")
        for rank, step in ((rank, step) for rank in (0, 1) for step in (1, 2, 3)):
            assert float(field.sel(rank=rank, step=step)) == pytest.approx(rows[rank, step])
    assert float(heatmap(store, "*", "nan").sel(rank=1, step=2)) == 7


def test_a_field_has_gaps_and_no_zeros() -> None:
    field = heatmap(gappy_replicas().store, "Adam.*", "nan_count")
    assert np.isnan(field.sel(rank=1, step=1))
    assert np.isnan(field.sel(rank=0, step=3))
    assert field["tensors"].sel(rank=1, step=1) == 0
    assert field.attrs["left_out"] == ["rank 0 step 3: partial"]
