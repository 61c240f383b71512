"""The cubes: the statistics of all steps and ranks as arrays, which arrays these are, and how they are cut.

    consolidated/
        zarr.json                   written last; the metadata of every array, and which steps are in them
        step, rank, tensor          the coordinates; tensor is a name that occurs once
        name, net, graph, op_type, op_name, io, slot, occurrence, copy     (tensor)
        fingerprint, status, ...    (step, rank): which generation of a step the cubes hold
        aggregate                   (step, rank, statistic): each statistic of all tensors together
        nan_count, min, ..., row    (step, rank, tensor)
        digest                      (step, rank, tensor, digest_byte)
        by_tensor/min, ..., row     (step, rank, tensor): the same cubes, cut along the steps
        sketches                    (step, sketch, bound, rank, tensor): percentiles and losses of casts
        commit                      (step, rank): a copy of the commit

The axes grow at their ends only, so nothing that was written changes its place: steps and ranks stand in the
order in which they were added, which is ascending unless one came late.

Most cubes are cut so that a step has objects of its own, which are never written again: appending a step
costs the same at step 10 and step 1000. The three counts of values that are not finite are cut into blocks
of several steps, because questions about them are about all steps, and nearly all of them are zero: sixteen
steps of 320,000 tensors are a few hundred KiB. So the last block of these is written again with each step,
and so is the last one of what has a value for each step and rank.

A question about one statistic of everything reads `aggregate`, and a question about a few tensors only the
inner chunks that hold them: neither takes in millions of cells. A question about a few tensors over all
steps would take a request for each step. So each block of steps is written once more when it is full, cut
along the tensors (`by_tensor`): all its steps, and a few tensors, in an inner chunk.

The cubes cannot hold histograms, of which each has as many bins as its tensor needs. `sketches` holds the
bounds that follow from these for a few columns of `workers.store.sketch_names`, as float64, so that
a condition is as certain as if the histograms were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from workers.arrays.compiled.kernel_loops import LAST, LOWEST_EXPONENT
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.dtypes import format_named
from workers.arrays.filter import BoundedColumn
from workers.arrays.histogram import HistogramTable
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, NON_FINITE_FIELDS, STATISTICS
from workers.errors import DamagedStore
from workers.model import MIB
from workers.store import metadata
from workers.store.consolidated.blocks import TensorAxis, TensorKey
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.model import Count
from workers.store.objects import ObjectStore
from workers.store.sketch_names import LOSS, PERCENTILE, is_sketch_column, percent_of
from workers.store.sketches import HISTOGRAM_TABLE, contents_of, counted_rows, reported_rows
from workers.store.tables import Tables

#: The columns, by the names that the cubes have for them.
SKETCHES = (
    *("p1", "p50", "p99", "p99.9", "abs_p50", "abs_p99", "abs_p99.9"),
    *(
        f"{loss}_{name}"
        for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "mxfp8_e4m3", "nvfp4")
        for loss in ("overflow", "underflow")
    ),
)
BOUNDS = ("low", "high")
_PLACES = {name.replace(".", "_"): place for place, name in enumerate(SKETCHES)}


def sketch_place(name: str) -> int | None:
    """Return the place in `SKETCHES` of a column of a condition, however it spells its format; None for none.

    Args:
        name: as conditions have it inside, `p99_9` for `p99.9`.
    """
    if not is_sketch_column(name):
        return None
    if loss := LOSS.fullmatch(name):
        name = f"{loss[1]}_{format_named(loss[2]).name}"
    elif percentile := PERCENTILE.fullmatch(name):
        name = f"{percentile[1] or ''}p{percent_of(percentile):g}".replace(".", "_")
    return _PLACES.get(name)


@dataclass(frozen=True, slots=True, eq=False)
class SketchedRows:
    """The columns of one step of one rank."""

    rows: npt.NDArray[np.int64]
    """(n,): the rows of the index that have a histogram."""
    of_row: npt.NDArray[np.int64]
    """(n,): where in `values` each of them is; equal tensors are there once."""
    values: npt.NDArray[np.float64]
    """(distinct, len(SKETCHES), len(BOUNDS)); NaN for percentiles of tensors without a finite element."""
    without: int
    """How many other tensors of real numbers lack a histogram that they should have."""


def sketched_rows(index: Tables, entries: npt.NDArray[np.int64] | None) -> SketchedRows:
    """Return the rows of the cubes for a step. A histogram that contradicts the statistics is left out.

    Args:
        index: the index of the step.
        entries: the table of its histograms, `HISTOGRAM_TABLE`; None if it is damaged.
    """
    must_have, may_have = counted_rows(index), reported_rows(index)
    counted = np.array(must_have + may_have, np.int64)
    needed = slice(len(counted if entries is None else must_have))
    entries = HISTOGRAM_TABLE.empty() if entries is None else entries
    sketch_of = _numbers_of_rows(index, entries, counted)
    first_rows, members = _distinct(counted, sketch_of)
    table, is_known = _table(index, entries, first_rows, sketch_of[first_rows])
    kept = is_known[members]
    elements = index.statistic("count")[first_rows]
    without = int((~kept[needed]).sum())
    return SketchedRows(counted[kept], members[kept], _values(table, elements), without)


def _numbers_of_rows(
    index: Tables, entries: npt.NDArray[np.int64], counted: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return by row of the index the row whose entries it shares, (row,); -1 for rows without any."""
    shared = np.full(len(index.labels), -1, np.int64)
    in_range = entries[:, 0][(entries[:, 0] >= 0) & (entries[:, 0] < len(shared))]
    own = np.flatnonzero(np.bincount(in_range, minlength=len(shared)))
    if not len(own) or not len(counted):
        return shared
    shared[own] = own
    copies = counted[shared[counted] < 0]
    if len(copies):
        contents = contents_of(index)
        first_of = {contents[row]: row for row in own[::-1].tolist()}
        shared[copies] = [first_of.get(contents[row], -1) for row in copies.tolist()]
    return shared


