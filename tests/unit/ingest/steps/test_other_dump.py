"""Device ids mean something on their host only: what the store calls a host decides whose steps are whose."""

import shutil
import threading
from pathlib import Path

import pytest

from ingest.api import open_store
from ingest.service.one_shot import Report, ingest_once
from ingest.steps.committed import comes_from_other_dump
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.services import make_service
from workers.model import StepKey
from workers.store import commit
from workers.store.model import Origin
from workers.store.opening import open_objects, resolve


def ingest(dump: Path, store: Path, host: str) -> Report:
    return ingest_once(make_service(dump, store, host=host), threading.Event())


@pytest.mark.parametrize(("later", "taken"), [("node-1", True), ("node-2", False)])
def test_a_late_file_is_taken_from_the_same_host_alone(
    later: str, taken: bool, dumps: DumpLibrary, tmp_path: Path
) -> None:
    """A watcher that comes back, as another container, must be known again."""
    dump, store = tmp_path / "dump", tmp_path / "run.zarr"
    shutil.copytree(dumps["cann-bin-synthetic"] / "tf", dump)
    assert not ingest(dump, store, "node-1").failures
    assert {step.commit.record.source.host for step in open_store(store).select()} == {"node-1"}

    file = next(path for path in sorted(dump.rglob("*")) if path.is_file())
    shutil.copyfile(file, file.with_name("late.txt"))
    report = ingest(dump, store, later)
    assert bool(report.commits) is taken
    assert bool(report.failures) is not taken


def test_the_root_counts_always_and_the_host_where_ids_repeat(made: MadeDump, store: Path) -> None:
    made.add(b"x", "file.txt")
    ingest_directly(made.root, store)
    key = StepKey(0, 0)
    committed = commit.read(open_objects(resolve(str(store))), key)
    assert committed is not None
    known_by_rank = [Origin("mindspore", "another", str(made.root), source) for source in ("path", "user")]
    assert [comes_from_other_dump(key, origin, committed) for origin in known_by_rank] == [None, None]
    for origin, message in {
        Origin("mindspore", "another", str(made.root), "device id"): "known by its rank but by its device id",
        Origin("mindspore", "another", str(made.root), "process id"): "from host test-host",
        Origin("mindspore", "test-host", "/other", "path"): f"is in the store already, from {made.root}",
    }.items():
        error = comes_from_other_dump(key, origin, committed)
        assert error is not None
        assert message in error.message
