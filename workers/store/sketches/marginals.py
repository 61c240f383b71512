"""The marginals of the tensors of a step: two arrays of its generation.

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
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import from_name
from workers.arrays.sketches import marginals
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.arrays.sketches.marginals import Marginal, MarginalTable
from workers.errors import DamagedStore
from workers.model import ceil_div
from workers.store import metadata, untrusted
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.sketches import histograms
from workers.store.sketches.entry_table import EntryTable, is_of_rows, rows_of
from workers.store.table_codec import NO_CHECKSUMS, refuse_foreign
from workers.store.tables import Tables

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
        kept = histograms.distinct(rows_of(self.entries), index)
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
        contents = histograms.contents_of(index)
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
        return Marginal.of_table(self.values[:, begin : begin + length])


def _strides(index: Tables, row: int) -> list[int]:
    """Return how many elements of the payload are from one position to the next, by axis."""
    lengths = index.shape[row, : index.number("ndim")[row]].tolist()
    if index.number("fortran_order")[row]:
        return [math.prod(lengths[:axis]) for axis in range(len(lengths))]
    return [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]


def rows_with_marginals(index: Tables, scope: MarginalScope = MarginalScope.ALL) -> list[int]:
    """Return the rows of tensors that have marginals in a scope, unless they hold only zeros."""
    elements = index.statistic("count").tolist()
    counted = histograms.counted_rows(index)
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
        documents, chunks = self.axes.encode(made.entries)
        if not documents:
            return self.axes.format.encode(made.entries)[0], {}
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
        entries = self.axes.decode(nodes[self.axes.path], chunks.get(self.axes.chunk), where)
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


ALL = MarginalArrays(MarginalScope.ALL, EntryTable("marginal_axes", _AXIS_FIELDS), "marginals")
LARGE = MarginalArrays(
    MarginalScope.LARGE, EntryTable("large_marginal_axes", _AXIS_FIELDS), "large_marginals"
)
#: The arrays of each scope; `MarginalScope.NONE` has none.
OF_SCOPE = {arrays.scope: arrays for arrays in (ALL, LARGE)}


def arrays_of(nodes: Container[str]) -> MarginalArrays | None:
    """Return the arrays that have the marginals of a generation with these nodes; `ALL` if it has both."""
    return next((arrays for arrays in OF_SCOPE.values() if arrays.axes.path in nodes), None)
