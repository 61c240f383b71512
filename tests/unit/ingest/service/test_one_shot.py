"""One run over a dump: what it takes, what it waits for, and that it comes to its end."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.submitter import StepCommitted, StepFailed
from ingest.reader.step import file_rows
from ingest.service.one_shot import finish, ingest_once
from ingest.service.service import Service
from tests.npy_files import MadeDump
from tests.services import ingest, make_service, observed_service
from tests.wrapped_objects import WrappedObjects
from workers.errors import (
    DumpError,
    DumpIngestError,
    StoreDenied,
    StoreUnavailable,
)
from workers.model import StepKey
from workers.store.backends.wrappers import ObservedObjects
from workers.store.opening import open_objects, resolve
from workers.tasks import run
from workers.tasks.convert import convert
from workers.tasks.model import Receipt, ShardJob

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("what", ["file", "step", "rank"])
def test_one_shot_run_ends_although_something_is_denied(
    what: str, filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore leaves directories as 0700 and files as 0400: this is what another user sees."""
    path = filled.add(np.zeros(1), rank=1, step=1)
    denied = {"file": path, "step": path.parent, "rank": filled.root / "rank_1"}[what]
    for name in ("open", "scandir"):
        monkeypatch.setattr(os, name, _refusing(denied, getattr(os, name)))
    report = ingest(filled, store)
    assert report.failures.keys() == {StepKey(1, None if what == "rank" else 1)}
    (error,) = report.failures.values()
    assert "setfacl" in error.hint
    assert StepKey(0, 1) in {summary.key for summary in report.commits}


def _refusing(path: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(name: object, *args: object) -> object:
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return real(name, *args)

    return refusing


@pytest.fixture
def broken_puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DumpIngestError]]:
    """Errors that the next writes of shards raise, first to last."""
    errors: list[DumpIngestError] = []
    put = ObservedObjects.put

    def flaky(self: ObservedObjects, key: str, data: Any) -> None:
        if errors and "/c/" in key:
            raise errors.pop(0)
        put(self, key, data)

    monkeypatch.setattr(ObservedObjects, "put", flaky)
    yield errors
    assert not errors


def test_store_that_refuses_ends_a_one_shot_run(
    filled: MadeDump, store: Path, broken_puts: list[DumpIngestError]
) -> None:
    """Thousands of steps would fail one by one for the same reason."""
    broken_puts.append(StoreDenied("no"))
    report = ingest(filled, store)
    assert isinstance(report.stopped_by, StoreDenied)
    assert len(report.commits) < 5


def test_stopped_service_leaves_whole_steps_only(filled: MadeDump, store: Path) -> None:
    running, _ = observed_service(filled, store)
    stop = threading.Event()
    stop.set()
    ingest_once(running, stop)
    running.watch(stop, drain_s=1)
    assert not store.exists()
    assert not running.submitter.offered_steps


class Away(WrappedObjects):
    """A store that cannot be listed a few times."""

    times = 2

    def children(self, prefix: str = "") -> list[str]:
        self.times -= 1
        if self.times >= 0:
            raise StoreUnavailable("away")
        return super().children(prefix)


def test_what_a_job_has_left_is_taken_although_the_store_is_away_when_the_job_ends(
    filled: MadeDump, store: Path
) -> None:
    objects = Away(open_objects(resolve(str(store))))
    service = make_service(filled.root, objects, retry_forever=True)
    finish(service, service.clock() + 20)
    assert objects.times < 0
    assert len(open_store(str(store)).keys) == 5


@pytest.fixture
def without_one(filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A watcher that has taken everything but one step, which failed; it and the run files are left alone."""

    def failing(job: ShardJob) -> Receipt:
        if job.key == StepKey(1, 1):
            raise DumpError("not this time")
        return convert(job)

    service, heard = observed_service(filled, store, retry_forever=True)
    with monkeypatch.context() as patched:
        patched.setattr(run, "convert", failing)
        while len(heard.of(StepCommitted)) < 4 or not heard.of(StepFailed):
            service.tick()
    assert sorted(state.key.order for state in service.table if state.pause) == [
        StepKey(0, None).order,
        StepKey(1, 1).order,
    ]
    return service


def test_run_files_that_changed_since_their_commit_are_taken_when_the_job_ends(
    without_one: Service, filled: MadeDump, store: Path
) -> None:
    """They change as long as the job runs, so they are left alone for a while; now is the last chance."""
    (filled.root / "rank_0" / "last.json").write_text("{}")
    until = without_one.clock() + 20
    finish(without_one, until)
    assert without_one.clock() < until
    rows = file_rows(open_store(str(store)).step(0, None), problems=False)
    assert "rank_0/last.json" in {row["source"] for row in rows}
