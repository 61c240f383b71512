"""Shards written piece by piece are ordinary Zarr shards, and damage in them is found."""

import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packed_arrays import elements, pack, spec_of
from tests.wrapped_objects import WrappedObjects
from workers.arrays.dtypes import from_npy_descr
from workers.errors import DamagedStore, StoreError, StoreSilent, StoreUnavailable
from workers.store.backends.local import LocalObjects
from workers.store.backends.wrappers import BoundedObjects
from workers.store.model import ArraySpec
from workers.store.objects import Gathered, ObjectStore
from workers.store.opening import connect, resolve
from workers.store.packed import shards
from workers.store.packed.shards import ShardPacker, ShardReader, ShardStream

DESCRS = ["<i2", ">i2", "<f4", ">f8", "<c8", "<c16", "|u1", "|b1", "<E2"]


def reader_of(root: Path, spec: ArraySpec) -> ShardReader:
    return ShardReader(connect(resolve(str(root))), spec.path, spec)


@settings(max_examples=30)
@given(
    st.sampled_from(DESCRS),
    st.lists(st.integers(0, 90), min_size=1, max_size=8),
    st.integers(0, 3),
    st.sampled_from([0, 64, 10_000]),
    st.sampled_from([1, 30, 100]),
)
def test_what_was_packed_is_read(
    descr: str, sizes: list[int], first_shard: int, tail_nbytes: int, run_nbytes: int
) -> None:
    """Whatever the sizes of payloads, chunks and shards have to do with one another."""
    spec = spec_of(descr)
    payloads = [elements(descr, size, seed) for seed, size in enumerate(sizes)]
    with tempfile.TemporaryDirectory() as directory:
        starts = pack(Path(directory), spec, payloads, first_shard)
        with patch.multiple(shards, _TAIL_NBYTES=tail_nbytes, _RUN_NBYTES=run_nbytes):
            reader = reader_of(Path(directory), spec)
            for start, size, payload in zip(starts, sizes, payloads, strict=True):
                assert reader.read(start, start + size) == payload
    assert starts[0] == first_shard * spec.shard


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.integers(1, 50))
def test_pieces_of_a_payload_pack_like_the_whole(payloads: list[bytes], piece: int) -> None:
    """A tensor larger than the read buffer must give the same shards, byte for byte."""
    spec = spec_of("|u1")
    whole: dict[int, bytes] = {}
    pieces: dict[int, bytes] = {}

    def into(shards: dict[int, bytes]) -> Callable[[int], Gathered]:
        return lambda shard: Gathered(lambda data: shards.update({shard: data}))

    with ShardPacker(spec, 0, into(whole)) as packer, ShardPacker(spec, 0, into(pieces)) as in_pieces:
        for payload in payloads:
            packer.append(memoryview(payload))
            for begin in range(0, len(payload), piece):
                in_pieces.append(memoryview(payload)[begin : begin + piece])
    assert pieces == whole
    assert packer.stored == {shard: len(data) for shard, data in whole.items()}


def test_error_within_a_shard_leaves_nothing_of_it(tmp_path: Path) -> None:
    objects = connect(resolve(str(tmp_path)))
    spec = ArraySpec("tensors/uint8", "uint8", 1, big_endian=False, chunk=8, chunks_per_shard=2)

    def pack_and_fail() -> None:
        with ShardPacker(spec, 0, lambda shard: objects.create(f"c/{shard}")) as packer:
            packer.append(memoryview(bytes(24)))
            raise StoreError("an error of somebody else")

    with pytest.raises(StoreError):
        pack_and_fail()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["0"]


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, ArraySpec, bytes]:
    """An array of two and a half shards."""
    spec = spec_of("<f4")
    payload = elements("<f4", 80, 0)
    pack(tmp_path, spec, [payload])
    return tmp_path, spec, payload


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_every_flipped_byte_is_found_and_its_shard_named(
    packed: tuple[Path, ArraySpec, bytes], shard: int
) -> None:
    """Either the bytes that were written, or an error: nothing in between."""
    root, spec, payload = packed
    path = root / spec.path / "c" / str(shard)
    intact = path.read_bytes()
    first = shard * spec.shard
    last = min(first + spec.shard, 80)
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(DamagedStore, match=rf"{spec.path}/c/{shard}\b"):
            reader_of(root, spec).read(first, last)
    path.write_bytes(intact)
    assert reader_of(root, spec).read(0, 80) == payload


