"""Sketches: the arrays of a generation with what is kept of the values of tensors besides statistics.

Most are tables of entries of the rows of the index: none, one, or many for each. A table is one chunk,
(entry, field) int64, whose first field is the row of the index. A table without entries does not exist.

    histograms      (entry, field) int64: row, exponent, positive, negative

An entry is one bin of one tensor: how many of its elements are in (2**exponent, 2**(exponent+1)], and how
many in the same range of negative numbers. Only bins that hold elements have an entry. Of equal tensors, one
row has entries, and `bins_by_row` finds it.

    block_digests   (entry, field) int64: row, digest

The entries of a row are in the order of its blocks; a digest is the XXH3-64 of 64 KiB of its payload as it is
stored, as a signed integer. Payloads of a single block have no entries. Of equal payloads, one row has.

    marginal_axes   (entry, field) int64: row, axis, begin, length
    marginals       (field, place) float32, sharded along the places: sum, l2_norm, abs_max

An entry is one axis of one tensor; its positions are `length` places of `marginals` from `begin` on. Of
tensors with equal elements, one row has entries, and `by_row` finds it. A step with marginals has
`marginal_axes`, even if it has no entries.

A step with marginals of large tensors alone has `large_marginal_axes` and `large_marginals` instead. They
stay if the others are added later: a committed array never changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays import histogram, marginals
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.dtypes import from_name
from workers.arrays.histogram import NO_BINS, Histogram
from workers.arrays.marginals import Marginal, MarginalScope, MarginalTable
from workers.arrays.statistics import Statistics
from workers.errors import DamagedStore
from workers.model import ceil_div
from workers.store import metadata, untrusted
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.model import RowKind
from workers.store.tables import NO_CHECKSUMS, TableFormat, Tables, refuse_foreign

ROW = "row"


class EntryTable(TableFormat):
    """The format of one table of entries, the first field of which is the row of the index."""

    __slots__ = ()

    def __init__(self, path: str, own_fields: tuple[str, ...]) -> None:
        super().__init__(path, "int64", ("entry", "field"), (ROW, *own_fields))

    def empty(self) -> npt.NDArray[np.int64]:
        """Return no entries, (0, len(fields))."""
        return np.zeros((0, len(self.fields)), np.int64)

    def gathered(
        self, rows: Sequence[int], counts: Sequence[int], parts: Sequence[npt.NDArray[np.int64]]
    ) -> npt.NDArray[np.int64]:
        """Return the entries of several rows, (entry, len(fields)).

        Args:
            rows: rows of the index.
            counts: how many entries each has.
            parts: the entries without the row, one after the other, each (entry, len(own_fields)).
        """
        return np.column_stack([np.repeat(rows, counts), np.concatenate(parts)]) if parts else self.empty()

    def joined(self, parts: Iterable[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        """Return the entries of all parts, by row."""
        entries = np.concatenate([self.empty(), *(part for part in parts if len(part))])
        return entries[np.argsort(entries[:, 0], kind="stable")]

    def encode(self, table: npt.NDArray[Any]) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
        """Return the metadata and the chunk, by path in the generation; none for no entries."""
        return super().encode(table) if len(table) else ({}, {})

    def own(self, entries: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.int64]]:
        """Return by row of the index its own entries without the row, (entry, len(own_fields))."""
        starts = np.flatnonzero(np.diff(entries[:, 0], prepend=-1))
        return dict(zip(entries[starts, 0].tolist(), np.split(entries[:, 1:], starts[1:]), strict=False))


def rows_of(entries: npt.NDArray[np.int64]) -> list[int]:
    """Return the rows that have entries, in order."""
    # `np.unique` would import `numpy.ma`, which takes 0.016 s of each process.
    return sorted(set(entries[:, 0].tolist()))


def is_of_rows(entries: npt.NDArray[np.int64], rows: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return whether each entry belongs to one of these rows, (entry,)."""
    return np.isin(entries[:, 0], np.array(rows, np.int64), kind="table")


HISTOGRAM_TABLE = EntryTable("histograms", histogram.FIELDS)


def distinct_tensors(rows: Iterable[int], index: Tables) -> list[int]:
    """Return the rows, except of tensors that are equal to a tensor of an earlier row."""
    contents = contents_of(index)
    return list({contents[row]: row for row in sorted(rows, reverse=True)}.values())


