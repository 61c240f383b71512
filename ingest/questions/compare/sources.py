"""The two sides of a comparison: each is a store, or a dump that is read where it lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ingest.layouts.detect import find_dump
from ingest.questions.compare.dumped_steps import DumpSource
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.compare.stored_steps import StoreSource
from ingest.reader.dump_store import open_store
from ingest.reader.flow.step_parts import StepPart, parts_of
from ingest.reader.parallel.mesh import Coordinates
from ingest.reader.snapshot import LeftOut
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store.commit import holds_commits
from workers.store.model import StoreAddress
from workers.store.opening import connect


class Source(Protocol):
    """The steps of one or several ranks, which are loaded one at a time."""

    label: str
    left_out: tuple[LeftOut, ...]
    sample: int
    """How many elements it has of the beginning and of the end of each tensor; 0: all."""

    @property
    def keys(self) -> list[StepKey]:
        """The complete steps, by step, then rank."""

    def load(self, key: StepKey) -> StepTensors:
        """Return the tensors of one of `keys`."""

    def coordinates(self) -> Mapping[int, Coordinates]:
        """Return by rank where it is in the mesh of the job; empty for a rank of which nothing is known."""


def steps_run(source: Source, keys: Iterable[StepKey]) -> tuple[StepKey, ...]:
    """Return steps without those that were begun with parameters and not run: the last of a rank may be."""
    last = {key.rank: key for key in source.keys}

    def is_run(key: StepKey) -> bool:
        try:
            return key != last.get(key.rank) or {*parts_of(source.load(key).keys)} != {StepPart.PARAMETER}
        except DamagedStore:
            return True

    return tuple(filter(is_run, keys))


def open_source(
    selection: Selection,
    *,
    include_partial: bool = False,
    layout: str = "",
    storage_options: dict[str, Any] | None = None,
) -> Source:
    """Return the store or dump that a selection names; `layout` is for dumps, see `find_dump`.

    Raises:
        UsageError: it is neither, or does not have the rank or step.
        StoreError: the store cannot be reached.
    """
    path = Path(selection.where)
    exists = _exists(path)
    if exists and path.is_dir() and not _is_store(path):
        return DumpSource(selection, find_dump(path, layout=layout))
    if exists and path.is_file():
        raise UsageError(
            f"{selection.where} is a file",
            hint="Name the store or the dump that the file belongs to, and a rank and step.",
        )
    if not exists and "://" not in selection.where:
        raise UsageError(
            f"{selection.where} does not exist",
            hint="Name a store (run.zarr, run.zarr@RANK,STEP, s3://bucket/run.zarr) or a dump directory.",
        )
    store = open_store(selection.where, **(storage_options or {}))
    return StoreSource(selection, store, include_partial=include_partial)


def _is_store(path: Path) -> bool:
    """Return whether a directory holds a store, even if its root is missing: a dump has no commits."""
    return (path / "zarr.json").exists() or holds_commits(connect(StoreAddress(str(path))))


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError as exc:
        raise UsageError(
            f"{path}: permission denied",
            hint="Run as a user who may read it, or have its owner grant that.",
        ) from exc
    except (OSError, ValueError):  # not there, or not a name at all
        return False
    return True
