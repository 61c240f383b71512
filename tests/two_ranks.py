"""Make a store in which one tensor may differ between two ranks."""

from pathlib import Path

import numpy as np

from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.store.model import Grid

#: The name of the operator, and the time in its file name.
ADD = "Add.net_Add-op0"
TIME = 1_795_220_037_870_000


def two_ranks(dump: MadeDump, store: Path, a: np.ndarray, b: np.ndarray, grid: Grid | None = None) -> str:
    """Make a store with one tensor, which is `a` on rank 0 and `b` on rank 1, and return its path."""
    for rank, values in enumerate((a, b)):
        dump.add(values, tensor_name(ADD, time=TIME), rank=rank)
    ingest_directly(dump.root, store, grid)
    return str(store)
