"""Entries by columns: the thousands of entries of a step are built and packed in a fifth of the time.

Entry by entry, each value costs a call. A column is a single list of numbers or of text. Most headers of a
step differ in their envelopes, if at all. So the rest is packed once, what derives from it is computed once,
and rows are put together when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Self, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.model import SourceFile
from workers.tasks.model import Entry

_LEAD, _TAIL, _RECORD = (TensorHeader._fields.index(name) for name in ("lead", "tail", "record"))


class Headers(Sequence[TensorHeader | None]):
    """The header of each row, None for a row without one. Headers have no record here: that is of the row."""

    __slots__ = ("_alike", "_envelopes", "_place", "_which")

    def __init__(
        self,
        alike: Sequence[TensorHeader | None],
        which: npt.NDArray[np.int32],
        envelopes: Sequence[tuple[bytes, bytes]],
        place: npt.NDArray[np.int32],
    ) -> None:
        """Hold headers; see `of`.

        Args:
            alike: without lead, tail and record.
            which: for each distinct header, shape (distinct,), which one of `alike` it is.
            envelopes: lead and tail of each distinct header.
            place: for each row, shape (rows,), which of the distinct headers it has.
        """
        self._alike, self._which, self._envelopes, self._place = alike, which, envelopes, place

    @classmethod
    def of(cls, rows: Sequence[TensorHeader | None]) -> Self:
        """Return the headers of rows; the same object if they are already held so."""
        if isinstance(rows, cls):
            return rows
        # By identity: files without an envelope of their own share one header.
        numbers = list(map(id, rows))
        distinct = dict(zip(numbers, rows, strict=True))
        places = {number: place for place, number in enumerate(distinct)}
        place = np.fromiter(map(places.__getitem__, numbers), np.int32, len(rows))
        return cls(*_compared(list(distinct.values())), place)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._alike, self._which, self._envelopes, self._place)

    def __len__(self) -> int:
        return len(self._place)

    def __iter__(self) -> Iterator[TensorHeader | None]:
        distinct = [
            alike and TensorHeader._make((*alike[:_LEAD], lead, tail, *alike[_TAIL + 1 :]))
            for alike, (lead, tail) in zip(self._of(self._alike, self._which), self._envelopes, strict=True)
        ]
        return iter(self._of(distinct, self._place))

    @overload
    def __getitem__(self, row: int) -> TensorHeader | None: ...
    @overload
    def __getitem__(self, row: slice) -> Headers: ...
    def __getitem__(self, row: int | slice) -> TensorHeader | Headers | None:
        if isinstance(row, slice):
            return Headers(self._alike, self._which, self._envelopes, self._place[row])
        place = self._place[row]
        alike: TensorHeader | None = self._alike[self._which[place]]
        lead, tail = self._envelopes[place]
        return alike and alike._replace(lead=lead, tail=tail)

    def column(self, derived: Callable[[TensorHeader | None], object]) -> npt.NDArray[Any]:
        """Return a value derived from the header of each row, without its lead, tail and record, (row,)."""
        values = np.empty(len(self._alike), object)
        values[:] = [derived(header) for header in self._alike]
        return values[self._which][self._place]

    @property
    def leads(self) -> npt.NDArray[Any]:
        """The lead of each row, as latin-1 text."""
        return self._texts(0)

    @property
    def tails(self) -> npt.NDArray[Any]:
        """The tail of each row, as latin-1 text."""
        return self._texts(1)

    def _texts(self, side: int) -> npt.NDArray[Any]:
        values = np.empty(len(self._envelopes), object)
        values[:] = [envelope[side].decode("latin-1") for envelope in self._envelopes]
        return values[self._place]

    @staticmethod
    def _of(
        headers: Sequence[TensorHeader | None], numbers: npt.NDArray[np.int32]
    ) -> list[TensorHeader | None]:
        return [headers[number] for number in numbers.tolist()]


def _compared(
    distinct: Sequence[TensorHeader | None],
) -> tuple[list[TensorHeader | None], npt.NDArray[np.int32], list[tuple[bytes, bytes]]]:
    """Return the headers without lead, tail and record; which of them each is; and lead and tail of each."""
    alike: dict[tuple[Any, ...] | None, int] = {}
    envelopes, which = [], []
    last: tuple[Any, ...] | None = ()
    number = 0
    for header in distinct:
        if header is None:
            rest = None
            envelopes.append((b"", b""))
        else:
            rest = (*header[:_LEAD], *header[_TAIL + 1 : _RECORD], "", *header[_RECORD + 1 :])
            envelopes.append((header.lead, header.tail))
        # Comparing two that are made of the same objects is quick, and hashing them is not.
        if rest != last:
            number, last = alike.setdefault(rest, len(alike)), rest
        which.append(number)
    made = [
        None if rest is None else TensorHeader._make((*rest[:_LEAD], b"", b"", *rest[_LEAD:]))
        for rest in alike
    ]
    return made, np.array(which, np.int32), envelopes


#: What workers are told of a file.
_SOURCE = ("path", "size", "mtime_ns", "writable")
_source = attrgetter(*_SOURCE)
_PAYLOAD = [
    *(f"source.{name}" for name in _SOURCE),
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
