"""A dump for the tests of the service."""

import numpy as np
import pytest

from tests.stores import MadeDump


@pytest.fixture
def filled(made: MadeDump) -> MadeDump:
    """Two ranks, two steps and a run file."""
    for rank in range(2):
        for step in range(2):
            made.add(np.full(10, rank + step, "<f4"), rank=rank, step=step)
    (made.root / "notes.txt").write_text("x")
    return made
