"""Adding histograms to steps that were committed without them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.api import open_store
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.store.record import WithoutTensors
from workers.store.step import StoredStep
from workers.tasks import consolidate as module
from workers.tasks.consolidate import SketchJob, sketch

KEY = StepKey(1, 2)
WHY = WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old")


@pytest.fixture
def plain(dumps: DumpLibrary, tmp_path: Path) -> Path:
    """A store without histograms."""
    ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def job(store: Path) -> SketchJob:
    return SketchJob(StoreAddress(str(store)), KEY)


def _drop_tensors(objects: ObjectStore, committed: Commit) -> None:
    commit.drop_tensors(objects, committed, WHY)
    shutil.rmtree(Path(objects.address.url) / committed.prefix / "tensors")


def _remove(objects: ObjectStore, committed: Commit) -> None:
    shutil.rmtree(Path(objects.address.url) / committed.key.path)


@pytest.mark.parametrize("meddle", [_drop_tensors, _remove])
def test_a_step_that_gc_takes_meanwhile_is_left(
    plain: Path, monkeypatch: pytest.MonkeyPatch, meddle: Callable[[ObjectStore, Commit], None]
) -> None:
    committed = open_store(plain).step(1, 2).commit
    compute = module.sketches_of

    def compute_then_meddle(step: StoredStep) -> object:
        sketches = compute(step)
        meddle(step.objects, committed)
        return sketches

    monkeypatch.setattr(module, "sketches_of", compute_then_meddle)
    assert "meanwhile" in sketch(job(plain)).left
