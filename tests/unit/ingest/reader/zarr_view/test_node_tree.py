"""The keys of a view are those of a store that holds the same objects."""

import asyncio
from pathlib import Path

import pytest
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import MemoryStore

from ingest.api import open_store
from ingest.reader.zarr_view.node_tree import NodeTree
from ingest.reader.zarr_view.shown_steps import ShownSteps
from ingest.reader.zarr_view.tensor_view import TensorView
from tests.zarr_views import PROTOTYPE, collected, read_object, view_of

LOG = "rank_1/step_2/Log.Default_net-LogLoss_Log-op0"


@pytest.fixture(scope="module")
def copied(nan_log: Path) -> tuple[TensorView, MemoryStore]:
    """The view, and everything of rank 0 in it as a store of zarr's own."""
    view = view_of(nan_log)
    keys = ["zarr.json", *collected(view.list_prefix("rank_0"))]
    held = {key: read_object(view, key) or b"" for key in keys}
    return view, MemoryStore({key: PROTOTYPE.buffer.from_bytes(data) for key, data in held.items()})


LOG_0 = "rank_0/step_2/Log.Default_net-LogLoss_Log-op0"


PREFIXES = (
    "rank_0", "rank_0/", "rank_0/step_2", "rank_0/step_2/Log", LOG_0, "rank_0/step_9", f"{LOG_0}/output.0",
    f"{LOG_0}/output.0/c", f"{LOG_0}/output.0/c/0", "rank_0/run/",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_listings_are_those_of_a_store_that_holds_the_same(
    copied: tuple[TensorView, MemoryStore], prefix: str
) -> None:
    view, memory = copied
    assert sorted(collected(view.list_prefix(prefix))) == sorted(collected(memory.list_prefix(prefix)))
    listed = collected(view.list_dir(prefix))
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(collected(memory.list_dir(prefix)))
    assert asyncio.run(view.is_empty(prefix)) == asyncio.run(memory.is_empty(prefix))


@pytest.mark.parametrize(
    "byte_range",
    [
        None,
        RangeByteRequest(0, 4),
        RangeByteRequest(3, 17),
        RangeByteRequest(90, 500),
        OffsetByteRequest(5),
        SuffixByteRequest(7),
        SuffixByteRequest(10_000_000),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["output.0/zarr.json", "output.0/c/0/0", "zarr.json"])
def test_ranges_are_those_of_a_store_that_holds_the_same(
    copied: tuple[TensorView, MemoryStore], name: str, byte_range: ByteRequest | None
) -> None:
    view, memory = copied
    key = f"{LOG_0}/{name}"
    expected = read_object(memory, key)
    assert expected is not None
    start, stop = 0, len(expected)
    match byte_range:
        case RangeByteRequest():
            start, stop = byte_range.start, byte_range.end
        case OffsetByteRequest():
            start = byte_range.offset
        case SuffixByteRequest():
            start = max(stop - byte_range.suffix, 0)
    assert read_object(view, key, byte_range) == expected[start:stop]
    assert asyncio.run(view.getsize(key)) == len(expected)
    assert asyncio.run(view.exists(key))


@pytest.mark.parametrize(
    "key",
    [
        "rank_7/zarr.json", "rank_01/zarr.json", "rank_1/step_99/zarr.json", "rank_1/step_2/x/zarr.json",
        "c/0", f"{LOG}/output.0/c/1/0", f"{LOG}/output.0/c/0", f"{LOG}/output.0/c/00/0", f"{LOG}/c/0/0",
        ".zgroup", "", f"{LOG}/output.0/c/-1/0", f"rank_{'9' * 5000}/zarr.json",
        f"{LOG}/output.0/c/{'9' * 5000}/0",
        "rank_1/step_2/../../rank_0/zarr.json", f"{LOG}/output.0/zarr.json/zarr.json",
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_there(nan_log: Path, key: str) -> None:
    view = view_of(nan_log)
    assert read_object(view, key) is None
    assert not asyncio.run(view.exists(key))
    with pytest.raises(FileNotFoundError):
        asyncio.run(view.getsize(key))


def test_only_known_keys_are_in_memory(nan_log: Path) -> None:
    steps = ShownSteps(open_store(nan_log), include_partial=False)
    tree = NodeTree(steps)
    assert tree.is_in_memory("zarr.json")
    assert tree.is_in_memory(f"{LOG}/.zarray")
    assert not tree.is_in_memory("rank_1/step_2/zarr.json")
    assert tree.find("rank_1/step_2/zarr.json") is not None
    assert tree.is_in_memory("rank_1/step_2/zarr.json")
    assert not tree.is_in_memory(f"{LOG}/zarr.json")
    assert tree.find(f"{LOG}/zarr.json") is not None
    assert tree.is_in_memory(f"{LOG}/zarr.json")
    assert not tree.is_in_memory(f"{LOG}/output.0/c/0/0")
