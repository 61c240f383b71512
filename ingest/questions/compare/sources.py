"""The two sides of a comparison: each is a store, or a dump that is read where it lies.

Of a store, digests are known, so equal tensors cost nothing.

A dump is not converted for this: its files are read in place, and a second time if an element differs. That
takes no space, and about as long as reading the dump. Nothing is ever written into a dump.
"""

from __future__ import annotations

from collections import Counter
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
from ingest.reader.catalog import Catalog
from ingest.reader.choice import named_ranges
from ingest.reader.context import context_of
from ingest.reader.context.files import sample_of, sample_of_dump
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.dump_store import open_store
from ingest.reader.mesh import Coordinates
from ingest.reader.operator_kinds import StepPart, parts_of
from ingest.reader.snapshot import LeftOut, Snapshot, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_tables import read_marginals
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.dtypes import canonical, from_name
from workers.arrays.marginals import Marginal
from workers.arrays.statistics import FIELDS
from workers.dump.model import ReportedStatistics
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store import metadata
from workers.store.commit import holds_commits
from workers.store.consolidated.blocks import TensorKey, tensors_of
from workers.store.model import ArraySpec, Grid, Origin, RowKind, StoreAddress
from workers.store.opening import connect
from workers.store.tables import Tables, attributes_of, parse_record, record_of
from workers.tasks.model import Entry
from workers.tasks.operands import InFile, Operand, Stored


class Operands(Protocol):
    """Says where the elements of the tensors of one step are, and what else is known of these."""

    @property
    def marginals(self) -> Mapping[int, Mapping[int, Marginal]]:
        """By tensor and axis the marginals of those that have any: only a store keeps them.

        Raises:
            DamagedStore: they are damaged.
        """
        return {}

    def operand(self, number: int, tensors: StepTensors) -> Operand:
        """Return a value that says where to read the elements of one tensor."""

    def full_name(self, _: int) -> str:
        """Return the name of a tensor's operator with its scope, as graph files give it; "" if not known."""
        return ""

    def model_output(self, _: int) -> ModelOutput | None:
        """Return the output of the model that a tensor is in the graph of GE; None if it does not tell."""
        return None

    def attributes(self, number: int) -> dict[str, Any]:
        """Return what the file of a tensor holds besides its elements; see `Tensor.attributes`."""


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
    operands: Operands
    partial: str = ""
    """What the step lacks, if that is known only after reading it."""
    removed: frozenset[int] = frozenset()
    """The tensors whose elements were dumped, and have been removed from the store."""

    @cached_property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return [key.name for key in self.keys]

    @cached_property
    def parts(self) -> list[StepPart]:
        """What the tensors are in training."""
        return parts_of(self.keys)

    @cached_property
    def contents(self) -> list[bytes]:
        """The digests as bytes."""
        digests: list[bytes] = np.ascontiguousarray(self.digests).view(f"V{DIGEST_BYTES}").ravel().tolist()
        return digests

    @cached_property
    def zeros(self) -> list[float]:
        """By tensor, the share of elements that are known to be zero."""
        count, zeros = (self.statistics[:, FIELDS.index(name)] for name in ("count", "zero_count"))
        shares: list[float] = np.nan_to_num(zeros / np.maximum(count, 1)).tolist()
        return shares

    @cached_property
    def sizes(self) -> list[float]:
        """By tensor, the root mean square of the elements; NaN if it is not known."""
        count, norms = (self.statistics[:, FIELDS.index(name)] for name in ("count", "l2_norm"))
        sizes: list[float] = (norms / np.sqrt(np.maximum(count, 1))).tolist()
        return sizes

    def operand(self, number: int) -> Operand:
        """Return a value that says where to read the elements of one tensor."""
        return self.operands.operand(number, self)


