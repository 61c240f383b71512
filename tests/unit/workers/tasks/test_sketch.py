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
from workers.tasks import sketch as module
from workers.tasks.sketch import SketchJob, sketch

KEY = StepKey(1, 2)
WHY = WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old")


@pytest.fixture
def plain(dumps: DumpLibrary, tmp_path: Path) -> Path:
    """A store without histograms."""
    ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def job(store: Path) -> SketchJob:
    return SketchJob(StoreAddress(str(store)), KEY)


def test_the_result_is_as_if_they_had_been_there_at_the_commit(plain: Path, sketched_store: Path) -> None:
    assert sketch(job(plain)).tensors > 20
    place = f"{KEY.path}/{open_store(plain).step(1, 2).fingerprint}/histograms"
    for name in ("zarr.json", "c/0/0"):
        assert (plain / place / name).read_bytes() == (sketched_store / place / name).read_bytes()
    step, same = open_store(plain).step(1, 2), open_store(sketched_store).step(1, 2)
    assert dict(step.commit.nodes) == dict(same.commit.nodes)
    assert step.commit.summary.objects == same.commit.summary.objects
    assert step.commit.summary.stored_bytes == same.commit.summary.stored_bytes
    assert list(open_store(plain).verify()) == []


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
