"""Many ranges of one array in order: each chunk is fetched once, ahead of need, in bounded memory."""

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packed_arrays import elements, pack, spec_of
from tests.wrapped_objects import WrappedObjects
from workers.errors import DamagedStore, StoreUnavailable
from workers.store.model import ArraySpec
from workers.store.objects import ObjectStore
from workers.store.opening import connect, resolve
from workers.store.packed import shards
from workers.store.packed.shards import ShardReader, ShardStream

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
def packed(tmp_path: Path) -> tuple[CountingStore, ArraySpec, bytes]:
    """An array of eight shards of four chunks of eight elements, of which nothing stays in hand."""
    spec = spec_of("<f4")
    payload = elements("<f4", LENGTH, 0)
    pack(tmp_path, spec, [payload])
    return CountingStore(tmp_path), spec, payload


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a run of two chunks, and keep four."""
    monkeypatch.setattr(shards, "_TAIL_NBYTES", 0)
    monkeypatch.setattr(shards, "_RUN_NBYTES", 64)
    monkeypatch.setattr(shards, "_KEPT_NBYTES", 128)


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


def test_each_chunk_is_fetched_once_and_no_other(packed: tuple[CountingStore, ArraySpec, bytes]) -> None:
    store, spec, payload = packed
    # Chunks 0 and 1, 1, 1, 5 to 8 (of two shards), 30.
    ranges = [(0, 9), (9, 16), (9, 16), (40, 70), (240, 241)]
    assert read(store, spec, ranges) == [payload[4 * start : 4 * stop] for start, stop in ranges]
    fetched = [key for key, _, _ in sorted(store.asked)]
    shard = f"{spec.path}/c/"
    assert fetched == [f"{shard}0", f"{shard}1", f"{shard}1", f"{shard}2", f"{shard}7"]


def test_nothing_is_fetched_far_ahead_of_need(packed: tuple[CountingStore, ArraySpec, bytes]) -> None:
    store, spec, payload = packed
    with ShardStream(ShardReader(store, spec.path, spec), [(0, LENGTH)]) as stream:
        pieces = stream.pieces(0, LENGTH, 8)
        assert next(pieces) == payload[:32]
    assert len(store.asked) <= 1 + 3


def test_a_damaged_chunk_damages_only_what_is_in_it(
    packed: tuple[CountingStore, ArraySpec, bytes], tmp_path: Path
) -> None:
    store, spec, payload = packed
    path = tmp_path / spec.path / "c" / "0"
    damaged = bytearray(path.read_bytes())
    damaged[0] ^= 1
    path.write_bytes(damaged)
    with ShardStream(ShardReader(store, spec.path, spec), [(0, 4), (6, 9), (8, 12)]) as stream:
        for start, stop in [(0, 4), (6, 9)]:
            with pytest.raises(DamagedStore, match=f"{spec.path}/c/0 chunk 0"):
                list(stream.pieces(start, stop, 100))
        assert b"".join(stream.pieces(8, 12, 100)) == payload[32:48]


def test_a_store_that_does_not_answer_is_no_damage(packed: tuple[CountingStore, ArraySpec, bytes]) -> None:
    store, spec, _ = packed
    store.fail = True
    with pytest.raises(StoreUnavailable):
        read(store, spec, [(0, 100)])


@pytest.mark.parametrize(("start", "stop"), [(0, 8), (9, 14), (9, 11), (6, 30), (240, 250)])
def test_payload_of_half_a_run_is_not_copied(
    packed: tuple[CountingStore, ArraySpec, bytes], start: int, stop: int
) -> None:
    store, spec, payload = packed
    reader = ShardReader(store, spec.path, spec)
    with ShardStream(reader, [(start, stop)]) as stream:
        read_back = stream.payload(start, stop)
    assert bytes(read_back) == payload[start * 4 : stop * 4]
    run, *others = reader.runs(start // spec.chunk, -(-stop // spec.chunk))
    assert isinstance(read_back, memoryview) == (not others and 2 * (stop - start) >= len(run) * spec.chunk)