def forms_of(
    tables: Tables, rows: npt.NDArray[np.int64]
) -> tuple[list[tuple[int, ...]], list[tuple[Any, ...]]]:
    """Return the lengths of the axes of some rows of an index, and the meaning of each.

    That is what decides about a tensor besides its bytes: the type, the array, the layout on the accelerator
    (None in that of the host), whether the first axis changes fastest, and the shape. Tensors of one form
    share both: an object for each takes longer than reading the index, and sets off full garbage collections.
    """
    labels = ("dtype", "array", "layout", "format", "device_shape")
    columns = [tables.label(name)[rows].tolist() for name in labels]
    columns += [tables.number(name)[rows].tolist() for name in ("ndim", "fortran_order", "groups")]
    made: dict[tuple[Any, ...], tuple[tuple[int, ...], tuple[Any, ...]]] = {}
    forms = []
    for fields in zip(*columns, map(tuple, tables.shape[rows].tolist()), strict=True):
        if fields not in made:
            dtype, path, layout, form, device, ndim, fortran, groups, lengths = fields
            # The last part of a path tells types apart, wherever the array is.
            turned = (form, device, groups) if layout == "device" else None
            shape = lengths[:ndim]
            made[fields] = shape, (dtype, path.rpartition("/")[2], turned, fortran == 1, shape)
        forms.append(made[fields])
    return [shape for shape, _ in forms], [meaning for _, meaning in forms]


class StoreSource:
    """The complete steps of a store, as they were at one moment."""

    def __init__(self, selection: Selection, store: Catalog, *, include_partial: bool) -> None:
        """Take a snapshot of the store.

        Raises:
            UsageError: the store does not have the rank or step, or it is not complete.
        """
        self.selection, self.label = selection, str(selection)
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
    shapes, meanings = forms_of(table, rows)
    step.forget_tables()
    arrays = () if step.has_tensors else table.label("array")[rows].tolist()
    return StepTensors(
        key=step.key,
        keys=keys,
        dtypes=table.label("dtype")[rows].tolist(),
        shapes=shapes,
        meanings=meanings,
        digests=table.digest[rows],
        statistics=table.statistics[rows],
        dumped=table.label("kind")[rows] == RowKind.TENSOR.value,
        nbytes=table.number("nbytes")[rows],
        places=table.number("offset")[rows],
        operands=_StoreOperands(store, step, rows, table),
        removed=frozenset(number for number, path in enumerate(arrays) if metadata.is_of_tensors(path)),
    )


class _StoreOperands(Operands):
    def __init__(self, store: Catalog, step: Step, rows: npt.NDArray[np.int64], tables: Tables) -> None:
        self._store, self._step, self._rows, self._tables = store, step, rows, tables
        # What all have in common: a step may have ten thousand.
        self._address = step.address
        self._label = f"{step.key} of {step.address.url}"
        self._arrays: dict[str, tuple[str, ArraySpec]] = {}
        """By label `array` of the index, where it is and what it is like."""

    @cached_property
    def _fields(self) -> list[tuple[Any, ...]]:
        """Array, layout, offset, size and order of the axes of each tensor: asked for one by one, slow."""
        labels = (self._tables.label(name)[self._rows].tolist() for name in ("array", "layout"))
        numbers = (
            self._tables.number(name)[self._rows].tolist() for name in ("offset", "size", "fortran_order")
        )
        return list(zip(*labels, *numbers, strict=True))

    def operand(self, number: int, tensors: StepTensors) -> Operand:
        path, layout, first, size, fortran = self._fields[number]
        nbytes = int(tensors.nbytes[number])
        place: Stored | None = None
        if first >= 0 and nbytes:  # if all tensors of a type are empty, they have no array
            if path not in self._arrays:
                self._arrays[path] = self._step.commit.place_of(path), self._step.packed_spec(path)
            place = Stored(self._address, *self._arrays[path], first, size)
        big_endian = path.endswith("_big_endian")
        device = None
        if layout == "device":
            device = Step(self._step.objects, self._step.commit, self._tables).device(int(self._rows[number]))
        return Operand(
            where=self._label,
            element=from_name(tensors.dtypes[number], big_endian=big_endian),
            shape=tensors.shapes[number],
            nbytes=nbytes,
            place=place,
            digest=tensors.contents[number],
            fortran_order=fortran == 1,
            device=device,
        )

    @cached_property
    def marginals(self) -> Mapping[int, Mapping[int, Marginal]]:
        # Read once, in two requests.
        with self._step.asking_again():
            by_row = read_marginals(self._step).by_row(self._tables)
        numbers = {row: number for number, row in enumerate(self._rows.tolist())}
        return {numbers[row]: known for row, known in by_row.items() if row in numbers}

    @cached_property
    def _has_records(self) -> bool:
        return bool((self._tables.label("record") != "").any())

    def full_name(self, number: int) -> str:
        tensor = self._tensor(number)
        match = None if tensor.full_name else context_of(self._store, self._step.key.rank).match(tensor)
        return tensor.full_name or (match.name if match else None) or ""

    def model_output(self, number: int) -> ModelOutput | None:
        return context_of(self._store, self._step.key.rank).model_output(self._tensor(number))

    def _tensor(self, number: int) -> Tensor:
        return Tensor(Step(self._step.objects, self._step.commit, self._tables), int(self._rows[number]))

    def attributes(self, number: int) -> dict[str, Any]:
        if not self._has_records:
            return {}
        row = int(self._rows[number])
        own = record_of(self._tables, row)
        # Most files hold one tensor, whose row has everything. Others are looked for in the whole index.
        return {**own["file"], **own} if "file" in own else attributes_of(self._tables, row)


