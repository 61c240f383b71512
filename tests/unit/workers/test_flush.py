"""Before a dump is deleted, the disk has what the store says."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.npy_files import MadeDump
from tests.pipeline import plan_all, run
from workers.errors import StoreUnavailable
from workers.store.opening import connect, resolve
from workers.tasks.read_back import ReadBackJob, read_back


def test_the_disk_has_a_step_that_was_read_back(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes what is in memory only: the objects, and the names in all directories above them."""
    made.add(np.arange(40, dtype="<f4"))
    (plan,) = plan_all(made.root, store)
    run(plan)
    files = tuple(dict.fromkeys(entry.source for entry in plan.entries))
    flushed: set[Path] = set()
    fsync = os.fsync

    def note(fd: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    read_back(ReadBackJob(plan.key, 0, plan.fingerprint, plan.origin.root, plan.store, files))
    step = store / plan.key.path
    above = {store, store / "zarr.json", store / "rank_0", store / "rank_0" / "zarr.json"}
    assert flushed == {*above, step, *step.rglob("*")}


def test_a_disk_that_refuses_is_an_error_of_the_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = connect(resolve(str(store)))
    objects.put("a/b", b"1")
    objects.flush("a/none")

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreUnavailable, match=r"cannot flush .*/a: .*Input/output error"):
        objects.flush("a")


def test_a_pipe_in_a_store_keeps_nobody_waiting(store: Path) -> None:
    objects = connect(resolve(str(store)))
    objects.put("a/b", b"1")
    os.mkfifo(store / "a" / "pipe")
    with pytest.raises(StoreUnavailable, match="cannot flush"):
        objects.flush("a")
