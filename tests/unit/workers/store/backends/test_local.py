"""A directory as store: nothing is half written, nothing behind a link is touched, and the disk has it."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from tests.npy_files import MadeDump
from tests.object_store_contract import ObjectStoreContract
from tests.pipeline import plan_all, run
from workers.errors import StoreDenied, StoreUnavailable
from workers.store.backends.local import LocalObjects, NewFile
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.tasks.read_back import ReadBackJob, read_back


def objects_in(directory: Path) -> LocalObjects:
    return LocalObjects(StoreAddress(str(directory)))


class TestContract(ObjectStoreContract):
    @pytest.fixture(params=["directory", "directory [odd] *name?"])
    def objects(self, request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
        return objects_in(tmp_path / request.param)


def test_failed_write_leaves_the_old_object_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader never sees half of an object, not even after a crash."""
    objects = objects_in(tmp_path)
    objects.put("a", b"old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(StoreUnavailable, match="No space left"):
        objects.put("a", b"new")
    assert objects.get("a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_directory_that_may_not_be_read_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal is made here."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(StoreDenied, match=r"cannot list .*/a: .*Permission denied"):
        objects_in(tmp_path).sizes("a")


class TestFlush:
    def test_the_disk_has_a_step_that_was_read_back(
        self, made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A power cut loses what is in memory only: the objects, and the names in all directories above them.

        Before a dump is deleted, the disk has what the store has of it.
        """
        made.add(np.arange(40, dtype="<f4"))
        (plan,) = plan_all(made.root, store)
        run(plan)
        files = tuple(dict.fromkeys(entry.source for entry in plan.entries))
        flushed: set[Path] = set()
        fsync = os.fsync

        def record(fd: int) -> None:
            flushed.add(Path(f"/proc/self/fd/{fd}").readlink())
            fsync(fd)

        monkeypatch.setattr(os, "fsync", record)
        read_back(ReadBackJob(plan.key, plan.fingerprint, plan.origin.root, plan.store, files))
        step = store / plan.key.path
        above = {store, store / "zarr.json", store / "rank_0", store / "rank_0" / "zarr.json"}
        assert flushed == {*above, step, *step.rglob("*")}

    def test_a_disk_that_refuses_is_an_error_of_the_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects = objects_in(tmp_path)
        objects.put("a/b", b"1")
        objects.flush("a/none")

        def refuse(_: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreUnavailable, match=r"cannot flush .*/a: .*Input/output error"):
            objects.flush("a")


def test_a_directory_that_others_remove_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning removes directories that are empty for a moment."""
    makedirs, calls = os.makedirs, 0

    def raced(path: str, *, exist_ok: bool) -> None:
        nonlocal calls
        calls += 1
        makedirs(path, exist_ok=exist_ok)
        if calls < 3:
            Path(path).rmdir()

    monkeypatch.setattr(os, "makedirs", raced)
    file = NewFile(str(tmp_path / "a" / "b"))
    file.close()
    assert (tmp_path / "a" / "b").exists()
    assert calls == 3


def test_a_disk_that_refuses_twice_leaves_nothing_and_the_first_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems report ENOSPC for a write, and again when the file is closed."""
    file = NewFile(str(tmp_path / "a"))
    really_close = os.close

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(fd: int) -> None:
        really_close(fd)
        refuse()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        patched.setattr(os, "close", close)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"one")
        file.drop()
    assert list(tmp_path.iterdir()) == []