class DumpSource:
    """The steps of a dump, as its files are when they are loaded."""

    def __init__(self, selection: Selection, dump: Dump) -> None:
        """List the dump.

        Raises:
            UsageError: the dump does not have the rank or step.
        """
        self.selection, self.label = selection, str(selection)
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
        self.keys = list(self._listings)

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
        dtypes, shapes, statistics = _told_by(entries, [plan.reported.get(row) for row in rows])
        return StepTensors(
            key=key,
            keys=keys_of(entries),
            dtypes=dtypes,
            shapes=shapes,
            meanings=[()] * len(rows),
            digests=np.zeros((len(rows), DIGEST_BYTES), np.uint8),
            statistics=statistics,
            dumped=np.array([entry.kind is RowKind.TENSOR for entry in entries], bool),
            nbytes=np.array([entry.nbytes for entry in entries], np.int64),
            places=np.arange(len(rows)),
            operands=_DumpOperands(str(self._dump.root), key, entries),
            partial=f"partial: {counted(quarantined, 'file')} cannot be read" if quarantined else "",
        )


def _told_by(
    entries: Sequence[Entry], reports: Sequence[ReportedStatistics | None]
) -> tuple[list[str], list[tuple[int, ...]], npt.NDArray[np.float64]]:
    """Return type and shape of each tensor, of its file or as it is reported; and statistics, or NaN."""
    dtypes = [""] * len(entries)
    shapes: list[tuple[int, ...]] = [()] * len(entries)
    statistics = np.full((len(entries), len(FIELDS)), np.nan)
    for number, (entry, report) in enumerate(zip(entries, reports, strict=True)):
        if report is not None:
            statistics[number] = report.statistics.as_row()
            dtypes[number], shapes[number] = canonical(report.dtype), report.shape
        if entry.header is not None:
            dtypes[number], shapes[number] = entry.header.element.name, entry.header.shape
    return dtypes, shapes, statistics


_KINDS = (RowKind.TENSOR, RowKind.STATISTICS)


@dataclass(slots=True)
class _DumpOperands(Operands):
    root: str
    key: StepKey
    entries: Sequence[Entry]

    def operand(self, number: int, tensors: StepTensors) -> Operand:
        entry = self.entries[number]
        header = entry.header
        return Operand(
            where=f"{self.key} of {self.root}",
            element=header.element if header else from_name("uint8"),
            shape=tensors.shapes[number],
            nbytes=entry.nbytes,
            place=InFile(self.root, entry.source, entry.offset, entry.view)
            if header and entry.readable
            else None,
            digest=b"",
            fortran_order=bool(header and header.fortran_order),
            device=header.device if header else None,
        )

    def attributes(self, number: int) -> dict[str, Any]:
        record = parse_record(self.entries[number].record)
        return {**record.get("file", {}), **record}


def keys_of(entries: Sequence[Entry]) -> list[TensorKey]:
    """Return the keys that these entries would have in a store."""
    seen: Counter[TensorKey] = Counter()
    keys = []
    for entry in entries:
        name = entry.name
        key = TensorKey(name.net, name.graph, name.op_type, name.op_name, name.io, name.slot, name.occurrence)
        keys.append(key._replace(copy=seen[key]))
        seen[key] += 1
    return keys


class Source(Protocol):
    """The steps of one or several ranks, which are loaded one at a time."""

    selection: Selection
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
