"""Whole shards of the standard `sharding_indexed` codec, encoded and decoded piece by piece.

Format: zarr-specs, "Sharding codec" version 1.0: encoded inner chunks one after the other, then an index of
(offset, nbytes) pairs as little-endian uint64, then the crc32c of the index. The index has 2**64-1 twice for
an inner chunk that was never written. The codecs of inner chunks are `bytes`, `blosc`, `crc32c`.

Shards are written here rather than by zarr-python because each is then encoded while its data is in cache,
with memory for one encoded chunk, or for one shard if it is uploaded by one PUT. They are read here because
zarr-python fills in zeros for a missing chunk, which is damage here.

`ShardStream` reads many ranges of one array in order, each chunk once, ahead of need.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache, partial
from itertools import accumulate, islice
from types import TracebackType
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import Blosc

from workers.errors import DamagedStore
from workers.model import MIB, ceil_div
from workers.store.backends.failures import supervised
from workers.store.model import ArraySpec
from workers.store.objects import NewObject, ObjectStore
from workers.store.packed.chunks import (
    BIT_SHUFFLE,
    HEADER,
    NO_SHUFFLE,
    SHUFFLE,
    ChunkDecoder,
    ChunkEncoder,
    compressor,
    encoder_of,
    encoder_of_sparse,
    is_sparse,
)

_MISSING = 2**64 - 1
_CRC_BYTES = 4
_INDEX_ENTRY_BYTES = 16
#: What Blosc and the checksum add to a chunk at most.
_ADDED_NBYTES = HEADER.size + _CRC_BYTES
#: The index of a shard is fetched together with the bytes before it, this many in all: a small shard then
#: comes as a whole, and its chunks cost no further request.
_TAIL_NBYTES = 64 * 1024
#: Chunks that are fetched in one request, in bytes before compression.
_RUN_NBYTES = 16 * MIB
#: Chunks that are read from a directory at once, in bytes before compression: they stay in the L2 cache.
_CACHED_NBYTES = MIB
#: Requests of one large read that are on their way at once.
_RUNS_AT_ONCE = 4


def codecs(spec: ArraySpec) -> list[dict[str, Any]]:
    """Return the codec chain of the packed array as Zarr metadata."""
    blosc = {"name": "blosc", "configuration": _blosc_config(spec)}
    return sharded([spec.chunk], [_bytes_codec(spec), blosc, {"name": "crc32c"}])


def sharded(chunk_shape: list[int], of_chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the codec chain of shards as Zarr metadata, given the chain of their chunks."""
    configuration = {
        "chunk_shape": chunk_shape,
        "codecs": of_chunks,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": "end",
    }
    return [{"name": "sharding_indexed", "configuration": configuration}]


def _bytes_codec(spec: ArraySpec) -> dict[str, Any]:
    if spec.itemsize == 1:
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": "big" if spec.big_endian else "little"}}


