"""What becomes of a step that failed, or whose files changed: it is planned again, and what is left out."""

import errno
import os
import threading
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
from workers.model import StepKey
from workers.store.model import RowKind

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
