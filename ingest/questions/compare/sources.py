"""The two sides of a comparison: a store, or a dump that is read where it lies.

A dump is not converted for this: its files are read in place, and once more where an element differs. That
takes no space, and about as long as reading the dump; from a store the digests are known, and equal tensors
cost nothing. Nothing is ever written into a dump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from ingest.reader.catalog import Catalog, open_catalog
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import LeftOut, Snapshot, take_snapshot
from ingest.reader.step import Step
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.dtype_names import canonical
from workers.arrays.dtypes import ElementType, from_name
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.blocks import TensorKey, tensors_of
from workers.store.model import Grid, Origin, RowKind, StoreAddress
from workers.tasks.model import Entry
from workers.tasks.operands import InFile, Operand, Stored


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """The tensors of one step of one rank, in order of execution. Lists and arrays are aligned."""

    key: StepKey
    keys: list[TensorKey]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    meanings: Sequence[tuple[Any, ...]]
    """What, beside its bytes, makes a tensor: equal digest and equal meaning, equal tensor."""
    digests: npt.NDArray[np.uint8]
    """(tensor, 16); zeros where not known."""
    statistics: npt.NDArray[np.float64]
    """(tensor, len(FIELDS)); NaN where not known."""
    dumped: npt.NDArray[np.bool_]
    """Whether the elements are there, or only statistics."""
    nbytes: npt.NDArray[np.int64]
    """Of the payload."""
    places: npt.NDArray[Any]
    """Something that sorts in the order in which payloads are stored."""
    side: _OfStore | _OfDump
    partial: str = ""
    """What is missing of the step, where that shows only when it is looked at."""

    def operand(self, number: int) -> Operand:
        """Return what reads the elements of one tensor."""
        return self.side.operand(number, self)


class Source(Protocol):
    """Steps of one or several ranks, of which one at a time is looked at."""

    label: str
    left_out: tuple[LeftOut, ...]

    @property
    def keys(self) -> list[StepKey]:
        """The steps there are, by step, then rank."""

    def load(self, key: StepKey) -> Tensors:
        """Return the tensors of one of `keys`."""


def open_source(
    selection: Selection, *, include_partial: bool = False, storage_options: dict[str, Any] | None = None
) -> Source:
    """Return the store or dump that a selection names.

    Raises:
        UsageError: it is neither, or has no such rank or step.
        StoreError: the store cannot be reached.
    """
    path = Path(selection.where)
    try:
        path.stat()
        exists = True
    except PermissionError as exc:
        raise UsageError(f"{selection.where}: {exc.strerror}", hint="Ask for the right to read it.") from exc
    except (OSError, ValueError):  # not there, or no name at all
        exists = False
    if exists and path.is_dir() and not (path / "zarr.json").exists():
        return DumpSource(selection, find_dump(path))
    if exists and path.is_file():
        raise UsageError(
            f"{selection.where} is a file",
            hint="Name the store or the dump that it is in, and a rank and step.",
        )
    if "://" not in selection.where and not exists:
        raise UsageError(
            f"{selection.where} does not exist",
            hint="Name a store (run.zarr, run.zarr@RANK,STEP, s3://bucket/run.zarr) or a dump directory.",
        )
    store = open_catalog(selection.where, **(storage_options or {}))
    return StoreSource(selection, store, include_partial=include_partial)


class StoreSource:
    """The complete steps of a store at one moment."""

    def __init__(self, selection: Selection, store: Catalog, *, include_partial: bool) -> None:
        """Note which steps are complete now.

        Raises:
            UsageError: there is no such rank or step, or it is not complete.
        """
        self.label = str(selection)
        self._snapshot: Snapshot = take_snapshot(
            store, selection.rank, selection.step, include_partial=include_partial
        )
        self.left_out = self._snapshot.left_out
        self.keys = self._snapshot.keys

    def load(self, key: StepKey) -> Tensors:
        """Read the index of one step; forget it with the result.

        Raises:
            DamagedStore: it is damaged.
        """
        step = self._snapshot.chosen[key]
        table = step.tables
        rows, keys = tensors_of(table)
        labels = {
            name: table.label(name)[rows].tolist()
            for name in ("kind", "dtype", "array", "layout", "format", "device_shape")
        }
        numbers = {name: table.number(name)[rows] for name in ("nbytes", "ndim", "fortran_order", "groups")}
        shapes = [
            tuple(lengths[:ndim])
            for lengths, ndim in zip(table.shape[rows].tolist(), numbers["ndim"].tolist(), strict=True)
        ]
        turned = [
            (form, device, groups) if layout == "device" else None
            for layout, form, device, groups in zip(
                labels["layout"],
                labels["format"],
                labels["device_shape"],
                numbers["groups"].tolist(),
                strict=True,
            )
        ]
        fortran = (numbers["fortran_order"] == 1).tolist()
        meanings = list(zip(labels["dtype"], labels["array"], turned, fortran, shapes, strict=True))
        side = _OfStore(step, rows)
        step.forget_tables()
        side.tables = table
        return Tensors(
            key,
            keys,
            labels["dtype"],
            shapes,
            meanings,
            table.digest[rows],
            table.statistics[rows],
            np.array([kind == RowKind.TENSOR.value for kind in labels["kind"]], bool),
            numbers["nbytes"],
            table.number("offset")[rows],
            side,
        )


@dataclass(slots=True)
class _OfStore:
    """Makes operands of the rows of one step of a store."""

    step: Step
    rows: npt.NDArray[np.int64]
    tables: Any = None
    _arrays: dict[str, Any] = field(default_factory=dict)

    def operand(self, number: int, tensors: Tensors) -> Operand:
        row, table, step = int(self.rows[number]), self.tables, self.step
        path = str(table.label("array")[row])
        if path not in self._arrays:
            self._arrays[path] = step.packed_spec(path)
        first = int(table.number("offset")[row])
        address = step.address
        place = Stored(
            address,
            f"{step.commit.prefix}/{path}",
            self._arrays[path],
            first,
            int(table.number("size")[row]),
        )
        big_endian = path.endswith("_big_endian")
        device = None
        if tensors.meanings[number][2] is not None:
            device = Step(step.objects, step.commit, table).device(row)
        return Operand(
            f"{step.key} of {address.url}",
            from_name(tensors.dtypes[number], big_endian=big_endian),
            tensors.shapes[number],
            int(tensors.nbytes[number]),
            place if first >= 0 else None,
            tensors.digests[number].tobytes(),
            bool(tensors.meanings[number][3]),
            device,
        )


class DumpSource:
    """The steps of a dump, as its files are now."""

    def __init__(self, selection: Selection, dump: Dump) -> None:
        """List the dump.

        Raises:
            UsageError: there is no such rank or step.
        """
        self.label = str(selection)
        self.left_out: tuple[LeftOut, ...] = ()
        self._dump = dump
        self._listings: dict[StepKey, Listing] = {
            one.key: one
            for one in sorted(dump.scan({}).listings, key=lambda one: one.key.order)
            if one.files
            and one.key.step is not None
            and selection.rank in (None, one.key.rank)
            and selection.step in (None, one.key.step)
        }
        if not self._listings:
            every = [one.key for one in dump.scan({}).listings if one.key.step is not None]
            ranks, steps = (
                format_ranges({key.rank for key in every}),
                format_ranges({key.step or 0 for key in every}),
            )
            raise UsageError(f"{selection}: no such step", hint=f"It holds ranks {ranks} and steps {steps}.")

    @cached_property
    def keys(self) -> list[StepKey]:
        """The steps there are."""
        return list(self._listings)

    def load(self, key: StepKey) -> Tensors:
        """Read names and headers of the files of one step.

        Raises:
            DumpError: a file changed meanwhile, or may not be read.
        """
        listing = self._listings[key]
        origin = Origin(listing.layout, "", str(self._dump.root), listing.rank_from)
        inspected = inspect(self._dump.root, listing, self._dump.describe(listing))
        plan = plan_step(inspected, origin, StoreAddress("memory://"), Grid())
        rows = [row for row, entry in enumerate(plan.entries) if entry.kind in _KINDS]
        entries = [plan.entries[row] for row in rows]
        quarantined = sum(entry.kind is RowKind.QUARANTINED for entry in plan.entries)
        statistics = np.full((len(rows), len(FIELDS)), np.nan)
        dtypes, shapes = [], []
        for number, (row, entry) in enumerate(zip(rows, entries, strict=True)):
            reported = plan.reported.get(row)
            if reported is not None:
                statistics[number] = reported.statistics.as_row()
            header = entry.header
            dtypes.append(header.element.name if header else canonical(reported.dtype) if reported else "")
            shapes.append(header.shape if header else reported.shape if reported else ())
        return Tensors(
            key,
            _keys_of(entries),
            dtypes,
            shapes,
            [()] * len(rows),
            np.zeros((len(rows), DIGEST_BYTES), np.uint8),
            statistics,
            np.array([entry.kind is RowKind.TENSOR for entry in entries], bool),
            np.array([entry.nbytes for entry in entries], np.int64),
            np.arange(len(rows)),
            _OfDump(str(self._dump.root), key, entries),
            f"partial: {quarantined} files cannot be read" if quarantined else "",
        )


_KINDS = (RowKind.TENSOR, RowKind.STATISTICS)


@dataclass(slots=True)
class _OfDump:
    """Makes operands of the files of one step of a dump."""

    root: str
    key: StepKey
    entries: Sequence[Entry]

    def operand(self, number: int, tensors: Tensors) -> Operand:
        entry = self.entries[number]
        header = entry.header
        element: ElementType = header.element if header else from_name("uint8")
        return Operand(
            f"{self.key} of {self.root}",
            element,
            tensors.shapes[number],
            entry.nbytes,
            InFile(self.root, entry.source, entry.offset) if header and entry.readable else None,
            b"",
            bool(header and header.fortran_order),
            header.device if header else None,
        )


def _keys_of(entries: Sequence[Entry]) -> list[TensorKey]:
    """Return the keys that these entries will have in a store."""
    seen: dict[TensorKey, int] = {}
    keys = []
    for entry in entries:
        name = entry.name
        key = TensorKey(name.net, name.graph, name.op_type, name.op_name, name.io, name.slot, name.occurrence)
        copy = seen[key] = seen.get(key, -1) + 1
        keys.append(key._replace(copy=copy))
    return keys
