"""What is replaced in a simulation: threads, sleeping, turning values into bytes; no decision is."""

from __future__ import annotations

import itertools
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Self, cast
from unittest.mock import patch

from ingest.dispatch import window
from ingest.dump_retention import retention
from ingest.layouts.base import Listing
from ingest.planning.inspection import Inspected
from ingest.steps.committed import Committed, CommittedFiles
from tests.simulation.dump import File, SimulatedDescription, SimulatedDump
from tests.simulation.faults import OF_FILES, Faults
from tests.simulation.kernel import Process
from tests.simulation.objects import INDEX
from workers.errors import DamagedStore, StepRemoved
from workers.store import commit, metadata
from workers.store.backends import wrappers
from workers.store.commit import Commit
from workers.store.model import ArraySpec
from workers.store.objects import ObjectStore
from workers.store.packed import recompressing
from workers.tasks import run as tasks


class InlineThreads:
    """In place of a pool of threads: the caller does it, one after the other."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what a pool takes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: everything is done."""

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        """Call a function for each of the arguments."""
        return map(function, *arguments)


class InlineThread:
    """In place of a thread: whoever starts it does its work."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...] = (), **_: object) -> None:
        self._target, self._arguments = target, args

    def start(self) -> None:
        """Do the work."""
        self._target(*self._arguments)

    def is_alive(self) -> bool:
        """Return that it is done."""
        return False


class DeletingThread:
    """In place of the thread that unlinks files of a dump: each file is a step of its process."""

    def __init__(self, process: Process, dump: SimulatedDump, faults: Faults) -> None:
        self._process, self._dump, self._faults = process, dump, faults

    def submit(self, _: object, __: object, proven: Iterable[retention.Proven], **more: Any) -> Future[Any]:
        """Remove files as `removal.remove` does."""
        future: Future[Any] = Future()
        future.set_result(self._remove(list(proven), more["listed"]))
        return future

    def shutdown(self) -> None:
        """Do nothing."""

    def _remove(self, proven: list[retention.Proven], listed: set[str]) -> retention.Removed:
        removed, process, dump = retention.Removed(), self._process, self._dump
        key = next(
            (key for key, files in dump.files.items() if proven and proven[0].file.path in files), None
        )
        if key is None:
            return removed
        process.step()
        removed.changed += sorted(dump.files[key].keys() - listed)
        for member in () if removed.changed else proven:
            process.step()
            fault = self._faults.draw(process, OF_FILES)
            if fault == "stall":
                process.sleep(self._faults.stall_s())
            elif fault:
                process.kill()
            path = member.file.path
            file = dump.files[key].get(path)
            if file is None:
                continue
            if not retention.is_as_proven(_status(file), member, removed.links):
                removed.changed.append(path)
                continue
            process.note(f"delete {path}")
            dump.unlink(process.name, key, path)
            removed.files += 1
            removed.nbytes += member.file.size
        return removed


def _status(file: File) -> os.stat_result:
    status = SimpleNamespace(
        st_mode=stat.S_IFREG,
        st_size=file.content.size,
        st_mtime_ns=file.mtime_ns,
        st_ctime_ns=file.mtime_ns,
        st_dev=0,
        st_ino=0,
    )
    return cast("os.stat_result", status)


class SimulatedProbe:
    """In place of the thread that asks a store that did not answer: it answers a second later."""

    def __init__(self, process: Process) -> None:
        self._process, self._back_at = process, float("inf")
        self.error, self.away_s = None, 0.0

    def report_failure(self, _: Exception) -> None:
        """Begin to ask."""
        self._back_at = min(self._back_at, self._process.monotonic() + 1.0)

    def poll_recovered(self) -> bool:
        """Return whether the store is back."""
        if self._process.monotonic() < self._back_at:
            return False
        self._back_at = float("inf")
        return True


def _inspect(_: object, listing: Listing, description: SimulatedDescription, *__: object) -> Inspected:
    return description.view.inspect(listing, description)


def _files_of(committed: Committed, commit_of_step: Commit) -> CommittedFiles:
    data = committed.objects.get(f"{commit_of_step.prefix}/{INDEX}")
    if data is None:
        if commit.read(committed.objects, commit_of_step.key) == commit_of_step:
            raise DamagedStore(f"{commit_of_step.key}: its index is missing")
        raise StepRemoved(f"{commit_of_step.key} was removed")
    versions = {path: (size, mtime_ns) for path, (size, mtime_ns) in json.loads(data).items()}
    return CommittedFiles(versions, frozenset(versions))


def _all_arrays(_: object, committed: Commit) -> dict[str, ArraySpec]:
    """Have every array of a step be worth it."""
    return {
        path: replace(metadata.packed_spec(path, committed.nodes[path]), dense="shuffle")
        for path in sorted({name.rpartition("/c/")[0] for name in committed.record.stored})
    }


def _encode_again(
    objects: ObjectStore, committed: Commit, spec: ArraySpec, target: str
) -> Iterator[tuple[str, int]]:
    """Write the shards of an array with other bytes, which mean the same."""
    for name, nbytes in committed.record.stored.items():
        path, _, number = name.rpartition("/c/")
        if path == spec.path:
            data = objects.get(f"{committed.prefix}/{name}")
            if data is None:
                raise DamagedStore(f"{committed.key}: {name} is missing")
            objects.put(f"{target}/c/{number}", data + b" ")
            yield name, nbytes


@contextmanager
def simulated() -> Iterator[None]:
    """Have the real code run on virtual things within the block."""
    same: dict[str, Callable[..., Any]] = {
        "pack_steps": list,
        "pack_plan": lambda plan: plan,
        "pack_convert": lambda job: job,
        "pack_publish": lambda plan, receipts: (plan, receipts),
        "pack": lambda job: job,
    }
    clock = SimpleNamespace(time_ns=itertools.count(1).__next__)
    with ExitStack() as stack:
        # Only in names, which would differ from one replay to the next.
        for module in ("ingest.dispatch.submitter", "ingest.dispatch.window"):
            stack.enter_context(patch(f"{module}.time", clock))
        numbers = map(uuid.UUID, map("{:032x}".format, itertools.count(1)))
        for module in ("ingest.store_gc.execute", "workers.store.commit"):
            stack.enter_context(patch(f"{module}.uuid", SimpleNamespace(uuid4=numbers.__next__)))
        for name, function in same.items():
            stack.enter_context(patch.object(tasks, name, function))
        stack.enter_context(patch.object(commit, "parse", lru_cache(maxsize=256)(commit.parse)))
        stack.enter_context(patch.object(Committed, "files_of", _files_of))
        stack.enter_context(patch("ingest.steps.watcher.inspect", _inspect))
        stack.enter_context(patch.object(wrappers, "call_within", lambda _, action, **__: action()))
        stack.enter_context(patch.object(window, "threading", SimpleNamespace(Thread=InlineThread)))
        stack.enter_context(patch.object(recompressing, "supervised", lambda action, *some: action(*some)))
        stack.enter_context(patch.object(recompressing, "_chosen", _all_arrays))
        stack.enter_context(patch.object(recompressing, "_encode_again", _encode_again))
        stack.enter_context(patch("ingest.store_gc.plan.ThreadPoolExecutor", InlineThreads))
        stack.enter_context(patch("ingest.store_gc.execute.ThreadPoolExecutor", InlineThreads))
        yield