@pytest.mark.parametrize("tail_nbytes", [64 * 1024, 0])
@pytest.mark.parametrize(
    ("chunk", "place"),
    [
        (0, (2**64 - 2, 2**64 - 1)),
        (0, (2**62, 8)),
        (3, (0, 2**40)),
        (3, (0, 2**64 - 1)),
        (1, (2**63, 8)),
    ],
)
def test_places_at_which_no_chunk_can_be_are_damage_and_not_requested(
    packed: tuple[Path, ArraySpec, bytes],
    monkeypatch: pytest.MonkeyPatch,
    tail_nbytes: int,
    chunk: int,
    place: tuple[int, int],
) -> None:
    """The checksum of the index fits: somebody has made it up."""
    monkeypatch.setattr(shards, "_TAIL_NBYTES", tail_nbytes)
    root, spec, _ = packed
    path = root / spec.path / "c" / "1"
    content = path.read_bytes()
    nbytes = 16 * spec.chunks_per_shard
    places = np.frombuffer(content[-nbytes - 4 : -4], "<u8").reshape(-1, 2).copy()
    places[chunk] = place
    path.write_bytes(content[: -nbytes - 4] + places.tobytes() + shards.crc32c(places.tobytes()))
    reader = reader_of(root, spec)
    assert reader.read(0, spec.shard)
    with pytest.raises(DamagedStore, match=f"{spec.path}/c/1: its index has impossible places"):
        reader.read(0, spec.shard + 1)


def test_chunks_may_lie_in_any_order(packed: tuple[Path, ArraySpec, bytes]) -> None:
    """Programs that encode in parallel write them as they come."""
    root, spec, payload = packed
    path = root / spec.path / "c" / "0"
    content = path.read_bytes()
    nbytes = 16 * spec.chunks_per_shard
    places = np.frombuffer(content[-nbytes - 4 : -4], "<u8").reshape(-1, 2).copy()
    chunks = [content[begin : begin + length] for begin, length in places.tolist()]
    places[::-1, 0] = np.cumsum([0, *map(len, chunks[:0:-1])])
    index = places.tobytes()
    path.write_bytes(b"".join(chunks[::-1]) + index + shards.crc32c(index))
    assert reader_of(root, spec).read(0, spec.shard) == payload[: spec.shard * spec.itemsize]


def test_chunks_at_the_place_of_another_are_damage(packed: tuple[Path, ArraySpec, bytes]) -> None:
    root, spec, _ = packed
    path = root / spec.path / "c" / "0"
    content = path.read_bytes()
    nbytes = 16 * spec.chunks_per_shard
    places = np.frombuffer(content[-nbytes - 4 : -4], "<u8").reshape(-1, 2).copy()
    places[3] = (0, 30)
    index = places.tobytes()
    path.write_bytes(content[: -nbytes - 4] + index + shards.crc32c(index))
    reader = reader_of(root, spec)
    assert reader.read(0, 3 * spec.chunk)
    with pytest.raises(DamagedStore, match=f"{spec.path}/c/0 chunk 3"):
        reader.read(0, spec.shard)