def _distinct(
    counted: npt.NDArray[np.int64], sketch_of: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return rows that stand for equal ones, (distinct,), and the place in them of each row, (counted,)."""
    # A row without entries stands for itself.
    sharing = np.where(sketch_of[counted] >= 0, sketch_of[counted], counted + len(sketch_of))
    first = np.full(2 * len(sketch_of), -1)
    first[sharing[::-1]] = counted[::-1]
    is_used = first >= 0
    return first[is_used], (np.cumsum(is_used) - 1)[sharing]


def _table(
    index: Tables,
    entries: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    sketch_of: npt.NDArray[np.int64],
) -> tuple[HistogramTable, npt.NDArray[np.bool_]]:
    """Return the histograms of these rows, and which of them agree with the statistics, (row,)."""
    place_of = np.full(len(index.labels), -1, np.int64)
    place_of[sketch_of[sketch_of >= 0]] = np.flatnonzero(sketch_of >= 0)
    in_range = (entries[:, 0] >= 0) & (entries[:, 0] < len(place_of))
    entries = entries[in_range]
    tensor, bins = place_of[entries[:, 0]], entries[:, 1:]
    possible = (bins[:, 0] >= LOWEST_EXPONENT) & (bins[:, 0] <= LOWEST_EXPONENT + LAST)
    possible &= (bins[:, 1] >= 0) & (bins[:, 2] >= 0)
    is_known = np.ones(len(rows), bool)
    is_known[tensor[(tensor >= 0) & ~possible]] = False
    used = (tensor >= 0) & possible
    tensor, bins = tensor[used], bins[used]
    statistics = dict(zip(FIELDS, index.statistics[rows].T, strict=True))
    for column, sign, infinite in (
        (1, "positive_count", "pos_inf_count"),
        (2, "negative_count", "neg_inf_count"),
    ):
        counted = np.bincount(tensor, bins[:, column], len(rows))
        is_known &= counted == statistics[sign] - statistics[infinite]
    is_known &= statistics["zero_count"] >= 0
    zeros = np.where(is_known, statistics["zero_count"], 0).astype(np.int64)
    kept = is_known[tensor]
    return HistogramTable.of_entries(
        tensor[kept], bins[kept], zeros, statistics["min"], statistics["max"]
    ), is_known


def _values(table: HistogramTable, elements: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    values = np.empty((table.tensors, len(SKETCHES), len(BOUNDS)))
    for name, place in _PLACES.items():
        values[:, place, 0], values[:, place, 1] = _column(name, table, elements)
    return values


def _column(name: str, table: HistogramTable, elements: npt.NDArray[np.float64]) -> BoundedColumn:
    if percentile := PERCENTILE.fullmatch(name):
        return table.quantile(percent_of(percentile) / 100, magnitude=percentile[1] is not None)
    loss = LOSS.fullmatch(name)
    assert loss is not None  # noqa: S101  (for mypy: these are the other columns)
    target = format_named(loss[2])
    lost = table.overflow(target) if loss[1] == "overflow" else table.underflow(target)
    some = np.where(elements > 0, elements, 1.0)
    return BoundedColumn(lost.low / some, lost.high / some)


GROUP = "consolidated"
#: The group in it of the cubes that are cut along the tensors.
BY_TENSOR = "by_tensor"
REBUILD_HINT = "`dump-ingest consolidate --rebuild` makes the view again; nothing is lost by it."
#: Raised when an older version could not read the cubes: it makes them again then, from the commits.
CUBES_VERSION = 4

#: Text and numbers of `TensorKey`, in its order.
KEY_FIELDS = TensorKey._fields
#: Totals of a step of a rank, from its commit.
TOTALS = ("tensors", "statistics_only", "quarantined", "overflows", "disagreements", "anomalous_tensors")

#: By step and rank: how many rows of the index have a histogram, and how many lack the one they should have.
SKETCH_TOTALS = ("with_histogram", "without_histogram")

#: Names of the places along the axes that `sketches` has besides those of a cube.
SKETCH_LABELS = {"sketch": SKETCHES, "bound": BOUNDS}

#: The axes of a cube.
CUBE = ("step", "rank", "tensor")
_TENSOR_AXIS = CUBE.index("tensor")
_MAX_RANKS = 256
_MAX_TENSORS = 8192
_INNER_TENSORS = 512
_MAX_STEPS = 16
_ANOMALY_NBYTES = 64 * MIB
#: Of an inner chunk of the cubes by tensor: a question about one tensor decodes one for each block of steps.
_INNER_BY_TENSOR_NBYTES = MIB // 2
_STEPS = 1024
_STEPS_OF_TABLES = 128
_STEPS_OF_AGGREGATE = 32
_KEYS = 16384
#: Cells of ranks and tensors in an object of `sketches`, which has 304 bytes for each.
_CELLS_OF_SKETCHES = 1 << 18
#: No axis is longer: readers take memory for what the metadata says, so that needs a bound.
_MAX_LENGTH = 1 << 24

Length: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MAX_LENGTH)]
ChunkLength: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=_MAX_LENGTH)]


class CubeGrid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the cubes are cut: the lengths of a chunk along each axis. Fixed when the cubes are made."""

    ranks: ChunkLength
    tensors: ChunkLength
    inner_tensors: ChunkLength
    steps: ChunkLength
    """Of the counts of values that are not finite, and of the cubes by tensor; others have one step."""

    @classmethod
    def for_size(cls, ranks: int, tensors: int) -> CubeGrid:
        """Return the grid for a run that begins with this many ranks and tensors; either may grow."""
        wide = min(_power_of_two(max(ranks, 1)), _MAX_RANKS)
        # A little room: other steps may have other tensors.
        long = min(_power_of_two(max(tensors * 9 // 8, 64)), _MAX_TENSORS)
        fitting = _ANOMALY_NBYTES // (wide * long * 8)
        return cls(wide, long, min(long, _INNER_TENSORS), max(1, min(fitting, _MAX_STEPS)))

    @property
    def inner_by_tensor(self) -> int:
        """How many tensors an inner chunk of the cubes by tensor has."""
        inner = self.inner_tensors
        while inner % 2 == 0 and self.steps * self.ranks * inner * 8 > _INNER_BY_TENSOR_NBYTES:
            inner //= 2
        return inner

    @property
    def is_possible(self) -> bool:
        """Whether a chunk is small enough to read, and can be cut into inner chunks."""
        is_bounded = self.ranks * self.tensors * self.steps <= _MAX_RANKS * _MAX_TENSORS * _MAX_STEPS
        return is_bounded and self.tensors % self.inner_tensors == 0


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


@dataclass(frozen=True)
class CubeLayouts:
    """The layouts of all arrays, by group."""

    grid: CubeGrid

    @cached_property
    def per_step(self) -> dict[str, ArrayLayout]:
        """Cubes with objects of their own for each step."""
        grid = self.grid
        chunk = (1, grid.ranks, grid.tensors)
        layouts = {name: self._statistic(name, chunk) for name in FIELDS if name not in NON_FINITE_FIELDS}
        layouts["row"] = ArrayLayout("row", "int32", CUBE, chunk, -1, grid.inner_tensors, _TENSOR_AXIS)
        layouts["digest"] = ArrayLayout(
            "digest",
            "uint8",
            (*CUBE, "digest_byte"),
            (*chunk, DIGEST_BYTES),
            0,
            grid.inner_tensors,
            _TENSOR_AXIS,
        )
        return layouts

    def _statistic(self, name: str, chunk: tuple[int, int, int]) -> ArrayLayout:
        data_type, fill = ("int64", -1) if name in COUNT_FIELDS else ("float64", np.nan)
        return ArrayLayout(
            name, data_type, CUBE, chunk, fill, self.grid.inner_tensors, _TENSOR_AXIS, _missing(fill)
        )

    @cached_property
    def anomalies(self) -> dict[str, ArrayLayout]:
        """Cubes that are cut into blocks of several steps."""
        chunk = (self.grid.steps, self.grid.ranks, self.grid.tensors)
        inner, axis = self.grid.inner_tensors, _TENSOR_AXIS
        return {
            name: ArrayLayout(name, "int64", CUBE, chunk, -1, inner, axis, attributes=_missing(-1))
            for name in NON_FINITE_FIELDS
        }

    @cached_property
    def by_tensor(self) -> dict[str, ArrayLayout]:
        """Cubes of `per_step` once more, in blocks of several steps that are full; by the same names."""
        chunk, inner = (self.grid.steps, self.grid.ranks, self.grid.tensors), self.grid.inner_by_tensor
        return {
            name: replace(layout, path=f"{BY_TENSOR}/{name}", chunk=chunk, inner=inner)
            for name, layout in self.per_step.items()
            if name != "digest"
        }

    @cached_property
    def aggregate(self) -> ArrayLayout:
        """Each statistic of all tensors of a step and rank together."""
        chunk = (_STEPS_OF_AGGREGATE, self.grid.ranks, len(STATISTICS))
        axes = ("step", "rank", "statistic")
        # One statistic alone can be read.
        return ArrayLayout("aggregate", "float64", axes, chunk, np.nan, 1, axes.index("statistic"))

    @cached_property
    def sketches(self) -> ArrayLayout:
        """What follows from the histograms of a step, in objects of its own."""
        tensors = min(self.grid.tensors, max(_CELLS_OF_SKETCHES // self.grid.ranks, 1))
        axes = ("step", "sketch", "bound", "rank", "tensor")
        chunk = (1, len(SKETCHES), len(BOUNDS), self.grid.ranks, tensors)
        # One column alone can be read.
        return ArrayLayout("sketches", "float64", axes, chunk, np.nan, 1, axes.index("sketch"))

    @cached_property
    def sketch_labels(self) -> dict[str, ArrayLayout]:
        """What names the places of `sketches`: its columns, and the two bounds of each."""
        return {
            name: ArrayLayout(name, "string", (name,), (len(SKETCH_LABELS[name]),), "")
            for name in SKETCH_LABELS
        }

    @cached_property
    def tables(self) -> dict[str, ArrayLayout]:
        """Tables of (step, rank)."""
        axes, chunk = ("step", "rank"), (_STEPS_OF_TABLES, self.grid.ranks)
        texts = {name: ArrayLayout(name, "string", axes, chunk, "") for name in ("fingerprint", "status")}
        totals = {
            name: ArrayLayout(name, "int64", axes, chunk, -1, attributes=_missing(-1))
            for name in (*TOTALS, *SKETCH_TOTALS)
        }
        return texts | totals

    @cached_property
    def commits(self) -> ArrayLayout:
        """Copies of commits as text, in objects of their own for each step.

        Whether a copy is up to date is known from announcements: see `workers.store.commit`.
        """
        return ArrayLayout("commit", "string", ("step", "rank"), (1, self.grid.ranks), "")

    @cached_property
    def keys(self) -> dict[str, ArrayLayout]:
        """Columns of (tensor): the fields of `TensorKey`, `name`, and `tensor` itself."""
        columns = {}
        for name in (*KEY_FIELDS, "name", "tensor"):
            is_number = name in ("slot", "occurrence", "copy")
            data_type, fill = ("int64", -1) if is_number else ("string", "")
            columns[name] = ArrayLayout(name, data_type, ("tensor",), (_KEYS,), fill)
        return columns

    @cached_property
    def steps(self) -> ArrayLayout:
        """The step numbers."""
        return ArrayLayout("step", "int64", ("step",), (_STEPS,), -1)

    @cached_property
    def ranks(self) -> ArrayLayout:
        """The ranks."""
        return ArrayLayout("rank", "int64", ("rank",), (_STEPS,), -1)

    @cached_property
    def statistics(self) -> ArrayLayout:
        """The names on the axis of statistics of `aggregate`."""
        return ArrayLayout("statistic", "string", ("statistic",), (len(STATISTICS),), "")

    @property
    def of_ranks(self) -> tuple[ArrayLayout, ...]:
        """What has a value for each step and rank, in blocks of several steps. All of its chunks exist."""
        return (*self.tables.values(), self.aggregate)

    @property
    def shared(self) -> tuple[ArrayLayout, ...]:
        """What is cut into blocks of several steps."""
        return (*self.of_ranks, *self.anomalies.values())

    def documents(self, steps: int, ranks: int, tensors: int) -> dict[str, metadata.Document]:
        """Return the Zarr metadata of every array, by its path in the group."""
        cube = (steps, ranks, tensors)
        shapes = {"digest": (*cube, DIGEST_BYTES)}
        documents = {
            name: layout.document(shapes.get(name, cube))
            for name, layout in {**self.per_step, **self.anomalies}.items()
        }
        documents[BY_TENSOR] = metadata.group()
        documents |= {layout.path: layout.document(cube) for layout in self.by_tensor.values()}
        documents |= {name: layout.document((steps, ranks)) for name, layout in self.tables.items()}
        documents |= {name: layout.document((tensors,)) for name, layout in self.keys.items()}
        documents |= {name: layout.document(layout.chunk) for name, layout in self.sketch_labels.items()}
        return {
            **documents,
            "commit": self.commits.document((steps, ranks)),
            "aggregate": self.aggregate.document((steps, ranks, len(STATISTICS))),
            "statistic": self.statistics.document((len(STATISTICS),)),
            "sketches": self.sketches.document((steps, len(SKETCHES), len(BOUNDS), ranks, tensors)),
            "step": self.steps.document((steps,)),
            "rank": self.ranks.document((ranks,)),
        }


def _missing(fill: Any) -> dict[str, Any]:
    # By this, xarray shows what a rank does not have as missing, and not as a count of -1.
    return {"_FillValue": fill} if isinstance(fill, int) else {}


#: No table of (step, rank) is larger: it takes half a GiB.
_MAX_TABLE = 1 << 26


class CubeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the metadata of the cubes says about them: how long the axes are, and what is being written.

    The fields are in the order in which they are written.
    """

    epoch: str
    """Changes when the cubes are made again."""
    revision: Count
    """How often the metadata was written."""
    rewrites: Count
    """How often a writer began to write steps again that were in the cubes."""
    rewriting: tuple[Length, ...]
    """Places of the steps that are being written again: nobody may trust what the cubes hold of them."""
    grid: CubeGrid
    steps: Length = 0
    ranks: Length = 0
    tensors: Length = 0
    consolidated_at: str = ""
    """When the metadata was written, ISO 8601."""
    version: int = CUBES_VERSION
    uncut: tuple[Length, ...] = ()
    """Full blocks of steps that the cubes by tensor do not hold, or not as they are now. Ascending."""

    @property
    def full_blocks(self) -> int:
        """How many blocks of steps are full."""
        return self.steps // self.grid.steps

    def is_cut(self, block: int) -> bool:
        """Return whether the cubes by tensor hold a block of steps."""
        return block < self.full_blocks and block not in self.uncut

    @property
    def is_possible(self) -> bool:
        """Whether the lengths fit each other, and the tables of (step, rank) fit into memory."""
        return (
            self.grid.is_possible
            and self.steps * self.ranks <= _MAX_TABLE
            and max(self.rewriting, default=-1) < self.steps
            and max(self.uncut, default=-1) < self.full_blocks
        )

    def document(self) -> metadata.Document:
        """Return the metadata of the group, with that of all arrays in it."""
        documents = CubeLayouts(self.grid).documents(self.steps, self.ranks, self.tensors)
        document = metadata.leaf(msgspec.to_builtins(self), documents)
        # By this, xarray takes them for coordinates (CF conventions, section 5).
        document["attributes"]["coordinates"] = " ".join((*KEY_FIELDS, "name"))
        return document


class _Version(msgspec.Struct):
    version: int


_DECODE_VERSION = msgspec.json.Decoder(_Version).decode
_DECODE_STATE = msgspec.json.Decoder(CubeState).decode


def parse_state(data: bytes | None) -> CubeState | None:
    """Read the metadata of the cubes; None if there are none, or those of another version.

    Raises:
        DamagedStore: it is damaged.
    """
    if data is None:
        return None
    try:
        written = metadata.own_attributes(data)
        if _DECODE_VERSION(written).version != CUBES_VERSION:
            return None
        state = _DECODE_STATE(written)
    except (ValueError, RecursionError) as exc:
        raise DamagedStore(f"{GROUP}/zarr.json is damaged: {exc}", hint=REBUILD_HINT) from exc
    if not state.is_possible:
        raise DamagedStore(f"{GROUP}/zarr.json has impossible lengths", hint=REBUILD_HINT)
    return state


def unique_names(keys: Sequence[TensorKey], taken: set[str]) -> list[str]:
    """Return a name for each of `keys` that occurs once: its own if that is free, otherwise with its graph.

    `taken` has the names given before; the new ones are added to it.
    """
    names = []
    for key in keys:
        name = f"{key.name}~{key.copy}" if key.copy else key.name
        if name in taken:
            longest = f"{key.net}/{key.graph}/{name}"
            free = (c for c in (f"{key.graph}/{name}", longest) if c not in taken)
            name = next(free, f"{longest}~{len(taken)}")
        taken.add(name)
        names.append(name)
    return names


def read_axis(objects: ObjectStore, layouts: CubeLayouts, width: int) -> TensorAxis:
    """Read the first `width` tensors of the axis.

    Raises:
        DamagedStore: they are missing or damaged.
    """
    columns = []
    for name in KEY_FIELDS:
        layout = layouts.keys[name]
        keys = [f"{GROUP}/{key}" for key in layout.keys((width,)).values()]
        chunks = objects.get_many(keys)
        parts = []
        for key in keys:
            if key not in chunks:
                raise DamagedStore(f"{key}: missing", hint=REBUILD_HINT)
            parts.append(layout.decode(chunks[key], key))
        columns.append(np.concatenate(parts)[:width].tolist() if parts else [])
    return TensorAxis(map(TensorKey._make, zip(*columns, strict=True)))
