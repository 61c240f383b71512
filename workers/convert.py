"""`convert`: what a Dask worker runs to turn dump files into shards.

Idempotent: the same job writes the same bytes under the same keys. Paths come in, a small receipt goes out;
no tensor ever travels between processes.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from pathlib import Path

import numpy as np

from workers import events, statistics
from workers.digest import new_digest
from workers.errors import UnreadableFile
from workers.model import MIB, Entry, Receipt, Segment, ShardJob
from workers.source import OpenFile
from workers.statistics import RunningStatistics, has_statistics
from workers.store import tables
from workers.store.objects import ObjectStore, open_objects
from workers.store.shards import ShardPacker

#: Files are read in pieces of this many bytes; most are one piece.
PIECE_BYTES = 16 * MIB


def convert(job: ShardJob) -> Receipt:
    """Read the files of a job once; write whole shards; report digests, statistics and places.

    Payloads of equal type and digest are stored once. Memory: one piece, one inner chunk and one encoded
    shard (about 150 MiB with the default grid), whatever the size of the tensors.

    Raises:
        SourceChanged: a file is not what the plan saw. Nothing refers to what was written so far.
        UnreadableFile: the disk does not give a file.
        AccessDenied: a file may not be read.
        StoreError: the store refused.
    """
    started = time.perf_counter()
    events.emit(events.ConvertStarted(job))
    try:
        work = _Conversion(job, open_objects(job.store))
        for segment in job.segments:
            work.run(segment)
    except BaseException as exc:
        events.emit(events.ConvertFailed(job, exc))
        raise
    receipt = work.receipt(time.perf_counter() - started)
    events.emit(events.Converted(job, receipt))
    return receipt


class _Conversion:
    """One run of one job: what has been found so far."""

    def __init__(self, job: ShardJob, objects: ObjectStore) -> None:
        self._job = job
        self._objects = objects
        largest = max(entry.nbytes for entry in job.entries.values())
        self._buffer = memoryview(bytearray(min(PIECE_BYTES, max(largest, 1))))
        self._place = {row: place for place, row in enumerate(job.entries)}
        n = len(job.entries)
        self._offsets = np.full(n, -1, np.int64)
        self._digests = tables.empty_digests(n)
        self._statistics = tables.empty_statistics(n)
        self._ends: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        self._bytes_read = self._duplicates = self._duplicate_bytes = 0

    def run(self, segment: Segment) -> None:
        """Fill one segment."""
        spec = segment.array
        prefix = f"{self._job.key.path}/{self._job.fingerprint}"

        def emit(shard: int, data: bytes | bytearray) -> None:
            key = f"{spec.path}/c/{shard}"
            self._objects.put(f"{prefix}/{key}", data)
            self._stored[key] = len(data)

        packer = ShardPacker(spec, segment.first_shard, emit)
        # By type: equal bytes of other types, which share the array `bytes`, have other statistics.
        seen: dict[str, dict[bytes, int]] = {}
        sizes = Counter(self._job.entries[row].nbytes for row in segment.rows)
        root, where = Path(self._job.root), str(self._job.key)
        for row in segment.rows:
            entry = self._job.entries[row]
            try:
                with OpenFile(root, entry.source, where) as file:
                    alike = seen.setdefault(entry.header.element.name if entry.header else "", {})
                    self._take(row, entry, file, packer, alike, unique=sizes[entry.nbytes] == 1)
                    file.check_unchanged()
            except OSError as exc:
                if exc.errno != errno.EIO:
                    raise
                message = f"{where}: {entry.source.path} cannot be read: {exc.strerror}"
                raise UnreadableFile(message, path=entry.source.path) from exc
        self._ends[spec.path] = packer.position
        packer.close()

    def _take(
        self,
        row: int,
        entry: Entry,
        file: OpenFile,
        packer: ShardPacker,
        seen: dict[bytes, int],
        *,
        unique: bool,
    ) -> None:
        header = entry.header.raw if entry.header else b""
        summary = _Summary(entry)
        running = new_digest()
        start = packer.position
        in_one_piece = entry.nbytes <= len(self._buffer)
        # A tensor of many pieces that may be a copy is read twice: only the digest of the whole tells.
        digest_first = not in_one_piece and not unique
        for piece in file.pieces(self._buffer, header):
            running.update(piece)
            if digest_first or (in_one_piece and running.digest() in seen):
                continue
            summary.update(piece)
            packer.append(piece)
        digest = running.digest()
        if digest_first and digest not in seen:
            for piece in file.pieces(self._buffer, header):
                summary.update(piece)
                packer.append(piece)
        self._bytes_read += entry.source.size
        place = self._place[row]
        self._digests[place] = np.frombuffer(digest, np.uint8)
        if digest in seen:
            twin = seen[digest]
            self._offsets[place] = self._offsets[twin]
            self._statistics[place] = self._statistics[twin]
            if entry.header is not None:
                self._duplicates += 1
                self._duplicate_bytes += entry.nbytes
        else:
            seen[digest] = place
            self._offsets[place] = start
            self._statistics[place] = summary.row()

    def receipt(self, seconds: float) -> Receipt:
        """Return the report of everything that was run."""
        return Receipt(
            number=self._job.number,
            rows=np.fromiter(self._job.entries, np.int64, len(self._job.entries)),
            offsets=self._offsets,
            digests=self._digests,
            statistics=self._statistics,
            ends=self._ends,
            stored=self._stored,
            bytes_read=self._bytes_read,
            duplicates=self._duplicates,
            duplicate_bytes=self._duplicate_bytes,
            seconds=seconds,
        )


class _Summary:
    """The running statistics of an entry, where it is a tensor of numbers."""

    def __init__(self, entry: Entry) -> None:
        self._dtype = entry.header.element.to_numpy() if entry.header else None
        countable = self._dtype is not None and has_statistics(self._dtype)
        self._running = RunningStatistics() if countable else None

    def update(self, piece: memoryview) -> None:
        if self._running is not None:
            self._running.update(np.frombuffer(piece, self._dtype))

    def row(self) -> tuple[float, ...]:
        return (self._running.result() if self._running else statistics.UNKNOWN).as_row()