def test_a_small_read_is_two_requests_and_one_where_the_shard_is_small(
    packed: tuple[Path, ArraySpec, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, spec, payload = packed
    asked: list[tuple[str, int]] = []

    class Counting(WrappedObjects):
        def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
            asked.append((key, start))
            return super().get_range(key, start, stop)

    reader = ShardReader(Counting(connect(resolve(str(root)))), spec.path, spec)
    assert reader.read(0, 30) == payload[:120]
    assert reader.read(3, 20) == payload[12:80]
    assert len(asked) == 1

    monkeypatch.setattr(shards, "_TAIL_NBYTES", 0)
    asked.clear()
    reader = ShardReader(Counting(connect(resolve(str(root)))), spec.path, spec)
    assert reader.read(8, 10) == payload[32:40]
    assert len(asked) == 2
    assert reader.read(10, 16) == payload[40:64]
    assert len(asked) == 2, "the chunk is still there"
    assert reader.read(0, 8) == payload[:32]
    assert len(asked) == 3, "the index is still there"


@pytest.mark.parametrize(("is_local", "requests"), [(True, 7), (False, 2)])
def test_a_directory_is_read_in_parts_and_an_object_store_in_runs(
    packed: tuple[Path, ArraySpec, bytes],
    monkeypatch: pytest.MonkeyPatch,
    is_local: bool,
    requests: int,
) -> None:
    """Seven chunks in two shards: a request of an object store takes long, and fetches a whole run."""
    root, spec, payload = packed
    asked: list[int] = []

    class Counting(WrappedObjects):
        @property
        def is_local(self) -> bool:
            return is_local

        def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
            asked.append(start)
            return super().get_range(key, start, stop)

    monkeypatch.setattr(shards, "_TAIL_NBYTES", 0)
    monkeypatch.setattr(shards, "_CACHED_NBYTES", spec.chunk_nbytes)
    reader = ShardReader(Counting(connect(resolve(str(root)))), spec.path, spec)
    assert reader.read(8, 64) == payload[32:256]
    of_chunks = [start for start in asked if start >= 0]
    assert len(of_chunks) == requests


def sparse_spec(descr: str) -> ArraySpec:
    return replace(spec_of(descr, chunk=4096), sparse="zstd_quick")


def numbers_with_zeros(descr: str, size: int, share: float) -> bytes:
    """Return normally distributed numbers, some of which are zero, at random."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal(size).astype(from_npy_descr(descr).to_numpy())
    values[rng.random(size) < share] = 0
    return values.tobytes()


@pytest.mark.parametrize("descr", ["<f4", ">f4", "<f2", "<f8", "<c8", "<E2"])
def test_chunks_with_many_zeros_are_smaller_and_any_library_reads_them(tmp_path: Path, descr: str) -> None:
    """Between chunks without zeros: the codec in the metadata is that of most chunks."""
    spec = sparse_spec(descr)
    parts = [numbers_with_zeros(descr, 4096, share) for share in (0, 0.5, 0)]
    pack(tmp_path / "sparse", spec, parts)
    pack(tmp_path / "plain", replace(spec, sparse=""), parts)
    sizes = [
        sum(path.stat().st_size for path in (tmp_path / name).rglob("c/*")) for name in ("sparse", "plain")
    ]
    assert sizes[0] < 0.96 * sizes[1]
    assert reader_of(tmp_path / "sparse", spec).read(0, 3 * 4096) == b"".join(parts)
    path = str(tmp_path / "sparse" / spec.path)
    native = np.frombuffer(b"".join(parts), from_npy_descr(descr).to_numpy())
    wanted = native.astype(native.dtype.newbyteorder("=")).tobytes()
    assert np.asarray(zarr.open_array(path, mode="r")[:]).tobytes() == wanted
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        assert np.asarray(zarr.open_array(path, mode="r")[:]).tobytes() == wanted
    opened = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}).result()
    assert np.asarray(opened.read().result()).tobytes() == wanted


class _Hanging(WrappedObjects):
    """Answers requests that say where they end only when it is told to."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.goes_on = threading.Event()

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        if stop is not None:
            self.goes_on.wait()
        return super().get_range(key, start, stop)


@pytest.mark.timeout(60)
def test_a_run_that_hangs_is_given_up_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_TAIL_NBYTES", 0)
    spec = spec_of("<f4")
    payload = elements("<f4", 3 * spec.chunk, 0)
    (start,) = pack(tmp_path, spec, [payload])
    hanging = _Hanging(LocalObjects(resolve(str(tmp_path))))
    reader = ShardReader(BoundedObjects(hanging, 0.1), spec.path, spec)
    for _ in range(2):
        with pytest.raises(StoreSilent, match="no answer"):
            reader.read(start, start + 3 * spec.chunk)
    assert reader.written(start // spec.shard)
    hanging.goes_on.set()
    assert reader.read(start, start + 3 * spec.chunk) == payload


LENGTH = 250


class CountingStore(WrappedObjects):
    """A directory that notes what ranges it is asked for, the indexes of shards aside."""

    def __init__(self, root: Path) -> None:
        super().__init__(connect(resolve(str(root))))
        self.asked: list[tuple[str, int, int]] = []
        self.fail = False

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        if stop is not None:
            self.asked.append((key, start, stop))
            if self.fail:
                raise StoreUnavailable("no answer")
        return super().get_range(key, start, stop)


@pytest.fixture
def streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CountingStore, ArraySpec, bytes]:
    """An array of eight shards of four chunks of eight elements; a run has two chunks, and four are kept."""
    monkeypatch.setattr(shards, "_TAIL_NBYTES", 0)
    monkeypatch.setattr(shards, "_RUN_NBYTES", 64)
    monkeypatch.setattr(shards, "_KEPT_NBYTES", 128)
    spec = spec_of("<f4")
    payload = elements("<f4", LENGTH, 0)
    pack(tmp_path, spec, [payload])
    return CountingStore(tmp_path), spec, payload


def read(
    store: ObjectStore, spec: ArraySpec, ranges: list[tuple[int, int]], piece: int = 1000
) -> list[bytes]:
    with ShardStream(ShardReader(store, spec.path, spec), ranges) as stream:
        return [b"".join(stream.pieces(start, stop, piece)) for start, stop in ranges]


@given(
    st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted), max_size=12),
    st.integers(1, 60),
    st.sampled_from([1, 64, 1000]),
    st.sampled_from([1, 128, 10_000]),
)
def test_ranges_of_any_kind_are_read(
    spans: list[list[int]], piece: int, run_nbytes: int, kept_nbytes: int
) -> None:
    """With gaps, overlaps and repetitions, whatever is kept."""
    spec = spec_of("<f4")
    payload = elements("<f4", LENGTH, 0)
    ranges = sorted((start, stop) for start, stop in spans)
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.multiple(shards, _RUN_NBYTES=run_nbytes, _TAIL_NBYTES=0),
        patch.object(shards, "_KEPT_NBYTES", kept_nbytes),
    ):
        pack(Path(directory), spec, [payload])
        contents = read(connect(resolve(directory)), spec, ranges, piece)
    assert contents == [payload[4 * start : 4 * stop] for start, stop in ranges]