def histograms_of_tables(
    index: Tables, entries: npt.NDArray[np.int64], where: str, wanted: Collection[int] | None = None
) -> dict[int, Histogram]:
    """Return by row the histogram of each tensor that has one.

    Equal tensors have equal histograms: those with the same digest and type. In device layout, where the
    padding does not count, they must have the same shape, too. A tensor of zeros alone has one without any
    entries, because its statistics say everything. What a dump has statistics of alone may have one, too.

    Args:
        index: the index of the step.
        entries: the table of its histograms.
        where: names the step, for errors.
        wanted: the rows that are asked for; all if None.

    Raises:
        DamagedStore: a histogram contradicts the statistics.
    """
    of_rows, contents = HISTOGRAM_TABLE.own(entries), contents_of(index)
    of_content: dict[tuple[object, ...], npt.NDArray[np.int64]] = {}
    for row, bins in of_rows.items():
        if row < len(contents):
            of_content.setdefault(contents[row], bins)
    made: dict[tuple[int, int], Histogram | None] = {}
    known: dict[int, Histogram] = {}
    for row in (*counted_rows(index), *reported_rows(index)):
        if wanted is not None and row not in wanted:
            continue
        bins = of_rows.get(row, of_content.get(contents[row], NO_BINS))
        # What follows from shared bins is computed once.
        key = (id(bins), row if bins is NO_BINS else -1)
        if key not in made:
            made[key] = _histogram(index, row, bins, where)
        if (of_row := made[key]) is not None:
            known[row] = of_row
    return known


def counted_rows(index: Tables) -> list[int]:
    """Return the rows of tensors of real numbers whose statistics were computed."""
    is_counted = (index.label("kind") == RowKind.TENSOR.value) & (
        index.label("statistics_from") == "computed"
    )
    return _of_real_numbers(index, is_counted)


def reported_rows(index: Tables) -> list[int]:
    """Return the rows of tensors of real numbers of which the dump has statistics alone, by sign."""
    is_known = index.label("kind") == RowKind.STATISTICS.value
    for name in ("zero_count", "positive_count", "negative_count"):
        is_known = is_known & ~np.isnan(index.statistic(name))
    return _of_real_numbers(index, is_known)


def _of_real_numbers(index: Tables, chosen: npt.NDArray[np.bool_]) -> list[int]:
    dtypes = index.label("dtype")
    are_real = {dtype: _has_histogram(dtype) for dtype in set(dtypes[chosen].tolist())}
    return [row for row in np.flatnonzero(chosen).tolist() if are_real[dtypes[row]]]


def _has_histogram(dtype: str) -> bool:
    try:
        return histogram.has_histogram(from_name(dtype))
    except (ValueError, TypeError):
        return False  # of a later version


def _histogram(index: Tables, row: int, bins: npt.NDArray[np.int64], where: str) -> Histogram | None:
    statistics = Statistics.from_row(index.statistics[row].tolist())
    try:
        return Histogram.of_rows(bins, statistics)
    except ValueError as exc:
        if not len(bins):
            return None  # it has elements, and they were not counted
        raise DamagedStore(f"{where}: {HISTOGRAM_TABLE.path} of row {row}: {exc}") from exc


def contents_of(index: Tables) -> list[tuple[object, ...]]:
    """Return for each row a key that is equal for two rows if their elements are equal."""
    digests = np.ascontiguousarray(index.digest).view(f"V{DIGEST_BYTES}").ravel().tolist()
    contents: list[tuple[object, ...]] = list(zip(digests, index.label("dtype").tolist(), strict=True))
    for row in np.flatnonzero(index.label("layout") == "device").tolist():
        contents[row] += (index.shape[row].tobytes(),)
    for row in np.flatnonzero(index.label("kind") == RowKind.STATISTICS.value).tolist():
        contents[row] += (row,)  # without elements, none are known to be equal
    return contents


BLOCK_TABLE = EntryTable("block_digests", ("digest",))


def distinct_payloads(rows: Iterable[int], index: Tables) -> list[int]:
    """Return the rows, except rows whose payload is equal to the payload of an earlier row."""
    return list({index.digest[row].tobytes(): row for row in sorted(rows, reverse=True)}.values())


def blocks_by_digest(entries: npt.NDArray[np.int64], index: Tables) -> dict[bytes, npt.NDArray[np.int64]]:
    """Return the digests of the blocks of each payload, (block,), by the digest of the whole."""
    return {
        index.digest[row].tobytes(): of_row[:, 0]
        for row, of_row in BLOCK_TABLE.own(entries).items()
        if 0 <= row < len(index.digest)
    }


