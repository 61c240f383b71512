"""Sketches are added to the store that settings name."""

from pathlib import Path

import numpy as np
import pytest

from ingest.wiring.sketching import sketch
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.errors import UsageError
from workers.model import StepKey
from workers.tasks.sketch import Sketched


@pytest.fixture
def filled(made: MadeDump, store: Path) -> Path:
    """Two ranks of two steps, without sketches."""
    for rank in range(2):
        for step in range(2):
            made.add(np.ones(3), rank=rank, step=step)
    ingest_directly(made.root, store)
    return store


def test_chosen_steps_get_them_and_each_is_told_when_it_is_done(filled: Path) -> None:
    told: list[Sketched] = []
    report = sketch(filled, rank=1, progress=told.append)
    assert [step.key for step in told] == [StepKey(1, 0), StepKey(1, 1)]
    assert (report.added, report.had, report.left) == (tuple(told), 0, ())
    again = sketch(filled)
    assert ([step.key.rank for step in again.added], again.had) == ([0, 0], 2)
    assert again.to_dict()["added"][0] == {"rank": 0, "step": 0, "tensors": 1}


def test_what_is_not_there_is_refused(filled: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        sketch(filled, rank=7)
    with pytest.raises(UsageError):
        sketch(tmp_path / "nowhere.zarr")
