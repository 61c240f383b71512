"""Tables of a generation whose rows are entries of the rows of the index: none, one, or many for each.

A table is one chunk, (entry, field) int64, whose first field is the row of the index. A table
without entries does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.store import metadata
from workers.store.table_codec import NO_CHECKSUMS, TableFormat

ROW = "row"


@dataclass(frozen=True, slots=True)
class EntryTable:
    """The format of one table."""

    path: str
    """Of the array in the generation."""
    own_fields: tuple[str, ...]
    """Its fields besides the row."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields, in order."""
        return (ROW, *self.own_fields)

    @property
    def format(self) -> TableFormat:
        """How it is stored."""
        return TableFormat(self.path, "int64", ("entry", "field"), self.fields)

    @property
    def chunk(self) -> str:
        """The key of the chunk in the generation."""
        return self.format.chunk

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

    def encode(self, entries: npt.NDArray[np.int64]) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
        """Return the metadata and the chunk, by path in the generation; none for no entries."""
        return self.format.encode(entries) if len(entries) else ({}, {})

    def decode(
        self,
        document: metadata.Document,
        chunk: bytes | None,
        where: str,
        checksums: Mapping[str, int] = NO_CHECKSUMS,
    ) -> npt.NDArray[np.int64]:
        """Return the entries, (entry, len(fields)).

        Args:
            document: the metadata.
            chunk: the chunk; None if it does not exist.
            where: names the step.
            checksums: what the commit lists of the chunks of the step.

        Raises:
            DamagedStore: the table is missing or damaged, or not that of the commit.
        """
        chunks = {} if chunk is None else {self.chunk: chunk}
        decoded = self.format.decode({self.path: document}, chunks, where, checksums)
        return np.array(decoded)

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
