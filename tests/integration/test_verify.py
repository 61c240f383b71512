"""`verify` on another machine than the one that ingested."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest import open_store
from ingest.reader import verify
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.statistics import RunningStatistics, Statistics


@pytest.mark.parametrize(("error", "damaged"), [(1e-15, False), (1e-3, True)])
def test_rounding_of_a_mean_that_cancels_is_no_damage(
    error: float, damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of a softmax sum up to zero; the tiny rest depends on the processor."""
    values = np.random.default_rng(0).normal(size=1000)
    dump = MadeDump(tmp_path / "dump")
    dump.add(values - values.mean())
    ingest_directly(dump.root, tmp_path / "run.zarr")
    store = open_store(str(tmp_path / "run.zarr"))
    assert list(verify.verify(store)) == []

    class OtherMachine(RunningStatistics):
        def result(self) -> Statistics:
            here = super().result()
            return replace(here, mean=here.mean + error)

    monkeypatch.setattr(verify, "RunningStatistics", OtherMachine)

    found = [damage.reason for damage in verify.verify(store)]
    assert found == (["the statistics do not match: mean"] if damaged else [])