def _blosc_config(spec: ArraySpec) -> dict[str, Any]:
    numbers = {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle"}
    text = {"cname": "zstd", "clevel": 3, "shuffle": "noshuffle"}
    if spec.dense:
        numbers = {"cname": "zstd", "clevel": 1, "shuffle": spec.dense}
    chosen = text if spec.path == "files" else numbers
    return {**chosen, "typesize": spec.typesize, "blocksize": MIB if spec.dense else 0}


@lru_cache(maxsize=64)
def _compressor(spec: ArraySpec) -> Blosc:
    config = _blosc_config(spec)
    shuffle = {"noshuffle": NO_SHUFFLE, "shuffle": SHUFFLE, "bitshuffle": BIT_SHUFFLE}[config["shuffle"]]
    return compressor(config["cname"], config["clevel"], shuffle, config["typesize"], config["blocksize"])


def crc32c(data: bytes) -> bytes:
    """Return the checksum that the `crc32c` codec appends: four bytes, little-endian."""
    return int(google_crc32c.value(data)).to_bytes(_CRC_BYTES, "little")


def without_crc32c(data: bytes | memoryview, where: str) -> bytes:
    """Return `data` without the checksum at its end.

    Raises:
        DamagedStore: the checksum does not match; `where` names the object.
    """
    body = bytes(data[:-_CRC_BYTES])
    if len(data) < _CRC_BYTES or crc32c(body) != data[-_CRC_BYTES:]:
        raise DamagedStore(f"{where}: crc32c does not match")
    return body


class ShardPacker(AbstractContextManager["ShardPacker"]):
    """Packs payloads one after the other into whole shards.

    Used as `with ShardPacker(...) as packer:`. When the block has ended, every shard is written; if it ends
    with an error, nothing is left of the last one. Memory: one inner chunk, and what the new objects hold.
    """

    def __init__(self, spec: ArraySpec, first_shard: int, create: Callable[[int], NewObject]) -> None:
        """Start at the boundary of `first_shard`; `create(shard number)` is called for each one."""
        self.stored: dict[int, int] = {}
        """Bytes of each shard that is written, by its number."""
        self._spec = spec
        self._create = create
        self._encoder = encoder_of(_compressor(spec), _blosc_config(spec), spec.chunk_nbytes)
        self._shard = first_shard
        self._buffer = memoryview(bytearray(spec.chunk_nbytes))
        self._filled = 0
        self._object: NewObject | None = None
        self._lengths: list[int] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.close()
        finally:
            if self._object is not None:
                self._object.drop()

    @cached_property
    def _encoder_of_sparse(self) -> ChunkEncoder:
        return encoder_of_sparse(self._spec.sparse, self._spec.chunk_nbytes, self._spec.typesize)

    @property
    def position(self) -> int:
        """The element of the array at which the next payload will begin."""
        in_shard = len(self._lengths) * self._spec.chunk + self._filled // self._spec.itemsize
        return self._shard * self._spec.shard + in_shard

    def append(self, payload: memoryview) -> None:
        """Pack `payload`, whole elements as plain bytes; a large payload may come in several calls."""
        size = self._spec.chunk_nbytes
        while len(payload):
            if not self._filled and len(payload) >= size:
                self._encode(payload[:size], size)
                payload = payload[size:]
                continue
            fitting = min(size - self._filled, len(payload))
            self._buffer[self._filled : self._filled + fitting] = payload[:fitting]
            self._filled += fitting
            payload = payload[fitting:]
            if self._filled == size:
                self._encode(self._buffer, size)
                self._filled = 0

    def close(self) -> None:
        """Write the rest as the last shard, its last chunk filled up with zeros."""
        if self._filled:
            self._buffer[self._filled :] = bytes(len(self._buffer) - self._filled)
            self._encode(self._buffer, self._filled)
            self._filled = 0
        if self._object is not None:
            self._finish_shard(self._object)

    def _encode(self, chunk: memoryview, filled: int) -> None:
        """Encode a chunk, `filled` bytes of which are payload."""
        is_other = self._spec.sparse and is_sparse(chunk[:filled], self._spec.typesize)
        encoded = (self._encoder_of_sparse if is_other else self._encoder).encode(chunk)
        if self._object is None:
            self._object = self._create(self._shard)
        self._object.write(encoded)
        self._lengths.append(len(encoded))
        if len(self._lengths) == self._spec.chunks_per_shard:
            self._finish_shard(self._object)

    def _finish_shard(self, shard: NewObject) -> None:
        index = np.full((self._spec.chunks_per_shard, 2), _MISSING, dtype="<u8")
        lengths = np.array(self._lengths, dtype="<u8")
        index[: len(lengths), 0] = np.cumsum(lengths) - lengths
        index[: len(lengths), 1] = lengths
        encoded_index = index.tobytes()
        shard.write(encoded_index)
        shard.write(crc32c(encoded_index))
        shard.close()
        self.stored[self._shard] = int(lengths.sum()) + len(encoded_index) + _CRC_BYTES
        self._object = None
        self._lengths = []
        self._shard += 1


class ShardCounter(nullcontext[None]):
    """Gives payloads the places that `ShardPacker` gives them, and packs nothing."""

    def __init__(self, spec: ArraySpec, first_shard: int) -> None:
        super().__init__()
        self.stored: dict[int, int] = {}
        self._spec = spec
        self._first = first_shard * spec.shard
        self._nbytes = 0

    @property
    def position(self) -> int:
        """The element of the array at which the next payload would begin."""
        return self._first + self._nbytes // self._spec.itemsize

    def append(self, payload: memoryview) -> None:
        """Leave room for `payload`."""
        self._nbytes += len(payload)


#: What payloads are appended to.
Packer: TypeAlias = ShardPacker | ShardCounter


#: A decoded chunk; or, as text, what is wrong with it. The chunks of one run lie in one buffer.
Chunk: TypeAlias = bytes | memoryview | str


class ShardReader:
    """Reads element ranges of one packed array. Safe to share between threads.

    Keeps the index of each shard that it has read, all of a shard that is smaller than `_TAIL_NBYTES`, and
    the chunk that was read last, so that reading a neighbour costs nothing.
    """

    def __init__(self, objects: ObjectStore, prefix: str, spec: ArraySpec) -> None:
        """Read the shards at `{prefix}/c/{number}`."""
        self._objects = objects
        self._prefix = prefix
        self.spec = spec
        self._decoder = ChunkDecoder(_compressor(spec), _blosc_config(spec), spec.chunk_nbytes)
        self._index_lock = threading.Lock()
        self._indexes: dict[int, npt.NDArray[np.uint64]] = {}
        self._small: dict[int, bytes] = {}
        self._last: tuple[int, bytes] | None = None

    def read(self, start: int, stop: int, run_nbytes: int = 0) -> bytearray:
        """Return the bytes of elements `start` to `stop`.

        Requests: one for the index of each shard that was not read before, and one for each `run_nbytes`
        (or `_RUN_NBYTES`) of chunks, `_RUNS_AT_ONCE` at a time. Memory: the result, and these runs twice.

        Raises:
            DamagedStore: a shard or chunk is missing, or its checksum does not match.
        """
        if start >= stop:
            return bytearray()
        # First, because the index of a real shard shows that the grid is not made up. Otherwise, any size
        # in the metadata would be allocated.
        self._index(start // self.spec.shard)
        try:
            out = bytearray((stop - start) * self.spec.itemsize)
        except MemoryError as exc:
            nbytes = (stop - start) * self.spec.itemsize
            raise DamagedStore(f"{self._prefix}: {nbytes} bytes do not fit into memory") from exc
        runs = list(self.runs(start // self.spec.chunk, ceil_div(stop, self.spec.chunk), run_nbytes))

        def fill(run: range) -> None:
            size, itemsize = self.spec.chunk, self.spec.itemsize
            for number, chunk in zip(run, self.chunks(run), strict=True):
                begin, end = max(start, number * size), min(stop, (number + 1) * size)
                part = self.part(number, chunk, begin, end)
                out[(begin - start) * itemsize : (end - start) * itemsize] = part

        if len(runs) == 1:
            fill(runs[0])
        else:
            with ThreadPoolExecutor(_RUNS_AT_ONCE, thread_name_prefix="dump-ingest-read") as threads:
                for _ in threads.map(fill, runs):
                    pass
        return out

    def part(self, number: int, chunk: Chunk, begin: int, end: int) -> memoryview:
        """Return elements `begin` to `end`, which one chunk has, as a part of it.

        Raises:
            DamagedStore: the chunk is damaged.
        """
        if isinstance(chunk, str):
            raise DamagedStore(chunk)
        first, itemsize = number * self.spec.chunk, self.spec.itemsize
        return memoryview(chunk)[(begin - first) * itemsize : (end - first) * itemsize]

    def written(self, shard: int) -> range:
        """Return the chunks that a shard holds.

        Raises:
            DamagedStore: the shard or its index is missing or damaged.
        """
        first = shard * self.spec.chunks_per_shard
        return range(first, first + int(np.count_nonzero(self._index(shard)[:, 0] != _MISSING)))

    def runs(self, first: int, last: int, run_nbytes: int = 0) -> Iterator[range]:
        """Cut chunks `first` to `last` into runs for one request each: within one shard, and bounded."""
        longest = max((run_nbytes or _RUN_NBYTES) // self.spec.chunk_nbytes, 1)
        while first < last:
            end_of_shard = (first // self.spec.chunks_per_shard + 1) * self.spec.chunks_per_shard
            end = min(last, end_of_shard, first + longest)
            yield range(first, end)
            first = end

    def chunks(self, run: range) -> list[Chunk]:
        """Fetch and decode the chunks of one run; for a damaged chunk, return what is wrong as text.

        Raises:
            StoreError: the store cannot be reached.
        """
        last = self._last
        if last is not None and run == range(last[0], last[0] + 1):
            return [last[1]]
        try:
            # First, because a call that hangs must not keep the lock of the indexes.
            self._index(run[0] // self.spec.chunks_per_shard)
            decoded = supervised(self._fetch, run)  # of a directory, each chunk is a call
        except DamagedStore as exc:
            return [exc.message] * len(run)
        if not isinstance(decoded[-1], str):
            self._last = (run[-1], bytes(decoded[-1]))  # not a view, which would keep the whole run
        return decoded

    def _fetch(self, run: range) -> list[Chunk]:
        size = self.spec.chunk_nbytes
        memory = memoryview(np.empty(len(run) * size, np.uint8))  # type: ignore[arg-type]  # it has a buffer
        shard, first = divmod(run[0], self.spec.chunks_per_shard)
        places = self._index(shard)[first : first + len(run)].tolist()
        # A directory answers at once, so it is read in parts that are decoded while they are in the cache.
        at_once = max(_CACHED_NBYTES // size, 1) if self._objects.is_local else len(run)
        decoded: list[Chunk] = []
        for begin in range(0, len(run), at_once):
            part = slice(begin, begin + at_once)
            decoded += self._fetch_into(memory[begin * size :], shard, run[part], places[part])
        return decoded

    def _fetch_into(
        self, memory: memoryview, shard: int, run: range, places: list[tuple[int, int]]
    ) -> list[Chunk]:
        """Fetch chunks of one shard by one request, and decode them to the beginning of `memory`.

        Args:
            memory: at least as many bytes as the chunks have.
            shard: the number of the shard.
            run: the numbers of the chunks.
            places: where each of them begins in the shard, and how long it is there.
        """
        key = self._key(shard)
        written = [place for place in places if place[0] != _MISSING]
        missing = f"{key}: a chunk that holds data is missing"
        if not written:
            return [missing] * len(run)
        # Chunks are written in order, so nothing else lies between them; other programs may have another one.
        start, stop = min(written)[0], max(map(sum, written))
        small = self._small.get(shard)
        data = small[start:stop] if small is not None else self._objects.get_range(key, start, stop)
        if data is None or len(data) != stop - start:
            raise DamagedStore(f"{key}: bytes {start} to {stop} are missing")
        encoded = memoryview(data)
        size = self.spec.chunk_nbytes
        return [
            missing
            if offset == _MISSING
            else self._decode(
                encoded[offset - start : offset - start + nbytes],
                memory[at : at + size],
                f"{key} chunk {number}",
            )
            for number, at, (offset, nbytes) in zip(run, range(0, len(run) * size, size), places, strict=True)
        ]

    def _key(self, shard: int) -> str:
        return f"{self._prefix}/c/{shard}"

    def _decode(self, encoded: memoryview, into: memoryview, where: str) -> Chunk:
        try:
            self._decoder.decode(encoded, into)
        except ValueError as exc:
            return f"{where}: {exc}"
        except (RuntimeError, MemoryError) as exc:
            return f"{where}: cannot be decompressed: {exc}"
        return into.toreadonly()

    def _index(self, shard: int) -> npt.NDArray[np.uint64]:
        # One at a time: threads that read the same shard at once need its index once.
        with self._index_lock:
            if shard not in self._indexes:
                key = self._key(shard)
                nbytes = self.spec.chunks_per_shard * _INDEX_ENTRY_BYTES + _CRC_BYTES
                wanted = max(nbytes, _TAIL_NBYTES)
                tail = self._objects.get_range(key, -wanted)
                if tail is None:
                    raise DamagedStore(f"{key}: the shard is missing")
                if len(tail) < nbytes:
                    raise DamagedStore(f"{key}: {len(tail)} bytes, too few for the index of a shard")
                index = np.frombuffer(without_crc32c(tail[-nbytes:], f"{key} index"), dtype="<u8")
                places = index.reshape(-1, 2)
                # It may have been written by anybody: what it says is requested, and takes as much memory.
                longest = self.spec.chunk_nbytes + _ADDED_NBYTES
                begins, lengths = places[places[:, 0] != _MISSING].T
                if (lengths > longest).any() or (begins > len(places) * longest).any():
                    raise DamagedStore(f"{key}: its index has impossible places")
                self._indexes[shard] = places
                if len(tail) < wanted:
                    self._small[shard] = tail
            return self._indexes[shard]


#: Runs of chunks that are fetched and decoded ahead of need.
_RUNS_AHEAD = 3
#: Decoded chunks that are kept, in bytes: a tensor up to this size that is stored once and named several
#: times is fetched once.
_KEPT_NBYTES = 32 * MIB


class ShardStream(AbstractContextManager["ShardStream"]):
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
        self._ahead: deque[tuple[range, Callable[[], list[Chunk]]]] = deque()
        self._chunks: dict[int, Chunk] = {}
        self._run_of: dict[int, range] = {}
        """By chunk that is kept, the run with which it was fetched."""
        self._coverage = _Coverage(ranges)
        self._threads = ThreadPoolExecutor(_RUNS_AHEAD, thread_name_prefix="dump-ingest-read")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        while number not in self._chunks:
            self._fetch_ahead()
            if self._ahead and self._ahead[0][0][0] <= number:
                run, fetched = self._ahead.popleft()
                self._keep(run, fetched())
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
        runs = [*islice(self._runs, _RUNS_AHEAD - len(self._ahead))]
        # Who waits for the only one fetches it: starting a thread takes as long as a small chunk.
        is_only = len(runs) == 1 and not self._ahead
        for run in runs:
            fetch = partial(self._reader.chunks, run)
            self._ahead.append((run, fetch if is_only else self._threads.submit(fetch).result))


class _Coverage:
    """How many elements sorted ranges have in a part of an array. One in several ranges counts for each."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._before = [0, *accumulate(stop - start for start, stop in ranges)]
        """By range, how many elements those before it have."""

    def fills_half(self, start: int, stop: int) -> bool:
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
