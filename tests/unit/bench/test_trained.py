"""Tensors of a net that is trained."""

import numpy as np

from bench.trained import trained_tensors


def test_training_gives_finite_tensors_that_change() -> None:
    tensors = trained_tensors(2)
    assert all(np.isfinite(values).all() for values in tensors.values())
    assert (tensors["relu"] == 0).mean() > 0.2
    assert np.count_nonzero(tensors["update of weight1"]) > 1000
