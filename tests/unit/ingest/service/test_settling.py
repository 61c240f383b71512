"""What becomes of a step that failed, or whose files changed: it is planned again, and what is left out."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import open_store
from ingest.service.one_shot import ingest_once
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from tests.fake_client import FakeClient, FakeFuture
from tests.npy_files import MadeDump, tensor_name
from tests.services import ingest, observed_service
from workers.errors import (
    PoisonedFile,
)
from workers.model import StepKey
from workers.store.model import RowKind
from workers.tasks.convert import convert
from workers.tasks.model import Entry, Receipt, ShardJob

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN], ids=errno.errorcode.get)
def test_failing_disk_costs_one_tensor_only(
    code: int, made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector must not keep the rest of the step from being stored, nor be hidden."""
    made.add(np.arange(100.0), tensor_name(slot=0))
    bad = made.add(np.arange(100.0) + 1, tensor_name(slot=1))
    made.add(np.arange(100.0) + 2, tensor_name(slot=2))
    preadv, inode = os.preadv, bad.stat().st_ino

    def flaky(fd: int, buffers: Any, offset: int) -> int:
        if os.fstat(fd).st_ino == inode:
            raise OSError(code, os.strerror(code))
        return preadv(fd, buffers, offset)

    with monkeypatch.context() as patched:
        patched.setattr("os.preadv", flaky)
        report = ingest(made, store)
    (summary,) = report.commits
    assert (summary.status, summary.tensors, summary.quarantined) == ("partial", 2, 1)
    tensors = open_store(str(store)).tensors()
    assert [tensor.read()[0] for tensor in tensors] == [0, 2]
    step = open_store(str(store)).step(0, 0)
    (row,) = np.flatnonzero(step.tables.label("kind") == RowKind.QUARANTINED)
    assert "the disk does not return its bytes" in step.tables.label("problem")[row]
    # Once the disk gives it again, the step is stored whole: another generation, for it lies otherwise.
    (again,) = ingest(made, store).commits
    assert (again.status, again.tensors) == ("complete", 3)
    assert again.fingerprint != summary.fingerprint


def test_file_that_changes_meanwhile_is_planned_anew(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(filled.directory(step=1).iterdir())
    submit = FakeClient.submit
    touched: list[bool] = []

    def touching(self: FakeClient, function: Any, *arguments: Any, **options: Any) -> Any:
        if not touched and any(job.key == StepKey(0, 1) for job in FakeFuture("", function, arguments).jobs):
            touched.append(True)
            os.utime(path, ns=(10**18, 10**18))
        return submit(self, function, *arguments, **options)

    monkeypatch.setattr(FakeClient, "submit", touching)
    running, _ = observed_service(
        filled, store, policy=StepPolicy(CompletenessPolicy(quiet_s=0.1, settle_s=0.1))
    )
    report = ingest_once(running, threading.Event())
    assert touched
    assert len({summary.key for summary in report.commits}) == 5
    (tensor,) = open_store(str(store)).tensors(rank=0, step=1)
    assert tensor._step.tables.number("mtime_ns")[tensor.row] == 10**18


def _poisoning(monkeypatch: pytest.MonkeyPatch, is_poison: Callable[[Entry], bool]) -> list[str]:
    """Have these entries kill who reads them; return where it will be noted that they did."""
    killed: list[str] = []

    def deadly(job: ShardJob) -> Receipt:
        for entry in job.entries.values():
            if is_poison(entry):
                killed.append(entry.source.path)
                raise PoisonedFile("died of it", path=entry.source.path)
        return convert(job)

    monkeypatch.setattr("workers.tasks.run.convert", deadly)
    return killed


def test_poison_is_quarantined_and_found_out_once(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kills as a tensor is kept as bytes, what kills as bytes is named; the next process knows both."""
    first = filled.add(np.ones(3), tensor_name("A.a", time=1), step=1, rank=1).read_bytes()
    filled.add(np.ones(3), tensor_name("B.b"), step=1, rank=1)

    def is_poison(entry: Entry) -> bool:
        return "/B.b" in entry.source.path or ("/A.a" in entry.source.path and entry.header is not None)

    killed = _poisoning(monkeypatch, is_poison)
    report = ingest(filled, store)
    assert sorted(name.rpartition("/")[2][:3] for name in killed) == ["A.a", "B.b", "B.b"]
    assert not report.failures
    step = open_store(str(store)).step(1, 1)
    assert (step.commit.summary.status, step.commit.summary.quarantined) == ("partial", 2)
    rows = [row for row, kind in enumerate(step.tables.label("kind")) if kind == RowKind.QUARANTINED]
    offsets = dict(zip(step.tables.label("source")[rows], step.tables.number("offset")[rows], strict=True))
    assert sorted(offsets.values()) == [-1, 0]
    assert bytes(step.read(next(row for row in rows if step.tables.number("offset")[row] == 0))) == first

    killed.clear()
    assert ingest(filled, store).commits == []
    assert killed == []
    # A file that comes late makes a new generation; what is known of the others still holds.
    filled.add(np.ones(3), step=1, rank=1)
    assert len(ingest(filled, store).commits) == 1
    assert killed == []
    # Whoever touches a file wants it read again.
    os.utime(filled.directory(1, rank=1) / tensor_name("A.a", time=1), ns=(10**18, 10**18))
    ingest(filled, store)
    assert len(killed) == 1


def test_step_full_of_poison_fails_and_quarantines_nothing(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the workers, and not so many files."""
    for slot in range(12):
        filled.add(np.ones(3), tensor_name(slot=slot), step=1, rank=1)
    _poisoning(monkeypatch, lambda entry: "rank_1" in entry.source.path and "/1/" in entry.source.path)
    report = ingest(filled, store)
    assert report.failures.keys() == {StepKey(1, 1)}
    assert "look at the memory of the workers" in report.failures[StepKey(1, 1)].hint
    assert StepKey(1, 1) not in open_store(str(store)).keys
