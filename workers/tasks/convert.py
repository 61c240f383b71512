"""`convert`: the Dask task that turns dump files into shards.

Idempotent: the same job writes the same bytes under the same keys. It is given paths and returns a small
receipt, so no tensor ever travels between processes.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from workers import events
from workers.arrays import device_format
from workers.arrays.digest import DIGEST_BYTES, digest, new_digest
from workers.dump.source import DISK_ERRORS, OpenFile, envelope_digest
from workers.errors import UnreadableFile
from workers.model import MIB, SourceFile, grouped
from workers.store import metadata
from workers.store.backends.failures import supervised
from workers.store.model import RowKind
from workers.store.objects import Gathered, NewObject, ObjectStore, Uploads
from workers.store.opening import open_objects
from workers.store.packed.pool_packer import PackedInPool, PoolPacker
from workers.store.packed.shards import Packer, ShardCounter, ShardPacker
from workers.tasks.entry_statistics import (
    EntryStatistics,
    Summaries,
    Summary,
    elements_in,
    meaning,
    small_dtype,
    to_convert,
)
from workers.tasks.model import (
    Converted,
    ConvertFailed,
    ConvertStarted,
    Entry,
    Envelope,
    Envelopes,
    PooledRows,
    Receipt,
    Segment,
    ShardJob,
)

#: Bytes that are read, digested, summarised and encoded while they are in the L2 cache. Most files are a
#: single part of this size. A multiple of the blocks of `workers.arrays.statistics`, so that the bits of sums
#: do not depend on it.
PART_NBYTES: Final = MIB


#: Payloads of up to this many bytes are read in one call, one behind the other, and wait to be summarised and
#: packed together.
_SMALL_NBYTES = 64 * 1024
#: How many bytes wait at most.
_WAITING_NBYTES = 4 * _SMALL_NBYTES


class PayloadBuffer:
    """Memory that payloads are read into: each in the place of the one before it."""

    def __init__(self, nbytes: int) -> None:
        self._memory = memoryview(bytearray(nbytes))

    def __len__(self) -> int:
        return len(self._memory)

    def hold(self, entry: Entry, nbytes: int, file: OpenFile) -> tuple[bytes, list[memoryview]]:
        """Read a payload of `nbytes` that fits; return its digest, and its parts, one after the other."""
        offset, lead = (entry.header.offset, entry.header.lead) if entry.header else (0, b"")
        running, parts = new_digest(), []
        for at in range(0, max(nbytes, 1), PART_NBYTES):
            part = self._memory[at : min(at + PART_NBYTES, nbytes)]
            file.first_piece(part, offset + at, len(part), b"" if at else lead)
            running.update(part)
            parts.append(part)
        return running.digest(), parts

    def pieces(self, entry: Entry, file: OpenFile) -> Iterator[memoryview]:
        """Yield a payload of any size in parts, each valid until the next."""
        header = entry.header
        lead = header.lead if header and header.view is None else b""
        return file.pieces(self._memory[:PART_NBYTES], entry.offset, entry.nbytes, lead)

    def ranges(self, entry: Entry, file: OpenFile, ranges: Iterable[tuple[int, int]]) -> memoryview:
        """Return ranges of a payload, (offset, nbytes), one after the other."""
        at = 0
        for offset, nbytes in ranges:
            file.first_piece(self._memory[at : at + nbytes], entry.offset + offset, nbytes)
            at += nbytes
        return self._memory[:at]


_AnyPacker: TypeAlias = Packer | PoolPacker
#: A payload of up to this many bytes is held in memory until it is known whether it is a copy.
PIECE_BYTES = 16 * MIB


def convert(job: ShardJob, run: Callable[[ShardJob], Receipt] | None = None) -> Receipt:
    """Read the files of a job once, write whole shards, and report digests, statistics and places.

    Payloads of equal type and digest are stored once. Memory: `PIECE_BYTES` and three inner chunks (about 20
    MiB with the default grid), regardless of the size of the tensors; twice the size of a tensor in device
    layout of up to `MAX_CONVERTED_BYTES`; and, if the store is not a directory, one encoded shard, twice, and
    what `Uploads` holds.

    Args:
        job: what to convert.
        run: what converts it; default: `convert_here`.

    Raises:
        SourceChanged: a file is not what the plan saw. Nothing refers to what was written so far.
        UnreadableFile: a file cannot be read from the disk.
        AccessDenied: a file may not be read.
        StoreError: the store refused.
    """
    events.emit(ConvertStarted(job))
    try:
        receipt = (run or convert_here)(job)
    except BaseException as exc:
        events.emit(ConvertFailed(job, exc))
        raise
    events.emit(Converted(job, receipt))
    return receipt


def convert_here(job: ShardJob, begin: Callable[[int], None] | None = None) -> Receipt:
    """Convert a job without emitting events. `begin` is called with each row before its file is read."""
    started = time.perf_counter()
    objects = open_objects(job.store)
    if objects.is_local:
        work = _Conversion(job, objects.create, begin, objects)
        supervised(work.run)  # each chunk is a write, and handing it over takes longer
    else:
        with Uploads(objects) as uploads:
            work = _Conversion(job, uploads.create, begin, objects)
            work.run()
    return work.receipt(time.perf_counter() - started)


def dry_run(job: ShardJob, begin: Callable[[int], None] | None = None) -> Receipt:
    """Read and convert the files of a job as `convert_here` does, but write nothing.

    Returns the same receipt. Memory: as much as `convert_here`, and one encoded shard.
    """
    started = time.perf_counter()
    work = _Conversion(job, lambda _key: Gathered(lambda _data: None), begin)
    work.run()
    return work.receipt(time.perf_counter() - started)


class _OfHeader(NamedTuple):
    meaning: object
    small_dtype: np.dtype[Any] | None
    itemsize: int
    is_small: bool
    """Whether the payload is read by `_Conversion._read_small`."""
    offset: int
    lead: bytes


class _Conversion:
    def __init__(
        self,
        job: ShardJob,
        create: Callable[[str], NewObject],
        begin: Callable[[int], None] | None = None,
        objects: ObjectStore | None = None,
    ) -> None:
        self._job = job
        self._create = create
        self._begin = begin
        self._objects = objects
        # All by the place of an entry in the job. Lists, because they are set value by value, for which
        # arrays take longer.
        self._place = {row: place for place, row in enumerate(job.entries)}
        self._nbytes = [entry.nbytes for entry in job.entries.values()]
        self._buffer = PayloadBuffer(min(PIECE_BYTES, max(*self._nbytes, 1)))
        self._small = memoryview(bytearray(_WAITING_NBYTES))
        self._waiting, self._waiting_start, self._waiting_dtype = 0, 0, np.dtype(np.uint8)
        """How many bytes of `_small` wait, for which place in the packed array, and of which type."""
        self._waiting_sizes: dict[int, int] = {}
        """By place, how many elements."""
        n = len(job.entries)
        self._offsets = [-1] * n
        self._digests = [bytes(DIGEST_BYTES)] * n
        self._summaries = Summaries(n, sketches=job.sketches)
        self._of_headers: dict[tuple[int, RowKind], _OfHeader] = {}
        self._in_device_layout = [False] * n
        self._arrays = [-1] * n
        self._pooled: list[PackedInPool] = []
        self._envelopes: list[Envelope | None] = [None] * n
        self._ends: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        self._bytes_read = self._duplicates = self._duplicate_bytes = 0

    def run(self) -> None:
        for segment in self._job.segments:
            self._run(segment)

    def _run(self, segment: Segment) -> None:
        if segment.pooled:
            self._run_pooled(segment)
            return
        spec = segment.array
        prefix = f"{self._job.key.path}/{self._job.fingerprint}"
        if self._job.without_tensors and metadata.is_of_tensors(spec.path):
            packer: Packer = ShardCounter(spec, segment.first_shard)
        else:
            packer = ShardPacker(
                spec, segment.first_shard, lambda shard: self._create(f"{prefix}/{spec.path}/c/{shard}")
            )
        with packer:
            self._convert_rows(segment, packer)
            self._ends[spec.path] = packer.position
        self._stored |= {f"{spec.path}/c/{shard}": nbytes for shard, nbytes in packer.stored.items()}

    def _run_pooled(self, segment: Segment) -> None:
        assert self._objects is not None  # noqa: S101 (for mypy: a dry run has no such segments)
        with PoolPacker(segment.array, self._job.key, self._objects) as packer:
            self._convert_rows(segment, packer)
        first = len(self._pooled)
        self._pooled += packer.arrays
        for row in segment.rows:
            self._arrays[self._place[row]] += first

    def _convert_rows(self, segment: Segment, packer: _AnyPacker) -> None:
        # By meaning: equal bytes of different types, which share an array, have different statistics.
        seen: dict[object, dict[bytes, int]] = defaultdict(dict)
        rows = [(self._place[row], row, self._job.entries[row]) for row in segment.rows]
        sizes = Counter(self._nbytes[place] for place, _, _ in rows)
        bases: dict[tuple[str, int], int] = {}
        has_views = any(entry.view is not None for _, _, entry in rows)
        if has_views:
            # Views come last: then it is known where the payloads are that they are a part of.
            rows.sort(key=lambda row: row[2].view is not None)
        for place, row, entry in rows:
            nbytes = self._nbytes[place]
            self._bytes_read += nbytes
            if self._begin is not None:
                self._begin(row)
            if isinstance(packer, PoolPacker):
                if packer.room < self._waiting + nbytes:
                    self._settle(packer)
                    packer.make_room(nbytes)
                self._arrays[place] = packer.number
            # It shares its header with thousands of others.
            known = self._of_headers.get((id(entry.header), entry.kind)) or self._of_header(entry)
            if not (known.is_small and self._convert_small(place, entry, known, packer, seen)):
                self._settle(packer)
                with self._opened(entry.source) as file:
                    if entry.view is not None:
                        base = bases.get((entry.source.path, entry.view.base), -1)
                        self._convert_view(place, entry, file, packer, seen, base=base)
                    elif to_convert(entry):
                        self._convert_from_device(place, entry, file, packer, seen)
                    else:
                        is_unique = sizes[nbytes] == 1
                        self._convert(place, entry, file, packer, seen[known.meaning], is_unique=is_unique)
                    file.check_unchanged()
            if has_views and entry.view is None and not to_convert(entry):
                bases[entry.source.path, entry.offset] = self._offsets[place]
        self._settle(packer)

    @contextmanager
    def _opened(self, source: SourceFile) -> Iterator[OpenFile]:
        where = str(self._job.key)
        try:
            with OpenFile(self._job.root, source, where) as file:
                yield file
        except OSError as exc:
            if exc.errno not in DISK_ERRORS:
                raise
            raise UnreadableFile(
                f"{where}: {source.path} cannot be read: {exc.strerror}", path=source.path
            ) from exc

    def _of_header(self, entry: Entry) -> _OfHeader:
        header, dtype = entry.header, small_dtype(entry)
        # Where each file is suspected to kill the process, nothing is put off.
        is_small = header is not None and header.nbytes <= _SMALL_NBYTES and self._begin is None
        is_plain = header is not None and header.device is None and header.view is None
        itemsize, lead = dtype.itemsize if dtype is not None else 1, header.lead if header else b""
        known = _OfHeader(meaning(entry), dtype, itemsize, is_small and is_plain, entry.offset, lead)
        self._of_headers[id(header), entry.kind] = known
        return known

    def _convert_small(
        self,
        place: int,
        entry: Entry,
        known: _OfHeader,
        packer: _AnyPacker,
        seen: dict[object, dict[bytes, int]],
    ) -> bool:
        """Convert a small payload; return False, and do nothing, if it could not be read at once.

        Many that have a `small_dtype` are summarised and packed together.
        """
        nbytes = self._nbytes[place]
        if self._waiting + nbytes > len(self._small) or known.small_dtype is not self._waiting_dtype:
            self._settle(packer)
        part = self._small[self._waiting : self._waiting + nbytes]
        if not self._read_small(place, entry, known, part):
            return False
        content, same_meaning, summary = digest(part), seen[known.meaning], None
        if not self._waiting:
            self._waiting_start = packer.position
        start = self._waiting_start + self._waiting // known.itemsize
        if content not in same_meaning:
            if known.small_dtype is not None:
                self._waiting_dtype = known.small_dtype
                self._waiting_sizes[place] = nbytes // known.itemsize
                self._waiting += nbytes
            else:
                entry_statistics = self._statistics_of(entry)
                if nbytes:
                    entry_statistics.add(part)
                    packer.append(part)
                summary = entry_statistics.summary()
        self._record(place, entry, content, same_meaning, start=start, summary=summary)
        return True

    def _read_small(self, place: int, entry: Entry, known: _OfHeader, part: memoryview) -> bool:
        """Read a payload and its envelope; return False if they cannot be read at once, or have changed."""
        root, source = self._job.root, entry.source
        if entry.envelope_digest is None:
            lead_n = len(known.lead)
            lead = bytearray(lead_n)
            is_read = OpenFile.read_at_once(
                root, source, (lead, part), known.offset - lead_n, lead_n + len(part)
            )
            return is_read and lead == known.lead
        envelope = bytearray(source.size - len(part))
        view = memoryview(envelope)
        buffers = view[: known.offset], part, view[known.offset :]
        is_read = OpenFile.read_at_once(root, source, buffers, 0, source.size)
        self._envelopes[place] = Envelope(envelope, known.offset)
        return is_read and envelope_digest(envelope) == entry.envelope_digest

    def _settle(self, packer: _AnyPacker) -> None:
        if self._waiting_sizes:
            waiting = self._small[: self._waiting]
            places, sizes = list(self._waiting_sizes), list(self._waiting_sizes.values())
            self._summaries.keep_many(places, np.frombuffer(waiting, self._waiting_dtype), sizes)
            packer.append(waiting)
            self._waiting, self._waiting_sizes = 0, {}

    def _convert(
        self,
        place: int,
        entry: Entry,
        file: OpenFile,
        packer: _AnyPacker,
        seen: dict[bytes, int],
        *,
        is_unique: bool,
    ) -> None:
        """Convert an entry as it lies in the file.

        Args:
            place: of the entry in the job.
            entry: the entry.
            file: its file.
            packer: takes the payload if it is not a copy.
            seen: by digest, the places of payloads of the same meaning that were converted before.
            is_unique: whether no other payload has its size, so that it cannot be a copy.
        """
        start = packer.position
        nbytes = self._nbytes[place]
        if nbytes <= len(self._buffer) and (nbytes <= PART_NBYTES or not is_unique):
            content, summary = self._convert_held(place, entry, file, packer, seen)
        else:
            content, summary = self._convert_in_pieces(entry, file, packer, seen, is_unique=is_unique)
        if entry.envelope_digest is not None:
            envelope = file.envelope(entry.offset, entry.nbytes, entry.envelope_digest)
            self._envelopes[place] = Envelope(envelope, entry.offset)
        self._in_device_layout[place] = entry.header is not None and entry.header.device is not None
        self._record(place, entry, content, seen, start=start, summary=summary)

    def _convert_held(
        self, place: int, entry: Entry, file: OpenFile, packer: _AnyPacker, seen: dict[bytes, int]
    ) -> tuple[bytes, Summary | None]:
        """Convert a payload that fits into memory; return its digest, and statistics unless it is a copy."""
        content, parts = self._buffer.hold(entry, self._nbytes[place], file)
        if content in seen:
            return content, None
        entry_statistics = self._statistics_of(entry)
        for number, part in enumerate(parts, 1):
            if len(part):
                entry_statistics.add(part)
                if number == len(parts):
                    entry_statistics.settle()
                packer.append(part)
        entry_statistics.update_slabs(lambda ranges: self._buffer.ranges(entry, file, ranges))
        return content, entry_statistics.summary()

    def _convert_in_pieces(
        self, entry: Entry, file: OpenFile, packer: _AnyPacker, seen: dict[bytes, int], *, is_unique: bool
    ) -> tuple[bytes, Summary | None]:
        """Convert a payload of several pieces; return its digest, and its statistics unless it is a copy."""
        entry_statistics = self._statistics_of(entry)
        running = new_digest()
        for piece in self._buffer.pieces(entry, file):
            running.update(piece)
            if is_unique:
                entry_statistics.add(piece)
                packer.append(piece)
        content = running.digest()
        if content in seen:
            return content, None
        # A payload that may be a copy is read twice: only the digest of the whole tells.
        for piece in self._buffer.pieces(entry, file) if not is_unique else ():
            entry_statistics.add(piece)
            packer.append(piece)
        entry_statistics.update_slabs(lambda ranges: self._buffer.ranges(entry, file, ranges))
        return content, entry_statistics.summary()

    def _convert_from_device(
        self,
        place: int,
        entry: Entry,
        file: OpenFile,
        packer: _AnyPacker,
        seen: dict[object, dict[bytes, int]],
    ) -> None:
        header = entry.header
        assert header is not None and header.device is not None  # noqa: S101, PT018 (for mypy)
        payload = np.empty(entry.nbytes, np.uint8)
        at = 0
        for piece in self._buffer.pieces(entry, file):
            payload[at : at + len(piece)] = piece
            at += len(piece)
        host = device_format.to_host(payload, header.device, header.shape, header.element)
        reversible = device_format.padding_is_zero(payload, host)
        stored = payload if self._job.keep_device_layout or not reversible else host
        stored_bytes = stored.reshape(-1).view(np.uint8).data
        content = digest(stored_bytes)
        self._in_device_layout[place] = stored is payload
        self._nbytes[place] = stored.nbytes
        same_meaning = seen[meaning(entry) if stored is payload else header.element.name]
        entry_statistics = self._statistics_of(entry)
        start = packer.position
        if content not in same_meaning:
            entry_statistics.update_host(host)
            entry_statistics.update_stored(stored_bytes)
            packer.append(stored_bytes)
        self._record(place, entry, content, same_meaning, start=start, summary=entry_statistics.summary())

    def _convert_view(
        self,
        place: int,
        entry: Entry,
        file: OpenFile,
        packer: _AnyPacker,
        seen: dict[object, dict[bytes, int]],
        *,
        base: int,
    ) -> None:
        """Convert a tensor whose elements are selected from other tensors; see `StridedView`.

        If they lie one after the other in a payload of this segment, which is stored from element `base` on,
        they are not stored again. It is -1 if there is none.
        """
        header, view = entry.header, entry.view
        assert header is not None and view is not None  # noqa: S101, PT018 (for mypy)
        entry_statistics = self._statistics_of(entry)
        if base >= 0:
            running = new_digest()
            for piece in self._buffer.pieces(entry, file):
                running.update(piece)
                entry_statistics.update(piece)
            self._digests[place] = running.digest()
            self._offsets[place] = base + (header.offset - view.base) // header.element.itemsize
            self._summaries.keep(place, entry_statistics.summary())
            self._duplicates += 1
            self._duplicate_bytes += entry.nbytes
            return
        elements = elements_in(file, header.offset, view, header.shape, header.element)
        content = digest(elements)
        same_meaning = seen[header.element.name]
        start = packer.position
        if content not in same_meaning:
            entry_statistics.add(elements)
            packer.append(elements)
        self._record(place, entry, content, same_meaning, start=start, summary=entry_statistics.summary())

    def _statistics_of(self, entry: Entry) -> EntryStatistics:
        job = self._job
        return EntryStatistics(entry, len(self._buffer), sketches=job.sketches, marginals=job.marginals)

    def _record(
        self,
        place: int,
        entry: Entry,
        content: bytes,
        seen: dict[bytes, int],
        *,
        start: int,
        summary: Summary | None,
    ) -> None:
        """Record the result of an entry, whose digest is `content`; a copy has that of the original."""
        self._digests[place] = content
        if content in seen:
            twin = seen[content]
            self._offsets[place] = self._offsets[twin]
            self._arrays[place] = self._arrays[twin]
            self._summaries.share(place, twin)
            if entry.header is not None:
                self._duplicates += 1
                self._duplicate_bytes += entry.nbytes
        else:
            seen[content] = place
            self._offsets[place] = start
            if summary is not None:
                self._summaries.keep(place, summary)

    def receipt(self, seconds: float) -> Receipt:
        return Receipt(
            number=self._job.number,
            rows=np.fromiter(self._job.entries, np.int64, len(self._job.entries)),
            offsets=np.array(self._offsets, np.int64),
            digests=np.frombuffer(b"".join(self._digests), np.uint8).reshape(-1, DIGEST_BYTES),
            **self._summaries.columns(list(self._job.entries)),
            nbytes=np.array(self._nbytes, np.int64),
            in_device_layout=np.array(self._in_device_layout, np.bool_),
            ends=self._ends,
            stored=self._stored,
            bytes_read=self._bytes_read,
            duplicates=self._duplicates,
            duplicate_bytes=self._duplicate_bytes,
            seconds=seconds,
            envelopes=Envelopes.of(list(self._job.entries), self._envelopes),
            pooled=tuple(self._rows_in_pool()),
        )

    def _rows_in_pool(self) -> Iterator[PooledRows]:
        rows = grouped((self._arrays[place], row) for row, place in self._place.items())
        for number, packed in enumerate(self._pooled):
            yield PooledRows(packed.path, packed.array, tuple(rows[number]))
