"""Whether a dump belongs to a store: a wrong --store mixes two runs, and a dump may be moved all the same."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.submitter import StepCommitted, StepFailed
from ingest.service.foreign_dump import ForeignDump, ForeignDumpCheck
from tests.npy_files import MadeDump, tensor_name
from tests.services import ingest, observed_service
from workers.errors import StoreUnavailable
from workers.model import StepKey
from workers.store.model import Grid

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def later(filled: MadeDump, store: Path, tmp_path: Path) -> MadeDump:
    """Another run, of which no step is in the store of `filled`, but both have a rank 0."""
    ingest(filled, store)
    other = MadeDump(tmp_path / "other")
    for step in (1, 7, 8):
        other.add(np.full(10, 9.0), step=step)
    return other


def test_nothing_of_another_dump_is_committed(later: MadeDump, filled: MadeDump, store: Path) -> None:
    """Not even the steps that the store does not have."""
    before = open_store(str(store)).keys
    with pytest.raises(ForeignDump) as raised:
        ingest(later, store)
    assert open_store(str(store)).keys == before
    assert str(filled.root) in raised.value.message
    assert str(later.root) in raised.value.message
    assert f"--continues {filled.root}" in raised.value.hint


def test_a_rank_that_a_watcher_sees_later_is_refused_alone(
    filled: MadeDump, store: Path, tmp_path: Path
) -> None:
    ingest(filled, store)
    other = MadeDump(tmp_path / "other")
    other.add(np.full(10, 9.0), rank=5, step=1)
    running, heard = observed_service(other, store, retry_forever=True)
    for _ in range(3):
        running.tick()
    other.add(np.full(10, 9.0), rank=0, step=7)
    other.add(np.full(10, 9.0), rank=5, step=2)
    deadline = time.monotonic() + 60
    while StepKey(5, 2) not in heard.keys(StepCommitted) or not heard.of(StepFailed):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        running.schedule.scan_soon()
        running.tick()
    failed = {event.plan.key: event.error for event in heard.of(StepFailed)}
    assert {key.rank for key in failed} == {0}
    assert all(isinstance(error, ForeignDump) for error in failed.values())
    keys = open_store(str(store)).keys
    assert StepKey(5, 2) in keys
    assert StepKey(0, 7) not in keys


def test_nothing_is_committed_while_it_is_not_known_where_a_rank_belongs(
    later: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may fail just when it is asked for that, and answer everything that is asked afterwards."""
    running, _ = observed_service(later, store, retry_forever=True)
    with monkeypatch.context() as patched:
        patched.setattr(ForeignDumpCheck, "check", raising(StoreUnavailable("busy")))
        before = open_store(str(store)).keys
        for _ in range(5):
            running.tick()
            running.schedule.scan_soon()
    with pytest.raises(ForeignDump):
        running.tick()
    assert open_store(str(store)).keys == before


def raising(error: Exception) -> Callable[..., NoReturn]:
    """Return a function that raises an error whatever it is called with."""

    def fail(*_: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize("how", ["moved", "copied", "linked", "other chunks", "grown"])
def test_a_dump_is_known_by_its_steps(how: str, filled: MadeDump, store: Path, tmp_path: Path) -> None:
    ingest(filled, store)
    elsewhere = MadeDump(tmp_path / "elsewhere")
    options = {"grid": Grid(chunk_nbytes=4096)} if how == "other chunks" else {}
    if how == "linked":
        elsewhere.root.symlink_to(filled.root)
    elif how == "copied":
        shutil.copytree(filled.root, elsewhere.root)
    else:
        filled.root.rename(elsewhere.root)
    elsewhere.add(np.full(10, 9.0), step=2)
    if how == "grown":
        elsewhere.add(np.full(10, 9.0), tensor_name(slot=1), rank=0, step=1)
    report = ingest(elsewhere, store, **options)
    assert not report.failures
    assert StepKey(0, 2) in {summary.key for summary in report.commits}
    assert (StepKey(0, 1) in {summary.key for summary in report.commits}) is (
        how in ("other chunks", "grown")
    )


def test_hosts_and_dumps_with_ranks_of_their_own_share_a_store(
    filled: MadeDump, store: Path, tmp_path: Path
) -> None:
    ingest(filled, store, host="node-1")
    other = MadeDump(tmp_path / "other")
    other.add(np.full(10, 9.0), rank=2, step=1)
    assert len(ingest(other, store, host="node-2").commits) == 1
    filled.add(np.full(10, 9.0), step=5)
    assert len(ingest(filled, store, host="renamed").commits) == 1
