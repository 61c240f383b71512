"""Reads the store as it is at the gateway, past the proxy, with nothing of this project."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from tests import checker
from tests.faults.writer import digest
from tests.servers.ceph import S3Bucket

_LEAF = "zarr.json"
#: Commits that are looked at again in each round, to see whether they have changed.
_AGAIN = 16


class Unavailable(Exception):
    """The store does not answer: nothing can be said of what is in it."""


class Eyes:
    """Lists and reads commits; made for one thread."""

    def __init__(self, bucket: S3Bucket) -> None:
        client = {"connect_timeout": 3, "read_timeout": 20, "retries": {"max_attempts": 1}}
        options = {**bucket.storage_options, "config_kwargs": {**client, "s3": {"addressing_style": "path"}}}
        self._files = fsspec.filesystem("s3", **options, skip_instance_cache=True)
        self._base = bucket.url.removeprefix("s3://")

    def leaves(self) -> list[str]:
        """Return the path of everything that is, or will be, a commit."""
        with _or_unavailable():
            ranks = [name for name in self._below("") if name.startswith("rank_")]
            return [f"{rank}/{leaf}" for rank in ranks for leaf in self._below(rank) if leaf != _LEAF]

    def tag(self, leaf: str) -> str | None:
        """Return what changes when a commit is written; None where there is none."""
        with _or_unavailable():
            try:
                info = self._files.info(f"{self._base}/{leaf}/{_LEAF}", refresh=True)
            except FileNotFoundError:
                return None
        return f"{info['ETag']} {info['LastModified']}"

    def record(self, leaf: str) -> tuple[bytes, dict[str, Any]]:
        """Return the commit of a leaf, and the record in it."""
        with _or_unavailable():
            commit = bytes(self._files.cat_file(f"{self._base}/{leaf}/{_LEAF}"))
        return commit, json.loads(commit)["attributes"]["dump_ingest"]

    def read(self, leaf: str) -> checker.Leaf:
        """Read every byte of a commit. Raises AssertionError, or what else the checker meets."""
        commit, record = self.record(leaf)
        prefix = f"{self._base}/{leaf}/{record['fingerprint']}"
        with tempfile.TemporaryDirectory(prefix="look-") as scratch:
            directory = Path(scratch) / leaf
            directory.mkdir(parents=True)
            (directory / _LEAF).write_bytes(commit)
            self.download(prefix, directory / record["fingerprint"])
            return checker.read_leaf(directory)

    def download(self, prefix: str, into: Path) -> None:
        """Copy all objects below a prefix."""
        with _or_unavailable():
            names = self._files.find(prefix, refresh=True)
            contents = self._files.cat_ranges(names, None, None, on_error="raise") if names else []
        for name, data in zip(names, contents, strict=True):
            path = into / name[len(prefix) :].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def download_view(self, into: Path) -> Path:
        """Copy the consolidated view."""
        self.download(f"{self._base}/consolidated", into)
        return into

    def _below(self, prefix: str) -> list[str]:
        try:
            found = self._files.ls(f"{self._base}/{prefix}".rstrip("/"), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]


class _or_unavailable:  # noqa: N801  (reads like a word)
    """Tells an S3 that does not answer from one that answers something bad."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: object) -> None:
        # What is not there is an answer, and a bad one.
        if exc is not None and not isinstance(exc, FileNotFoundError) and isinstance(exc, Exception):
            raise Unavailable(repr(exc)[:200]) from exc


@dataclass
class Watchman:
    """Reads every commit that appears while the campaign goes on, until `stop` is set."""

    bucket: S3Bucket
    written: dict[str, set[bytes]]
    """What the job has written, by path; others add to it."""
    stop: threading.Event = field(default_factory=threading.Event)
    commits: int = 0
    tensors: int = 0
    blind: int = 0
    """How often the store did not answer."""
    bad: list[str] = field(default_factory=list)
    """Commits that were visible and not whole, or not what was dumped."""
    _seen: dict[str, str] = field(default_factory=dict)
    """What was read of each commit; the one that was looked at last comes last."""

    def run(self) -> None:
        """Go on until told to stop."""
        eyes = Eyes(self.bucket)
        while not self.stop.wait(1.0):
            try:
                leaves = eyes.leaves()
                new = [leaf for leaf in leaves if leaf not in self._seen]
                # Those that were read long ago come first: all have their turn.
                for leaf in [*new, *list(self._seen)[:_AGAIN]]:
                    if self.stop.is_set():
                        return
                    self._look_at(eyes, leaf)
            except Unavailable:
                self.blind += 1

    def _look_at(self, eyes: Eyes, leaf: str) -> None:
        tag, before = eyes.tag(leaf), self._seen.pop(leaf, None)
        if tag is None and before is not None:
            self.bad.append(f"{leaf} was committed and is gone")
        if tag is None:
            return
        try:
            found = eyes.read(leaf) if tag != before else None
        except Unavailable:
            raise
        except Exception as exc:  # noqa: BLE001  (whatever it is that a reader of a commit meets)
            self.bad.append(f"{leaf}: {type(exc).__name__}: {exc}"[:500])
            return
        self._seen[leaf] = tag
        if found is None:
            return
        self.commits += 1
        for file in found.files.values():
            self.tensors += file.kind == "tensor"
            if file.kind == "tensor" and digest(file.content) not in self.written.get(file.source, set()):
                self.bad.append(f"{leaf}: {file.source} holds what nobody wrote")


def wait_for(ready: Any, timeout_s: float, pause_s: float = 0.1) -> bool:
    """Wait until something holds; whether it did."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