def test_each_chunk_is_fetched_once_and_no_other(
    streamed: tuple[CountingStore, ArraySpec, bytes],
) -> None:
    store, spec, payload = streamed
    # Chunks 0 and 1, 1, 1, 5 to 8 (of two shards), 30.
    ranges = [(0, 9), (9, 16), (9, 16), (40, 70), (240, 241)]
    assert read(store, spec, ranges) == [payload[4 * start : 4 * stop] for start, stop in ranges]
    fetched = [key for key, _, _ in sorted(store.asked)]
    shard = f"{spec.path}/c/"
    assert fetched == [f"{shard}0", f"{shard}1", f"{shard}1", f"{shard}2", f"{shard}7"]


def test_a_damaged_chunk_damages_only_what_is_in_it(
    streamed: tuple[CountingStore, ArraySpec, bytes], tmp_path: Path
) -> None:
    store, spec, payload = streamed
    path = tmp_path / spec.path / "c" / "0"
    damaged = bytearray(path.read_bytes())
    damaged[0] ^= 1
    path.write_bytes(damaged)
    with ShardStream(ShardReader(store, spec.path, spec), [(0, 4), (6, 9), (8, 12)]) as stream:
        for start, stop in [(0, 4), (6, 9)]:
            with pytest.raises(DamagedStore, match=f"{spec.path}/c/0 chunk 0"):
                list(stream.pieces(start, stop, 100))
        assert b"".join(stream.pieces(8, 12, 100)) == payload[32:48]
