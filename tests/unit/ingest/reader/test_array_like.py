"""A tensor is used like an array of numpy, and reads what it needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import Tensor, open_store
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
