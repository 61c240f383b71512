"""Read commits directly at the gateway, past the proxy, and without code that writes the store."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from tests import checker
from tests.faults.writer import digest
from tests.servers.ceph import S3Bucket

_COMMIT = "zarr.json"
#: The number of known commits that each round checks for changes.
_CHECKED_AGAIN = 16


class Unavailable(Exception):
    """The store does not answer, so nothing is known about its content."""


class CommitReader:
    """Lists and reads commits. Use each instance in one thread only."""

    def __init__(self, bucket: S3Bucket) -> None:
        client = {"connect_timeout": 3, "read_timeout": 20, "retries": {"max_attempts": 1}}
        options = {**bucket.storage_options, "config_kwargs": {**client, "s3": {"addressing_style": "path"}}}
        self._files = fsspec.filesystem("s3", **options, skip_instance_cache=True)
        self._base = bucket.url.removeprefix("s3://")

    def leaves(self) -> list[str]:
        """Return the path of every leaf that has a commit or may get one."""
        with _errors_mean_unavailable():
            ranks = [name for name in self._names_below("") if name.startswith("rank_")]
            return [f"{rank}/{leaf}" for rank in ranks for leaf in self._names_below(rank) if leaf != _COMMIT]

    def version(self, leaf: str) -> str | None:
        """Return a text that changes whenever the commit is written, or None if it does not exist."""
        with _errors_mean_unavailable():
            try:
                info = self._files.info(f"{self._base}/{leaf}/{_COMMIT}", refresh=True)
            except FileNotFoundError:
                return None
        return f"{info['ETag']} {info['LastModified']}"

    def record(self, leaf: str) -> tuple[bytes, dict[str, Any]]:
        """Return the bytes of a commit, and the record in it."""
        with _errors_mean_unavailable():
            commit = bytes(self._files.cat_file(f"{self._base}/{leaf}/{_COMMIT}"))
        return commit, json.loads(commit)["attributes"]["dump_ingest"]

    def read(self, leaf: str) -> checker.Leaf:
        """Read every byte of a commit. Raise what the checker raises, usually AssertionError, for damage."""
        commit, record = self.record(leaf)
        with tempfile.TemporaryDirectory(prefix="commit-") as scratch:
            root = Path(scratch)
            directory = root / leaf
            directory.mkdir(parents=True)
            (directory / _COMMIT).write_bytes(commit)
            for path in (_COMMIT, f"{leaf}/{record['fingerprint']}", *record.get("pool", ())):
                self.download(f"{self._base}/{path}", root / path)
            return checker.read_leaf(directory)

    def download(self, prefix: str, into: Path) -> None:
        """Copy all objects below a prefix into a directory."""
        with _errors_mean_unavailable():
            names = self._files.find(prefix, refresh=True)
            contents = self._files.cat_ranges(names, None, None, on_error="raise") if names else []
        for name, data in zip(names, contents, strict=True):
            path = into / name[len(prefix) :].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def download_cubes(self, into: Path) -> Path:
        """Copy the consolidated view into a directory, and return the directory."""
        self.download(f"{self._base}/consolidated", into)
        return into

    def _names_below(self, prefix: str) -> list[str]:
        try:
            paths = self._files.ls(f"{self._base}/{prefix}".rstrip("/"), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in paths]


@contextmanager
def _errors_mean_unavailable() -> Iterator[None]:
    """Raise Unavailable for every error except FileNotFoundError.

    That an object is missing is an answer, and usually damage. With any other error, S3 did not answer.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as exc:
        raise Unavailable(repr(exc)[:200]) from exc


@dataclass
class CommitMonitor:
    """Reads every commit that appears during the campaign, until `stop` is set."""

    bucket: S3Bucket
    written: dict[str, set[bytes]]
    """The digests of contents that the job has written, by path. The job keeps adding to it."""
    stop: threading.Event = field(default_factory=threading.Event)
    commits: int = 0
    tensors: int = 0
    unanswered: int = 0
    """The number of rounds in which the store did not answer."""
    bad: list[str] = field(default_factory=list)
    """Commits that were visible although incomplete, or that differ from what was dumped."""
    _versions: dict[str, str] = field(default_factory=dict)
    """The version of each commit that was read, least recently checked first."""

    def run(self) -> None:
        """Read new and changed commits until `stop` is set."""
        reader = CommitReader(self.bucket)
        while not self.stop.wait(1.0):
            try:
                leaves = reader.leaves()
                new = [leaf for leaf in leaves if leaf not in self._versions]
                # The least recently checked commits come first, so that all have their turn.
                for leaf in [*new, *list(self._versions)[:_CHECKED_AGAIN]]:
                    if self.stop.is_set():
                        return
                    self._check(reader, leaf)
            except Unavailable:
                self.unanswered += 1

    def _check(self, reader: CommitReader, leaf: str) -> None:
        """Read a commit unless it is unchanged since the last time. Raise Unavailable."""
        version, before = reader.version(leaf), self._versions.pop(leaf, None)
        if version is None:
            if before is not None:
                self.bad.append(f"{leaf} was committed and is gone")
            return
        try:
            committed = reader.read(leaf) if version != before else None
        except Unavailable:
            raise
        except Exception as exc:  # noqa: BLE001  (any error is damage that a reader would meet)
            self.bad.append(f"{leaf}: {type(exc).__name__}: {exc}"[:500])
            return
        self._versions[leaf] = version
        if committed is not None:
            self._check_contents(leaf, committed)

    def _check_contents(self, leaf: str, committed: checker.Leaf) -> None:
        """Compare the tensors of a commit with what the job has written."""
        self.commits += 1
        for file in committed.files.values():
            self.tensors += file.kind == "tensor"
            if file.kind == "tensor" and digest(file.content) not in self.written.get(file.source, set()):
                self.bad.append(f"{leaf}: {file.source} holds bytes that the job never wrote")


def wait_for(ready: Callable[[], object], timeout_s: float, pause_s: float = 0.1) -> bool:
    """Wait until `ready` returns true. Return False if that takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
