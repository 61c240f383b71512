"""`verify` on another machine than the one that ingested."""

from pathlib import Path

import numpy as np
import pytest

from ingest import open_store
from ingest.reader.verifying import verify
from tests.cli import run
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.arrays.statistics import FIELDS, RunningStatistics
from workers.store import step as stored_steps


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
        def row(self) -> tuple[float, ...]:
            here = list(super().row())
            here[FIELDS.index("mean")] += error
            return tuple(here)

    monkeypatch.setattr(stored_steps, "RunningStatistics", OtherMachine)

    found = [damage.reason for damage in verify.verify(store)]
    assert found == (["the statistics do not match: mean"] if damaged else [])


@pytest.mark.parametrize(
    ("damaged", "words"),
    [("zarr.json", ()), ("zarr.json", ("--tensors",)), ("*/index/labels/c/0/0", ("--tensors",))],
)
def test_ls_names_a_damaged_step_and_lists_the_others(
    damaged: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """One bad object among ten thousand steps must not hide them all."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        dump.add(np.arange(5.0), step=step)
    ingest_directly(dump.root, store)
    (path,) = (store / "rank_0/step_1").glob(damaged)
    path.write_text("{}")
    listed = run("ls", store, *words, "--json", code=3)
    assert [row["step"] for row in listed.json] == [0, 2]
    assert "rank 0 step 1" in listed.stderr
