"""Percentiles: between bounds from histograms, exact from elements, the same after the elements are gone."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.quantiles import quantiles

PERCENTS = (0.0, 1.0, 50.0, 99.9, 100.0)


@pytest.mark.parametrize("magnitude", [False, True])
def test_bounds_hold_what_numpy_computes_and_elements_give_it_exactly(
    sketched_store: Path, *, magnitude: bool
) -> None:
    store = ingest.open_store(sketched_store)
    tensors = {tensor.name: tensor for tensor in store.tensors(rank=1, step=2)}
    chosen = {"percents": PERCENTS, "magnitude": magnitude, "rank": 1, "step": 2}
    bounded = quantiles(store, **chosen)  # type: ignore[arg-type]  # of several types
    exact = quantiles(store, exact=True, **chosen)  # type: ignore[arg-type]  # of several types
    assert len(bounded.tensors) == len(exact.tensors) == len(tensors)
    for low_and_high, elements in zip(bounded.tensors, exact.tensors, strict=True):
        values = tensors[elements.name].read().astype(np.float64)
        values = values[np.isfinite(values)]
        values = np.abs(values) if magnitude else values
        if not values.size:
            continue
        assert elements.exactness == "exact"
        for percent in PERCENTS:
            expected = np.percentile(values, percent)
            assert elements.percentiles[percent].low == pytest.approx(expected, rel=1e-6)
            bounds = low_and_high.percentiles[percent]
            assert bounds.low - abs(bounds.low) * 1e-6 <= expected <= bounds.high + abs(bounds.high) * 1e-6
