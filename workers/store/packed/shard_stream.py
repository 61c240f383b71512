"""Reading many ranges of one packed array in order, each chunk once, ahead of need."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from types import TracebackType
from typing import Self

from workers.model import MIB, ceil_div
from workers.store.packed.shards import Chunk, ShardReader

#: Runs of chunks that are fetched and decoded ahead of need.
_RUNS_AHEAD = 3
#: Decoded chunks that are kept, in bytes: a tensor up to this size that is stored once and named several
#: times is fetched once.
_KEPT_NBYTES = 32 * MIB


class ShardStream:
    """Reads ranges of one array, which are known in advance, in order.

    Used as `with ShardStream(reader, ranges) as stream:`; call `pieces` then for these ranges, one after the
    other. Memory: the runs of `_KEPT_NBYTES`, and `_RUNS_AHEAD` + 1 runs of the reader (16 MiB each) and
    their encoded form. Not safe to share between threads.
    """

    def __init__(self, reader: ShardReader, ranges: Sequence[tuple[int, int]]) -> None:
        """Begin to fetch the chunks of these sorted (start, stop) ranges of elements."""
        self._reader = reader
        self._kept = max(_KEPT_NBYTES // reader.spec.chunk_nbytes, 1)
        # Lazily: the number of chunks comes from metadata that anybody may have written.
        self._runs = (
            run
            for span in _spans(reader.spec.chunk, [r for r in ranges if r[0] < r[1]])
            for run in reader.runs(*span)
        )
        self._ahead: deque[tuple[range, Future[list[Chunk]]]] = deque()
        self._chunks: dict[int, Chunk] = {}
        self._run_of: dict[int, range] = {}
        """By chunk that is kept, the run with which it was fetched."""
        self._coverage = _Coverage(ranges)
        self._threads = ThreadPoolExecutor(_RUNS_AHEAD, thread_name_prefix="dump-ingest-read")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what is being fetched."""
        self._threads.shutdown(cancel_futures=True)

    def pieces(self, start: int, stop: int, piece: int) -> Iterator[bytes]:
        """Yield the bytes of elements `start` to `stop` in pieces of at most `piece` elements.

        Raises:
            DamagedStore: one of their chunks is missing or damaged; other ranges can still be read.
        """
        size = self._reader.spec.chunk
        for begin in range(start, stop, piece):
            end = min(begin + piece, stop)
            yield b"".join(
                self._reader.part(
                    number,
                    self._chunk(number, ceil_div(stop, size)),
                    max(begin, number * size),
                    min(end, (number + 1) * size),
                )
                for number in range(begin // size, ceil_div(end, size))
            )

    def payload(self, start: int, stop: int) -> bytes | memoryview:
        """Return the bytes of elements `start` to `stop`; without a copy if ranges fill half of their run.

        So at most twice as many bytes stay in memory as all ranges have.

        Raises:
            DamagedStore: one of their chunks is missing or damaged; other ranges can still be read.
        """
        size, itemsize = self._reader.spec.chunk, self._reader.spec.itemsize
        numbers = range(start // size, ceil_div(stop, size))
        chunk = self._chunk(numbers.start, numbers.stop)
        run = self._run_of[numbers.start]
        begin = run.start * size
        if isinstance(chunk, memoryview) and numbers.stop <= run.stop:
            are_whole = all(isinstance(self._chunk(n, numbers.stop), memoryview) for n in numbers)
            if are_whole and self._coverage.fills_half(begin, run.stop * size):
                whole = memoryview(chunk.obj).toreadonly()
                return whole[(start - begin) * itemsize : (stop - begin) * itemsize]
        return next(self.pieces(start, stop, stop - start))

    def _chunk(self, number: int, last: int) -> Chunk:
        """Return one chunk of a range that ends before chunk `last`."""
        while number not in self._chunks:
            self._fetch_ahead()
            if self._ahead and self._ahead[0][0][0] <= number:
                run, future = self._ahead.popleft()
                self._keep(run, future.result())
            else:
                # It was fetched and dropped before: a tensor larger than what is kept, under another name.
                run = next(self._reader.runs(number, last))
                self._keep(run, self._reader.chunks(run))
        return self._chunks[number]

    def _keep(self, run: range, chunks: list[Chunk]) -> None:
        self._chunks.update(zip(run, chunks, strict=True))
        self._run_of.update(dict.fromkeys(run, run))
        while len(self._chunks) > max(self._kept, len(run)):
            oldest = next(iter(self._chunks))
            del self._chunks[oldest], self._run_of[oldest]

    def _fetch_ahead(self) -> None:
        while len(self._ahead) < _RUNS_AHEAD and (run := next(self._runs, None)) is not None:
            self._ahead.append((run, self._threads.submit(self._reader.chunks, run)))


class _Coverage:
    """How many elements sorted ranges have in a part of an array. One in several ranges counts for each."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._before = [0, *accumulate(stop - start for start, stop in ranges)]
        """By range, how many elements those before it have."""

    def fills_half(self, start: int, stop: int) -> bool:
        """Return whether ranges have at least half as many elements as there are from `start` to `stop`."""
        return 2 * (self._until(stop) - self._until(start)) >= stop - start

    def _until(self, end: int) -> int:
        count = bisect_left(self._ranges, (end, end))
        beyond = max(self._ranges[count - 1][1] - end, 0) if count else 0
        return self._before[count] - beyond


def _spans(chunk: int, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the spans of chunks that the sorted ranges touch, each chunk once."""
    first = last = 0
    for start, stop in ranges:
        begin, end = start // chunk, ceil_div(stop, chunk)
        if begin > last:
            if last > first:
                yield first, last
            first = begin
        last = max(last, end)
    if last > first:
        yield first, last
