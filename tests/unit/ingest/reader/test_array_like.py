"""A tensor is used like an array of numpy, and reads what it needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import Tensor, open_store
from tests.counted_requests import CountedRequests
from tests.npy_files import MadeDump
from tests.pipeline import SMALL_GRID, ingest_directly
from workers.store.model import Grid

VALUES = np.arange(60, dtype=np.float32).reshape(5, 3, 4)


def dumped(made: MadeDump, store: Path, values: Any, grid: Grid = SMALL_GRID) -> Tensor:
    made.add(values)
    ingest_directly(made.root, store, grid)
    (tensor,) = open_store(store).tensors()
    return tensor


def test_it_becomes_an_array(made: MadeDump, store: Path) -> None:
    tensor = dumped(made, store, VALUES)
    assert np.array_equal(np.asarray(tensor), VALUES)
    assert np.asarray(tensor, np.float64).dtype == np.float64
    assert (len(tensor), len(list(tensor)), bool(tensor)) == (5, 5, True)
    assert float(np.max(tensor)) == 59
    with pytest.raises(ValueError, match="copy=False is impossible"):
        np.array(tensor, copy=False)


def test_part_reads_no_more_than_its_rows(made: MadeDump, store: Path, requests: CountedRequests) -> None:
    values = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    tensor = dumped(made, store, values, Grid(chunk_nbytes=64 * 1024))
    requests.clear()
    assert np.array_equal(tensor[500:502, ::2], values[500:502, ::2])
    assert sum(requests.range_nbytes) < 512 * 1024