#: Places of an inner chunk, and inner chunks of a shard.
_CHUNK, _CHUNKS_PER_SHARD = 16 * 1024, 64
#: The most places of a step, 384 MiB: whoever publishes it holds all of them.
MAX_PLACES: Final = 32 * 1024 * 1024
_FIELDS = len(marginals.FIELDS)
_AXIS_FIELDS = ("axis", "begin", "length")
Values: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class StepMarginals:
    """The marginals of several tensors."""

    entries: npt.NDArray[np.int64]
    """(entry, field): row, axis, begin, length; by row and axis."""
    values: Values
    """(field, place)."""

    @classmethod
    def none(cls) -> StepMarginals:
        """Return the marginals of no tensors."""
        return cls(np.zeros((0, 1 + len(_AXIS_FIELDS)), np.int64), np.zeros((_FIELDS, 0), np.float32))

    @classmethod
    def of_places(cls, rows: Sequence[int], of_places: Mapping[int, MarginalTable]) -> StepMarginals:
        """Return the marginals of several rows.

        Args:
            rows: rows of the index.
            of_places: by place in `rows`, the marginals of its axes.
        """
        entries, begin = [], 0
        ordered = sorted(of_places, key=lambda place: rows[place])
        for place in ordered:
            for axis, length in of_places[place].axes:
                entries.append((rows[place], axis, begin, length))
                begin += length
        if not entries:
            return cls.none()
        values = np.concatenate([of_places[place].values for place in ordered], axis=1)
        return cls(np.array(entries, np.int64), values).within_limit()

    @classmethod
    def joined(cls, parts: Iterable[StepMarginals]) -> StepMarginals:
        """Return the marginals of all parts, by row."""
        members = [part for part in parts if len(part.entries)]
        if not members:
            return cls.none()
        begins = np.cumsum([0, *(part.values.shape[1] for part in members)])[:-1]
        entries = np.concatenate([part.entries for part in members])
        entries[:, 2] += np.repeat(begins, [len(part.entries) for part in members])
        values = np.concatenate([part.values for part in members], axis=1)
        order = np.argsort(entries[:, 0], kind="stable")
        return cls(entries, values).of_entries(order).within_limit()

    def within_limit(self) -> StepMarginals:
        """Return the marginals of the first tensors that have at most `MAX_PLACES` together."""
        _, _, begin, length = self.entries.T
        beyond = self.entries[begin + length > MAX_PLACES, 0]
        return self.of_entries(np.flatnonzero(self.entries[:, 0] < beyond[0])) if len(beyond) else self

    def of_entries(self, chosen: npt.NDArray[np.int64]) -> StepMarginals:
        """Return some of the entries, in this order, without the places of others."""
        entries = self.entries[chosen]
        lengths = entries[:, 3]
        ends = np.cumsum(lengths)
        if not np.array_equal(entries[:, 2], ends - lengths):
            first = np.repeat(entries[:, 2] - (ends - lengths), lengths)
            places = first + np.arange(first.size)
            entries = np.column_stack([entries[:, :2], ends - lengths, lengths])
            return StepMarginals(entries, self.values[:, places])
        return StepMarginals(entries, self.values[:, : lengths.sum()])

    def without_copies(self, index: Tables) -> StepMarginals:
        """Return the marginals, except of tensors that are equal to a tensor of an earlier row."""
        kept = distinct_tensors(rows_of(self.entries), index)
        return self.of_entries(np.flatnonzero(is_of_rows(self.entries, kept)))

    def of_row(self, row: int) -> dict[int, Marginal]:
        """Return by axis the marginals that a row has itself."""
        own = self.entries[self.entries[:, 0] == row]
        return {int(axis): self._marginal(int(begin), int(length)) for _, axis, begin, length in own}

    def by_row(self, index: Tables) -> dict[int, dict[int, Marginal]]:
        """Return by row and axis the marginals of all tensors; rows without any are missing.

        Tensors of equal elements share the marginals of axes of equal length and stride, such as the last
        axis of a tensor and of its flattened copy.
        """
        contents = contents_of(index)
        of_content: dict[tuple[object, ...], dict[tuple[int, int], Marginal]] = {}
        for row, axis, begin, length in self.entries.tolist():
            if 0 <= row < len(contents) and axis < index.number("ndim")[row]:
                stride = _strides(index, row)[axis]
                of_content.setdefault(contents[row], {})[stride, length] = self._marginal(begin, length)
        made = {}
        for row, content in enumerate(contents):
            if content in of_content:
                lengths = index.shape[row, : index.number("ndim")[row]].tolist()
                known = of_content[content]
                shared = {
                    axis: known[stride, length]
                    for axis, (stride, length) in enumerate(zip(_strides(index, row), lengths, strict=True))
                    if (stride, length) in known
                }
                if shared:
                    made[row] = shared
        return made

    def _marginal(self, begin: int, length: int) -> Marginal:
        return Marginal(*self.values[:, begin : begin + length])


