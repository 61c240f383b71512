"""The two sides of a comparison: each is a store, or a dump that is read where it lies.

A dump is not converted for this: its files are read in place, and a second time if an element differs. That
takes no space, and about as long as reading the dump. Nothing is ever written into a dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ingest.layouts.base import Dump, Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.compare.stored_steps import StoreSource
from ingest.reader.choice import named_ranges
from ingest.reader.context.files import sample_of_dump
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.dump_store import open_store
from ingest.reader.mesh import Coordinates
from ingest.reader.operator_kinds import StepPart, parts_of
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.dtypes import ElementType, canonical, from_name
from workers.arrays.marginals import Marginal
from workers.arrays.statistics import FIELDS
from workers.dump.model import ReportedStatistics
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store.commit import holds_commits
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Grid, Origin, RowKind, StoreAddress
from workers.store.opening import connect
from workers.store.tables import parse_record
from workers.tasks.model import Entry
from workers.tasks.operands import InFile, Operand


class DumpSource:
    """The steps of a dump, as its files are when they are loaded."""

    def __init__(self, selection: Selection, dump: Dump) -> None:
        """List the dump.

        Raises:
            UsageError: the dump does not have the rank or step.
        """
        self.label = str(selection)
        self.sample = sample_of_dump(dump.root)
        self.left_out: tuple[LeftOut, ...] = ()
        self._dump = dump
        listings = [listing for listing in dump.scan({}).listings if listing.key.step is not None]
        self._listings: dict[StepKey, Listing] = {
            listing.key: listing
            for listing in sorted(listings, key=lambda listing: listing.key.order)
            if listing.files and selection.includes(listing.key)
        }
        if not self._listings:
            ranks = named_ranges("rank", {listing.key.rank for listing in listings})
            steps = named_ranges("step", {listing.key.step or 0 for listing in listings})
            raise UsageError(
                f"{selection}: the dump does not have this rank and step",
                hint=f"It has {ranks} and {steps}.",
            )

    @cached_property
    def keys(self) -> list[StepKey]:
        """The steps of the dump, by step, then rank."""
        return list(self._listings)

    def coordinates(self) -> Mapping[int, Coordinates]:
        """Return nothing: the places of ranks are told by an index."""
        return {}

    def load(self, key: StepKey) -> StepTensors:
        """Read names and headers of the files of one step.

        Raises:
            DumpError: a file changed since it was listed, or may not be read.
        """
        listing = self._listings[key]
        origin = Origin(listing.layout, "", str(self._dump.root), listing.rank_from)
        inspected = inspect(self._dump.root, listing, self._dump.describe(listing))
        plan = plan_step(inspected, origin, StoreAddress("memory://"), Grid())
        rows = [row for row, entry in enumerate(plan.entries) if entry.kind in _KINDS]
        entries = [plan.entries[row] for row in rows]
        quarantined = sum(entry.kind is RowKind.QUARANTINED for entry in plan.entries)
        reported = [plan.reported.get(row) for row in rows]
        dtypes, shapes = types_and_shapes(entries, reported)
        return StepTensors(
            key=key,
            keys=keys_of(entries),
            dtypes=dtypes,
            shapes=shapes,
            meanings=[()] * len(rows),
            digests=np.zeros((len(rows), DIGEST_BYTES), np.uint8),
            statistics=statistics_of(reported),
            dumped=np.array([entry.kind is RowKind.TENSOR for entry in entries], bool),
            nbytes=np.array([entry.nbytes for entry in entries], np.int64),
            places=np.arange(len(rows)),
            operands=_DumpOperands(str(self._dump.root), key, entries),
            partial=f"partial: {counted(quarantined, 'file')} cannot be read" if quarantined else "",
        )


_KINDS = (RowKind.TENSOR, RowKind.STATISTICS)


@dataclass(slots=True)
class _DumpOperands:
    """Makes operands of the files of one step of a dump."""

    root: str
    key: StepKey
    entries: Sequence[Entry]

    def operand(self, number: int, tensors: StepTensors) -> Operand:
        entry = self.entries[number]
        header = entry.header
        element: ElementType = header.element if header else from_name("uint8")
        return Operand(
            where=f"{self.key} of {self.root}",
            element=element,
            shape=tensors.shapes[number],
            nbytes=entry.nbytes,
            place=InFile(self.root, entry.source, entry.offset, entry.view)
            if header and entry.readable
            else None,
            digest=b"",
            fortran_order=bool(header and header.fortran_order),
            device=header.device if header else None,
        )

    @property
    def marginals(self) -> Mapping[int, Mapping[int, Marginal]]:
        """Nothing: only a store keeps marginals."""
        return {}

    def full_name(self, _: int) -> str:
        """Return nothing: only a store has its graph files at hand."""
        return ""

    def model_output(self, _: int) -> ModelOutput | None:
        """Return nothing, for the same reason."""
        return None

    def attributes(self, number: int) -> dict[str, Any]:
        """Return what the file of a tensor holds besides its elements."""
        record = parse_record(self.entries[number].record)
        return {**record.get("file", {}), **record}


def statistics_of(reported: Sequence[ReportedStatistics | None]) -> npt.NDArray[np.float64]:
    """Return the statistics that the dump reports, (tensor, len(FIELDS)); NaN if it reports none."""
    statistics = np.full((len(reported), len(FIELDS)), np.nan)
    for number, report in enumerate(reported):
        if report is not None:
            statistics[number] = report.statistics.as_row()
    return statistics


def types_and_shapes(
    entries: Sequence[Entry], reported: Sequence[ReportedStatistics | None]
) -> tuple[list[str], list[tuple[int, ...]]]:
    """Return type and shape of each tensor: those of its file, or those that the dump reports."""
    dtypes: list[str] = []
    shapes: list[tuple[int, ...]] = []
    for entry, report in zip(entries, reported, strict=True):
        header = entry.header
        dtypes.append(header.element.name if header else canonical(report.dtype) if report else "")
        shapes.append(header.shape if header else report.shape if report else ())
    return dtypes, shapes


def keys_of(entries: Sequence[Entry]) -> list[TensorKey]:
    """Return the keys that these entries would have in a store."""
    seen: dict[TensorKey, int] = {}
    keys = []
    for entry in entries:
        name = entry.name
        key = TensorKey(name.net, name.graph, name.op_type, name.op_name, name.io, name.slot, name.occurrence)
        copy = seen[key] = seen.get(key, -1) + 1
        keys.append(key._replace(copy=copy))
    return keys


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
