"""Entries by columns: the thousands of entries of a step are built and packed in a fifth of the time.

Entry by entry, each value costs a call. A column is a single list of numbers or of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, TypeAlias, overload

from workers.dump.model import TensorName
from workers.model import SourceFile
from workers.tasks.headers import Headers
from workers.tasks.model import Entry

_source = attrgetter(*SourceFile.__match_args__)
_PAYLOAD = [
    *(f"source.{name}" for name in SourceFile.__match_args__),
    "kind",
    "header",
    "envelope_digest",
    "readable",
]
_REST = ["problem", "record", *(f"name.{name}" for name in TensorName._fields)]
_NO_NAME = TensorName()

#: A sequence for each field, all of the same length. Empty for no entries.
Columns: TypeAlias = list[Sequence[Any]]


class EntryColumns(Sequence[Entry]):
    """The entries of a step, held by columns. An entry is built when it is asked for."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Columns) -> None:
        """Hold columns in the order of `_PAYLOAD` and `_REST`."""
        self._columns = columns

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> EntryColumns:
        """Return entries by columns; the same object if they are already held so."""
        if isinstance(entries, cls):
            return entries
        if not entries:
            return cls([])
        _, _, names, _, _, problems, _, records = zip(*entries, strict=True)
        return cls([*payload_columns(entries), problems, records, *zip(*names, strict=True)])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._columns,)

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def __iter__(self) -> Iterator[Entry]:
        if not self._columns:
            return
        problems, records, *names = self._columns[len(_PAYLOAD) :]
        yield from _entries(self._columns, map(TensorName, *names), problems, records)

    @overload
    def __getitem__(self, row: int) -> Entry: ...
    @overload
    def __getitem__(self, row: slice) -> EntryColumns: ...
    def __getitem__(self, row: int | slice) -> Entry | EntryColumns:
        if isinstance(row, slice):
            return EntryColumns([column[row] for column in self._columns])
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        (entry,) = EntryColumns([(column[row],) for column in self._columns])
        return entry

    def column(self, field: str) -> Sequence[Any]:
        """Return one field of all entries: `kind`, `source.path`, `name.op_type`..."""
        return self._columns[_PLACES[field]] if self._columns else ()

    @property
    def headers(self) -> Headers:
        """The header of each entry."""
        return Headers.of(self.column("header"))


_PLACES = {field: place for place, field in enumerate([*_PAYLOAD, *_REST])}


def payload_columns(entries: Iterable[Entry]) -> Columns:
    """Return the columns that are needed to read the payloads of at least one entry."""
    sources, kinds, _, headers, digests, _, readable, _ = zip(*entries, strict=True)
    return [*zip(*map(_source, sources), strict=True), kinds, Headers.of(headers), digests, readable]


def payload_entries(columns: Columns) -> list[Entry]:
    """Return the entries that `payload_columns` was given, without names and problems."""
    return list(_entries(columns, repeat(_NO_NAME), repeat(""), repeat("")))


def _entries(
    columns: Columns, names: Iterable[TensorName], problems: Iterable[str], records: Iterable[str]
) -> Iterator[Entry]:
    *source, kinds, headers, digests, readable = columns[: len(_PAYLOAD)]
    return map(Entry, map(SourceFile, *source), kinds, names, headers, digests, problems, readable, records)