def _strides(index: Tables, row: int) -> list[int]:
    """Return how many elements of the payload are from one position to the next, by axis."""
    lengths = index.shape[row, : index.number("ndim")[row]].tolist()
    if index.number("fortran_order")[row]:
        return [math.prod(lengths[:axis]) for axis in range(len(lengths))]
    return [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]


def rows_with_marginals(index: Tables, scope: MarginalScope = MarginalScope.ALL) -> list[int]:
    """Return the rows of tensors that have marginals in a scope, unless they hold only zeros."""
    elements = index.statistic("count").tolist()
    counted = counted_rows(index)
    return [row for row in counted if scope.includes(elements[row]) and _has_marginals(index, row)]


def rows_without_marginals(index: Tables, scope: MarginalScope) -> list[int]:
    """Return the rows of tensors that would have marginals if they were in the scope."""
    if scope is MarginalScope.ALL:
        return []
    elements, zeros = index.statistic("count"), index.statistic("zero_count")
    return [
        row
        for row in rows_with_marginals(index)
        if not scope.includes(elements[row]) and zeros[row] < elements[row]
    ]


def _has_marginals(index: Tables, row: int) -> bool:
    element = from_name(str(index.label("dtype")[row]))
    lengths = tuple(index.shape[row, : index.number("ndim")[row]].tolist())
    if index.number("fortran_order")[row]:
        lengths = lengths[::-1]
    return marginals.has_marginals(element) and bool(marginals.kept_axes(lengths, element.itemsize))


@dataclass(frozen=True, slots=True)
class MarginalArrays:
    """The two arrays that hold the marginals of a step, of all tensors or of large ones."""

    scope: MarginalScope
    axes: EntryTable
    values: str
    """The path of the array of values in the generation."""

    @property
    def paths(self) -> tuple[str, str]:
        """The paths of both."""
        return self.axes.path, self.values

    def encode(self, made: StepMarginals) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
        """Return the metadata and the chunks, by path in the generation."""
        documents, chunks = TableFormat.encode(self.axes, made.entries)
        if not len(made.entries):
            return documents, {}
        places = made.values.shape[1]
        layout = self._layout(places)
        shard = layout.chunk[1]
        for number in range(ceil_div(places, shard)):
            part = made.values[:, number * shard : (number + 1) * shard]
            chunks[layout.key((0, number))] = layout.encode(part)
        return documents | {self.values: layout.document((_FIELDS, places))}, chunks

    def chunk_keys(self, nodes: Mapping[str, metadata.Document], where: str) -> list[str]:
        """Return the keys of all chunks in the generation, from the metadata of its nodes.

        Raises:
            DamagedStore: the metadata is damaged; `where` names the step.
        """
        if self.values not in nodes:
            return []
        places = self._places(nodes[self.values], where)
        return [self.axes.chunk, *self._layout(places).keys((_FIELDS, places)).values()]

    def decode(
        self,
        nodes: Mapping[str, metadata.Document],
        chunks: Mapping[str, bytes],
        where: str,
        checksums: Mapping[str, int] = NO_CHECKSUMS,
    ) -> StepMarginals:
        """Return the marginals of a step from its nodes and chunks, each by its path in the generation.

        Args:
            nodes: the metadata.
            chunks: those of `chunk_keys`.
            where: names the step.
            checksums: what the commit lists of the chunks.

        Raises:
            DamagedStore: something of them is missing or damaged, or not that of the commit.
        """
        if self.values not in nodes or self.axes.path not in nodes:
            return StepMarginals.none()
        entries = self.axes.decode(nodes, chunks, where)
        places = self._places(nodes[self.values], where)
        _, axis, begin, length = entries.T
        if (axis < 0).any() or (begin < 0).any() or (length < 1).any() or (begin > places - length).any():
            raise DamagedStore(f"{where}: {self.axes.path} has an impossible entry")
        layout, parts = self._layout(places), []
        for (_, number), key in layout.keys((_FIELDS, places)).items():
            if key not in chunks:
                raise DamagedStore(f"{where}: {key} is missing")
            whole = layout.decode(chunks[key], f"{where}: {key}")
            parts.append(whole[:, : places - number * layout.chunk[1]])
        refuse_foreign(chunks, checksums, where)
        return StepMarginals(entries, np.concatenate(parts, axis=1))

    def _layout(self, places: int) -> ArrayLayout:
        """Return how this many places are stored. It follows from their number alone: readers derive it."""
        inner = min(places, _CHUNK)
        shard = inner * min(ceil_div(places, inner), _CHUNKS_PER_SHARD)
        return ArrayLayout(
            self.values,
            "float32",
            ("field", "place"),
            (_FIELDS, shard),
            0.0,
            inner,
            1,
            {"fields": list(marginals.FIELDS)},
        )

    def _places(self, document: metadata.Document, where: str) -> int:
        """Return how many places there are, if the metadata is what this version writes."""
        shape = document.get("shape")
        places = shape[1] if isinstance(shape, list) and len(shape) == 2 else None
        if type(places) is not int or not 0 < places < untrusted.MAX_TABLE_NBYTES // (4 * _FIELDS):
            raise DamagedStore(f"{where}: {self.values} has an impossible shape")
        if document != self._layout(places).document((_FIELDS, places)):
            raise DamagedStore(f"{where}: {self.values} has other metadata than this version writes")
        return places


