"""Values that pass between the planner and the Dask tasks, frozen and picklable; and events of the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from workers.arrays.arrangements import StridedView
from workers.arrays.marginals import MarginalScope
from workers.dump.formats.header import TensorHeader
from workers.dump.model import ReportedStatistics, TensorName
from workers.events import Event
from workers.model import SourceFile, StepKey
from workers.rules.values import RuleSet
from workers.store.model import ArraySpec, CommitSummary, Origin, RowKind, StoreAddress
from workers.store.packed.pool import PooledArray

if TYPE_CHECKING:
    from workers.store.sketches import StepMarginals


def _lz4() -> Any:
    """Return the codec of what is packed. Its import is deferred: registering the plugin packs nothing."""
    from numcodecs import LZ4

    return LZ4()


class Envelope(NamedTuple):
    """All bytes of a file but the payload of its only tensor."""

    content: bytearray
    """The bytes before the payload, and those behind it."""
    lead_nbytes: int


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Envelopes by row of the index.

    Those of different files are alike, so they are compressed on their way to another process, all at once,
    and unpacked only where they are asked for: not by the process that passes them on.
    """

    rows: tuple[int, ...]
    lead_nbytes: tuple[int, ...]
    tail_nbytes: tuple[int, ...]
    packed: bytes
    """The envelopes, one after the other, compressed by LZ4; empty if all of them are."""

    @classmethod
    def of(cls, rows: Sequence[int], envelopes: Sequence[Envelope | None]) -> Self | None:
        """Return those rows that have an envelope, with it; None if no row has."""
        pairs = zip(rows, envelopes, strict=True)
        by_row = {row: envelope for row, envelope in pairs if envelope is not None}
        if not by_row:
            return None
        contents, leads = zip(*by_row.values(), strict=True)
        tails = tuple(len(content) - lead for content, lead in zip(contents, leads, strict=True))
        joined = b"".join(contents)
        return cls(tuple(by_row), leads, tails, bytes(_lz4().encode(joined)) if joined else b"")

    def texts(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield each row, with what stands before and behind its payload, as latin-1 text."""
        joined = memoryview(_lz4().decode(self.packed) if self.packed else b"")
        end = 0
        for row, lead_n, tail_n in zip(self.rows, self.lead_nbytes, self.tail_nbytes, strict=True):
            begin, middle = end, end + lead_n
            end = middle + tail_n
            yield row, (str(joined[begin:middle], "latin-1"), str(joined[middle:end], "latin-1"))


#: Incremented whenever the same source would become other rows or values; part of every fingerprint. Another
#: encoding of chunks does not count: steps that are stored stay as they are.
CONVERTER_VERSION = 2


class Entry(NamedTuple):
    """One row of the index of a step: a tensor, or a file that holds none."""

    source: SourceFile
    kind: RowKind
    name: TensorName
    header: TensorHeader | None = None
    envelope_digest: int | None = None
    """Digest of the envelope of the payload, if the header does not have it: conversion reads it then."""
    problem: str = ""
    readable: bool = True
    """Whether its bytes can be read. A file that cannot be read is named in the index, and nothing more."""
    record: str = ""
    """The content of an overflow record, as JSON text."""

    @property
    def array(self) -> str:
        """The packed array that holds the payload, relative to the generation; "" for none."""
        if self.kind is RowKind.STATISTICS:
            return ""
        header = None if self.kind is RowKind.PART else self.header
        return f"tensors/{header.element.array}" if header else "files"

    @property
    def offset(self) -> int:
        """The byte at which the payload begins in the file."""
        return self.header.offset if self.header else 0

    @property
    def nbytes(self) -> int:
        """Payload bytes in the file."""
        if self.kind is RowKind.STATISTICS:
            return 0
        return self.header.nbytes if self.header else self.source.size

    @property
    def read_nbytes(self) -> int:
        """Bytes of the file to read for this row: the payload, and the header before it."""
        if self.header is None:
            return self.nbytes
        lead_nbytes = len(self.header.lead) if self.envelope_digest is None else self.header.offset
        return self.nbytes + lead_nbytes

    @property
    def view(self) -> StridedView | None:
        """How its elements are picked from the file, if they are not a part of it of their own."""
        return self.header.view if self.header else None


def _no_entries() -> npt.NDArray[np.int64]:
    return np.zeros((0, 0), np.int64)


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one packed array that one task writes. It begins on a shard boundary."""

    array: ArraySpec
    first_shard: int
    rows: tuple[int, ...]
    """Rows of the index, in the order in which their payloads are packed."""
    pooled: bool = False
    """Whether it is packed into the pool of the step: into one array, or several if that would be too large.
    Then `array` says how, its shard is the most that an array holds, and `first_shard` means nothing."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The work of one Dask task: read these files once, write these whole shards."""

    key: StepKey
    number: int
    fingerprint: str
    root: str
    store: StoreAddress
    segments: tuple[Segment, ...]
    entries: dict[int, Entry]
    """By row, in the order of `rows`."""
    nbytes: int = 0
    keep_device_layout: bool = False
    without_tensors: bool = False
    sketches: bool = False
    """Whether histograms of tensors are computed, and digests of their blocks."""
    marginals: MarginalScope = MarginalScope.ALL
    """The tensors whose marginals are stored, too, if `sketches` is set."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of the index, segment by segment."""
        return tuple(row for segment in self.segments for row in segment.rows)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything that is needed to convert and commit one step: its content, and the share of each task."""

    key: StepKey
    fingerprint: str
    origin: Origin
    store: StoreAddress
    nbytes: int
    """Bytes of all source files."""
    entries: Sequence[Entry]
    """The rows of the index; in a worker by columns, see `workers.tasks.model`."""
    arrays: tuple[ArraySpec, ...]
    jobs: tuple[ShardJob, ...] = field(repr=False, default=())
    problems: tuple[str, ...] = ()
    """What is wrong with the step as a whole, besides the problems of its entries."""
    reported: Mapping[int, ReportedStatistics] = field(repr=False, default_factory=dict)
    """By row: the statistics that the dump itself reports."""
    poison: tuple[SourceFile, ...] = field(repr=False, default=())
    """Files that kill the process that reads them. They are quarantined."""
    rules: RuleSet | None = field(repr=False, default=None)
    """The rules to evaluate when the step is committed; None for none. Not part of the fingerprint."""
    replaces: str | None = None
    """The generation that was committed when this was planned, or "" for none: the new commit replaces that
    generation and no other. None: it replaces any."""
    without_tensors: str = ""
    """Why the payloads of its tensors are not stored; "" if they are."""
    sketches: bool = False
    """Whether histograms of its tensors are stored, and digests of their blocks. They are not part of the
    fingerprint: they add to a generation."""
    marginals: MarginalScope = MarginalScope.ALL
    """The tensors whose marginals are stored, too, if `sketches` is set."""

    def with_sketches(self, marginals: MarginalScope = MarginalScope.ALL) -> StepPlan:
        """Return the plan that also stores sketches, with marginals of these tensors."""
        jobs = tuple(replace(job, sketches=True, marginals=marginals) for job in self.jobs)
        return replace(self, sketches=True, marginals=marginals, jobs=jobs)


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Rows whose payloads are in one array of the pool."""

    path: str
    """Of the array, relative to the root of the store."""
    array: PooledArray
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a finished `ShardJob` reports. Columns are aligned with `rows`."""

    number: int
    rows: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    """First element in the packed array, shape (n,); -1 if nothing could be read."""
    digests: npt.NDArray[np.uint8]
    """Shape (n, 16)."""
    statistics: npt.NDArray[np.float64]
    """Shape (n, len(statistics.FIELDS)); rows that are not tensors are NaN."""
    nbytes: npt.NDArray[np.int64]
    """Payload bytes as stored, shape (n,): less than in the file if padding of a device was removed."""
    in_device_layout: npt.NDArray[np.bool_]
    """Whether the stored payload is still in device layout, shape (n,)."""
    ends: dict[str, int]
    """For each packed array, the element after the last one that was written."""
    stored: dict[str, int]
    """For each written shard (key relative to the generation), its size in bytes."""
    bytes_read: int
    duplicates: int
    """Tensors of which the job had already stored one with the same type and digest."""
    duplicate_bytes: int
    seconds: float
    histograms: npt.NDArray[np.int64] = field(default_factory=_no_entries)
    """Entries of `workers.store.sketches.TABLE`, for the tensors that are not duplicates."""
    block_digests: npt.NDArray[np.int64] = field(default_factory=_no_entries)
    """Entries of `workers.store.sketches.TABLE`, for the large tensors among these."""
    marginals: StepMarginals | None = None
    """The marginals of the same tensors; None if none were requested."""
    envelopes: Envelopes | None = None
    """Those of which the plan has only the digest; None if there are none."""
    pooled: tuple[PooledRows, ...] = ()
    """What was packed into the pool; `stored` and `ends` do not have it."""


@dataclass(frozen=True, slots=True)
class ConvertStarted(Event):
    """A worker began to convert a job."""

    job: ShardJob


@dataclass(frozen=True, slots=True)
class Converted(Event):
    """A worker wrote all shards of a job."""

    job: ShardJob
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class ConvertFailed(Event):
    """A worker gave up on a job."""

    job: ShardJob
    error: BaseException


@dataclass(frozen=True, slots=True)
class Published(Event):
    """A worker committed a step."""

    summary: CommitSummary
    seconds: float


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

    def texts(self, side: int) -> npt.NDArray[Any]:
        """Return the lead (0) or the tail (1) of each row, as latin-1 text."""
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
