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
KEYS: list[Any] = [
    0,
    -1,
    np.int64(2),
    slice(1, 3),
    slice(None, None, -2),
    slice(4, 1, -1),
    slice(3, 3),
    ...,
    (..., 1),
    (1, ..., slice(0, 2)),
    (slice(1, 4), 2, -1),
    (slice(None), slice(None), 3),
    (None, 2),
    [0, 2],
    VALUES > 30,
    (),
]


def dumped(made: MadeDump, store: Path, values: Any, grid: Grid = SMALL_GRID) -> Tensor:
    made.add(values)
    ingest_directly(made.root, store, grid)
    (tensor,) = open_store(store).tensors()
    return tensor


@pytest.mark.parametrize("order", ["C", "F"])
def test_parts_are_those_of_numpy(made: MadeDump, store: Path, order: Any) -> None:
    tensor = dumped(made, store, np.asarray(VALUES, order=order))
    for key in KEYS:
        assert np.array_equal(tensor[key], VALUES[key]), key
    for key in (5, -6, (0, 3), (0, 0, 0, 0)):
        with pytest.raises(IndexError):
            _ = tensor[key]


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