ALL_MARGINALS = MarginalArrays(MarginalScope.ALL, EntryTable("marginal_axes", _AXIS_FIELDS), "marginals")
LARGE_MARGINALS = MarginalArrays(
    MarginalScope.LARGE, EntryTable("large_marginal_axes", _AXIS_FIELDS), "large_marginals"
)
#: The arrays of each scope; `MarginalScope.NONE` has none.
MARGINALS_OF_SCOPE = {arrays.scope: arrays for arrays in (ALL_MARGINALS, LARGE_MARGINALS)}


def marginal_arrays_of(nodes: Container[str]) -> MarginalArrays | None:
    """Return the arrays that have the marginals of a generation; `ALL_MARGINALS` if it has both."""
    return next((arrays for arrays in MARGINALS_OF_SCOPE.values() if arrays.axes.path in nodes), None)


@dataclass(frozen=True, slots=True)
class SketchKind:
    """One kind of sketches: the arrays that hold it, and its name in messages."""

    name: str
    arrays: tuple[str, ...]
    """Their paths in the generation."""

    def chunk_keys(self, nodes: Mapping[str, metadata.Document], where: str) -> list[str]:
        """Return the keys of its chunks in the generation.

        Raises:
            DamagedStore: the metadata is damaged; `where` names the step.
        """
        if self in ARRAYS_OF_MARGINALS:
            return ARRAYS_OF_MARGINALS[self].chunk_keys(nodes, where)
        return [f"{array}/c/0/0" for array in self.arrays if array in nodes]


HISTOGRAMS = SketchKind("histogram", (HISTOGRAM_TABLE.path,))
BLOCK_DIGESTS = SketchKind("digests of its blocks", (BLOCK_TABLE.path,))
MARGINALS = SketchKind("marginals", ALL_MARGINALS.paths)
MARGINALS_OF_LARGE = SketchKind("marginals of large tensors", LARGE_MARGINALS.paths)
SKETCH_KINDS = (HISTOGRAMS, BLOCK_DIGESTS, MARGINALS, MARGINALS_OF_LARGE)
ARRAYS_OF_MARGINALS = {MARGINALS: ALL_MARGINALS, MARGINALS_OF_LARGE: LARGE_MARGINALS}
SKETCH_PATHS = frozenset(array for kind in SKETCH_KINDS for array in kind.arrays)


def marginals_in(nodes: Container[str]) -> MarginalScope | None:
    """Return the tensors that have marginals in a generation with these nodes; None if it has no sketches."""
    if not any(path in nodes for path in SKETCH_PATHS):
        return None
    arrays = marginal_arrays_of(nodes)
    return MarginalScope.NONE if arrays is None else arrays.scope


def has_all_sketches(nodes: Container[str]) -> bool:
    """Return whether it has all that `dump-ingest sketch` makes; by default, small tensors lack marginals."""
    return ALL_MARGINALS.axes.path in nodes


def sketch_chunk_keys(nodes: Mapping[str, metadata.Document]) -> list[str]:
    """Return the keys of the chunks of all sketches in a generation; none of those with damaged metadata."""
    keys: list[str] = []
    for kind in SKETCH_KINDS:
        try:
            keys += kind.chunk_keys(nodes, "")
        except DamagedStore:
            continue
    return keys


@dataclass(frozen=True, slots=True, eq=False)
class StepSketches:
    """The histograms and the marginals of a step as they are stored."""

    histograms: npt.NDArray[np.int64] = field(default_factory=HISTOGRAM_TABLE.empty)
    """Entries of `workers.store.sketches.TABLE`."""
    marginals: StepMarginals = field(default_factory=StepMarginals.none)
    scope: MarginalScope = MarginalScope.NONE
    """The tensors of which marginals were made."""
