"""The statistics that ours are compared with."""

import numpy as np
import pytest

from bench.numpy_statistics import numpy_statistics
from workers.arrays.statistics import summarise


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_numpy_computes_the_same_as_the_kernels(dtype: str) -> None:
    values = np.random.default_rng(0).normal(0, 9, 10_000).astype(dtype)
    if dtype == "f4":
        values[:4] = np.nan, np.inf, -np.inf, 0
    np.testing.assert_allclose(numpy_statistics(values), summarise(values).as_row(), rtol=1e-9, atol=1e-12)
