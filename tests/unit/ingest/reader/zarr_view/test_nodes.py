"""Nodes of a view: any name of a dump is a part of a path; keys and attributes are those of a Zarr store."""

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import MemoryStore

from ingest.reader.zarr_nodes import escape
from ingest.reader.zarr_view import TensorView
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.zarr_views import PROTOTYPE, array_at, collected, read_object, view_of
from workers.errors import UsageError

LOG = "rank_1/step_2/Log.Default_net-LogLoss_Log-op0"
LOG_0 = "rank_0/step_2/Log.Default_net-LogLoss_Log-op0"


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_name_is_a_printable_part_of_a_path_of_its_own(name: str, other: str) -> None:
    escaped = escape(name)
    assert escaped.isprintable()
    assert not {"/", "\\"} & set(escaped)
    assert escaped.strip(".")
    assert not escaped.startswith("__")
    assert escaped != "zarr.json"
    assert (escape(other) == escaped) == (other == name)


@pytest.mark.parametrize(
    "name", ["..", "__x", "a/b", "a\\b", "zarr.json", "", "\x1b[31m", "a\u202eb", "c", "%41", " "]
)
def test_names_that_zarr_could_mistake_are_found_again(name: str) -> None:
    memory = MemoryStore()
    group = zarr.open_group(memory, mode="w")
    group.create_array(escape(name), shape=(1,), dtype="i4")
    assert list(group.array_keys()) == [escape(name)]


@pytest.fixture(scope="module")
def copied(nan_log: Path) -> tuple[TensorView, MemoryStore]:
    """The view, and everything of rank 0 in it as a store of zarr's own."""
    view = view_of(nan_log)
    keys = ["zarr.json", *collected(view.list_prefix("rank_0"))]
    held = {key: read_object(view, key) or b"" for key in keys}
    return view, MemoryStore({key: PROTOTYPE.buffer.from_bytes(data) for key, data in held.items()})


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


def test_a_step_stays_as_it_was_opened(made: MadeDump, store: Path) -> None:
    made.add(np.zeros(4, np.float32), tensor_name("A.a", time=1))
    ingest_directly(made.root, store)
    view = view_of(store)
    array = array_at(view, "rank_0/step_0/A.a/output.0")
    arrived = pickle.dumps(view)
    made.add(np.ones(4, np.float32), tensor_name("A.a", time=1))
    ingest_directly(made.root, store)
    for same in (view, pickle.loads(arrived)):  # noqa: S301
        assert not np.asarray(array_at(same, "rank_0/step_0/A.a/output.0")[:]).any()
    assert not np.asarray(array[:]).any()
    assert np.asarray(array_at(view_of(store), "rank_0/step_0/A.a/output.0")[:]).all()


def test_partial_steps_are_refused_and_named_unless_asked_for(made: MadeDump, store: Path) -> None:
    made.add(np.zeros(4, np.float32), tensor_name("A.a"), step=1)
    made.add(np.zeros(4, np.float32), tensor_name("A.a"), step=2)
    made.add(b"\x93NUMPY, but no more", tensor_name("B.b"), step=2)
    ingest_directly(made.root, store)
    view = view_of(store)
    assert sorted(zarr.open_group(view, path="rank_0", mode="r").group_keys()) == ["step_1"]
    assert [str(left) for left in view.left_out] == ["rank 0 step 2: partial: 1 file quarantined"]
    with pytest.raises(UsageError, match="rank 0 step 2 is partial: 1 file quarantined"):
        zarr.open_group(view, path="rank_0/step_2", mode="r")
    whole = view_of(store, include_partial=True)
    assert whole.left_out == []
    assert list(zarr.open_group(whole, path="rank_0/step_2", mode="r").group_keys()) == ["A.a"]


def strict(text: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_the_attributes_are_strict_json_without_words_that_xarray_obeys(nan_log: Path) -> None:
    attributes = strict(read_object(view_of(nan_log), f"{LOG}/output.0/zarr.json") or b"")["attributes"]
    assert attributes["op_type"] == "Log"
    assert attributes["nan_count"] == 2
    assert attributes["source"].endswith(".npy")
    decoded = {"_FillValue", "missing_value", "scale_factor", "add_offset", "units", "dtype", "coordinates"}
    assert not decoded & set(attributes)
