"""Device ids mean something on their host only: what the store calls a host decides whose steps are whose."""

import shutil
import threading
import time
from pathlib import Path
from typing import cast

import pytest
from distributed import Client

from ingest.api import open_store
from ingest.dispatch.submitter import DispatchLimits, Submitter
from ingest.layouts.detect import find_dump
from ingest.service.report import Report
from ingest.service.service import Service
from ingest.steps.committed import Committed
from ingest.watching.completeness import CompletenessPolicy, QuietClock
from ingest.watching.watcher import Watcher
from tests.dumps import DumpLibrary
from tests.fake_client import FakeClient
from workers.store.model import Grid
from workers.store.opening import open_objects, resolve


def ingest(dump: Path, store: Path, host: str) -> Report:
    address = resolve(str(store))
    clock = QuietClock(wall=lambda: time.time() + 60)
    return Service(
        Watcher(find_dump(dump), CompletenessPolicy(quiet_s=10, settle_s=1), Grid(), clock=clock),
        Submitter(lambda: cast("Client", FakeClient(eager=True)), DispatchLimits(10**9)),
        Committed(open_objects(address)),
        address,
        host=host,
    ).ingest(threading.Event())


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
