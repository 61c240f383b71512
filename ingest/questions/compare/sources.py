"""The two sides of a comparison: a store, or a dump that is read where it lies.

A dump is not converted for this: its files are read in place, and a second time if an element differs. That
takes no space, and about as long as reading the dump. In a store the digests are known, so equal tensors cost
nothing. Nothing is ever written into a dump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ingest.layouts.base import Dump, Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from ingest.questions.compare.dump_rows import keys_of, statistics_of, types_and_shapes
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.stored_forms import StoredForms
from ingest.reader.catalog import Catalog
from ingest.reader.context import context_of
from ingest.reader.context.configuration import sample_of, sample_of_dump
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.dump_store import open_store
from ingest.reader.mesh import Coordinates
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import LeftOut, Snapshot, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_marginals import read_marginals
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.dtypes import ElementType, from_name
from workers.arrays.marginals import Marginal
from workers.errors import UsageError
from workers.model import StepKey
from workers.store import metadata
from workers.store.attributes import attributes_of, parse_record, record_of
from workers.store.blocks import TensorKey, tensors_of
from workers.store.model import ArraySpec, Grid, Origin, RowKind, StoreAddress
from workers.store.tables import Tables
from workers.tasks.model import Entry
from workers.tasks.operands import InFile, Operand, Stored


@dataclass(frozen=True, eq=False)
class StepTensors:
    """The tensors of one step of one rank, in order of execution. All lists and arrays have this order."""

    key: StepKey
    keys: list[TensorKey]
    dtypes: list[str]
    shapes: Sequence[tuple[int, ...]]
    meanings: Sequence[tuple[Any, ...]]
    """What decides about a tensor besides its bytes: with equal digests and meanings, tensors are equal."""
    digests: npt.NDArray[np.uint8]
    """(tensor, 16), uint8; zeros if not known."""
    statistics: npt.NDArray[np.float64]
    """(tensor, len(FIELDS)), float64; NaN if not known."""
    dumped: npt.NDArray[np.bool_]
    """(tensor,): whether the elements were dumped, and not only statistics."""
    nbytes: npt.NDArray[np.int64]
    """(tensor,): bytes of the payload."""
    places: npt.NDArray[Any]
    """(tensor,): sorts in the order in which payloads are stored."""
    operands: _StoreOperands | _DumpOperands
    partial: str = ""
    """What the step lacks, if that is known only after reading it."""
    removed: frozenset[int] = frozenset()
    """The tensors whose elements were dumped, and have been removed from the store."""
    forms: npt.NDArray[np.object_] | None = None
    """(tensor, field): tensors of which these are equal have equal meanings, but not only they; None if that
    is not known."""

    @cached_property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return [key.name for key in self.keys]

    @property
    def different_shapes(self) -> list[tuple[int, ...]]:
        """The shapes that occur: a few hundred, of ten thousand tensors."""
        if self.forms is None:
            return list(set(self.shapes))
        # The last field is that of all numbers, and the same where these are.
        alike = self.forms[:, -1].tolist()
        return [self.shapes[number] for number in dict(zip(alike, range(len(alike)), strict=True)).values()]

    def operand(self, number: int) -> Operand:
        """Return a value that says where to read the elements of one tensor."""
        return self.operands.operand(number, self)


@dataclass(frozen=True, slots=True)
class LineAndName:
    """What the graph files of a dump say about the operator of a tensor."""

    name: str = ""
    """Its full name, with its scope; "" if it is not known."""
    line: tuple[str, int] | None = None
    """The file, without its directory, and the line that made it."""


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
    if exists and path.is_dir() and not (path / "zarr.json").exists():
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


class StoreSource:
    """The complete steps of a store, as they were at one moment."""

    def __init__(self, selection: Selection, store: Catalog, *, include_partial: bool) -> None:
        """Take a snapshot of the store.

        Raises:
            UsageError: the store does not have the rank or step, or it is not complete.
        """
        self.label = str(selection)
        self._snapshot: Snapshot = take_snapshot(
            store, selection.rank, selection.step, include_partial=include_partial
        )
        self.left_out = self._snapshot.left_out
        self.keys = self._snapshot.keys
        self.sample = sample_of(self._snapshot.store, self.keys[0].rank) if self.keys else 0

    def coordinates(self) -> Mapping[int, Coordinates]:
        """Return by rank where it is in the mesh of the job, as the store tells."""
        return self._snapshot.store.coordinates(self._snapshot.ranks)

    def load(self, key: StepKey) -> StepTensors:
        """Read the index of one step. It is held as long as the result.

        Raises:
            DamagedStore: the index is damaged.
        """
        return load_step(self._snapshot.store, self._snapshot.chosen[key])


def load_step(store: Catalog, step: Step) -> StepTensors:
    """Read the index of a step of a store. It is held as long as the result.

    Raises:
        DamagedStore: the index is damaged.
    """
    table = step.tables
    rows, keys = tensors_of(table)
    forms = StoredForms(table, rows)
    step.forget_tables()
    return StepTensors(
        step.key,
        keys,
        forms.dtypes,
        forms.shapes,
        forms.meanings,
        table.digest[rows],
        table.statistics[rows],
        table.label("kind")[rows] == RowKind.TENSOR.value,
        table.number("nbytes")[rows],
        table.number("offset")[rows],
        _StoreOperands(store, step, rows, table),
        removed=_removed(step, forms.arrays),
        forms=forms.fields,
    )


def _removed(step: Step, arrays: Sequence[str]) -> frozenset[int]:
    """Return the tensors whose payloads are not kept, from the array of each."""
    if step.has_tensors:
        return frozenset()
    return frozenset(number for number, path in enumerate(arrays) if metadata.is_of_tensors(path))


@dataclass
class _StoreOperands:
    """Makes operands of the rows of one step of a store."""

    store: Catalog
    step: Step
    rows: npt.NDArray[np.int64]
    tables: Tables
    address: StoreAddress = field(init=False)
    label: str = field(init=False)
    _arrays: dict[str, ArraySpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note what all operands have in common: a step may have ten thousand."""
        self.address = self.step.address
        self.label = f"{self.step.key} of {self.address.url}"

    @cached_property
    def _columns(self) -> tuple[list[Any], ...]:
        """Array, layout, offset, size and order of the axes of each tensor: asked for one by one, slow."""
        labels = (self.tables.label(name)[self.rows].tolist() for name in ("array", "layout"))
        numbers = (
            self.tables.number(name)[self.rows].tolist() for name in ("offset", "size", "fortran_order")
        )
        return *labels, *numbers

    def operand(self, number: int, tensors: StepTensors) -> Operand:
        step = self.step
        path, layout, first, size, fortran = (column[number] for column in self._columns)
        nbytes = int(tensors.nbytes[number])
        place: Stored | None = None
        if first >= 0 and nbytes:  # if all tensors of a type are empty, they have no array
            if path not in self._arrays:
                self._arrays[path] = step.packed_spec(path)
            place = Stored(self.address, step.commit.place_of(path), self._arrays[path], first, size)
        big_endian = path.endswith("_big_endian")
        device = None
        if layout == "device":
            device = Step(step.objects, step.commit, self.tables).device(int(self.rows[number]))
        return Operand(
            self.label,
            from_name(tensors.dtypes[number], big_endian=big_endian),
            tensors.shapes[number],
            nbytes,
            place,
            tensors.digests[number].tobytes(),
            fortran == 1,
            device,
        )

    @cached_property
    def marginals(self) -> Mapping[int, Mapping[int, Marginal]]:
        """By tensor and axis the marginals of those that have any; read once, in two requests.

        Raises:
            DamagedStore: they are damaged.
        """
        with self.step.asking_again():
            by_row = read_marginals(self.step).by_row(self.tables)
        numbers = {row: number for number, row in enumerate(self.rows.tolist())}
        return {numbers[row]: known for row, known in by_row.items() if row in numbers}

    @cached_property
    def _has_records(self) -> bool:
        return bool((self.tables.label("record") != "").any())

    def line_and_name(self, number: int) -> LineAndName:
        """Return what the graph files say about the operator of a tensor."""
        context = context_of(self.store, self.step.key.rank)
        tensor = Tensor(Step(self.step.objects, self.step.commit, self.tables), int(self.rows[number]))
        match, line = context.match(tensor), context.source_line(tensor)
        name = tensor.full_name or (match.name if match else None) or ""
        return LineAndName(name, (PurePath(line.file).name, line.line) if line else None)

    def model_output(self, number: int) -> ModelOutput | None:
        """Return which output of the model the graph of GE says that a tensor is; None if it says nothing."""
        tensor = Tensor(Step(self.step.objects, self.step.commit, self.tables), int(self.rows[number]))
        return context_of(self.store, self.step.key.rank).model_output(tensor)

    def attributes(self, number: int) -> dict[str, Any]:
        """Return what its file says of a tensor besides its elements; see `Tensor.attributes`."""
        if not self._has_records:
            return {}
        row = int(self.rows[number])
        own = record_of(self.tables, row)
        # Most files hold one tensor, whose row has everything. Others are looked for in the whole index.
        return {**own["file"], **own} if "file" in own else attributes_of(self.tables, row)


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
            ranks = format_ranges({listing.key.rank for listing in listings})
            steps = format_ranges({listing.key.step or 0 for listing in listings})
            raise UsageError(
                f"{selection}: the dump does not have this rank and step",
                hint=f"It has ranks {ranks} and steps {steps}.",
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
            key,
            keys_of(entries),
            dtypes,
            shapes,
            [()] * len(rows),
            np.zeros((len(rows), DIGEST_BYTES), np.uint8),
            statistics_of(reported),
            np.array([entry.kind is RowKind.TENSOR for entry in entries], bool),
            np.array([entry.nbytes for entry in entries], np.int64),
            np.arange(len(rows)),
            _DumpOperands(str(self._dump.root), key, entries),
            f"partial: {counted(quarantined, 'file')} cannot be read" if quarantined else "",
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
            f"{self.key} of {self.root}",
            element,
            tensors.shapes[number],
            entry.nbytes,
            InFile(self.root, entry.source, entry.offset, entry.view) if header and entry.readable else None,
            b"",
            bool(header and header.fortran_order),
            header.device if header else None,
        )

    @property
    def marginals(self) -> Mapping[int, Mapping[int, Marginal]]:
        """Nothing: only a store keeps marginals."""
        return {}

    def line_and_name(self, _: int) -> LineAndName:
        """Return nothing: only a store has its graph files at hand."""
        return LineAndName()

    def model_output(self, _: int) -> ModelOutput | None:
        """Return nothing, for the same reason."""
        return None

    def attributes(self, number: int) -> dict[str, Any]:
        """Return what its file says of a tensor besides its elements."""
        record = parse_record(self.entries[number].record)
        return {**record.get("file", {}), **record}
