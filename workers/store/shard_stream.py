"""Reading many ranges of one packed array in order, each chunk once, ahead of need."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from workers.model import MIB, ceil_div
from workers.store.shards import Chunk, ShardReader

#: Runs of chunks that are fetched and decoded ahead of need.
_RUNS_AHEAD = 3
#: Decoded chunks that are kept, in bytes: a tensor up to this size that is stored once and named several
#: times is fetched once.
_KEPT_NBYTES = 32 * MIB


class ShardStream:
    """Reads ranges of one array, which are known in advance, in order.

    Used as `with ShardStream(reader, ranges) as stream:`; call `pieces` then for these ranges, one after the
    other. Memory: `_KEPT_NBYTES`, and `_RUNS_AHEAD` + 1 runs of the reader (16 MiB each) and their
    encoded form. Not safe to share between threads.
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
        """Return the bytes of elements `start` to `stop`; without a copy if they fill half of one chunk.

        So at most twice as many bytes stay in memory as are returned.

        Raises:
            DamagedStore: one of their chunks is missing or damaged; other ranges can still be read.
        """
        spec = self._reader.spec
        number = start // spec.chunk
        if stop <= (number + 1) * spec.chunk and 2 * (stop - start) >= spec.chunk:
            return self._reader.part(number, self._chunk(number, number + 1), start, stop)
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
        while len(self._chunks) > max(self._kept, len(run)):
            del self._chunks[next(iter(self._chunks))]

    def _fetch_ahead(self) -> None:
        while len(self._ahead) < _RUNS_AHEAD and (run := next(self._runs, None)) is not None:
            self._ahead.append((run, self._threads.submit(self._reader.chunks, run)))


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
