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

import ingest
from ingest.api import open_store
from ingest.reader.zarr_view.nodes import ShownSteps, escape
from ingest.reader.zarr_view.tensor_view import TensorView
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.zarr_views import PROTOTYPE, array_at, collected, read_object, view_of
from workers.errors import UsageError
from workers.model import StepKey

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


def test_several_graphs_are_a_level_of_their_own(made: MadeDump, store: Path) -> None:
    for graph in ("0", "1"):
        made.add(np.full(4, int(graph), np.float32), tensor_name("A.a"), graph=graph)
    ingest_directly(made.root, store)
    group = zarr.open_group(view_of(store), path="rank_0/step_0", mode="r")
    assert sorted(group.group_keys()) == ["0", "1"]
    array = group["1/A.a/output.0"]
    assert isinstance(array, zarr.Array)
    assert np.asarray(array[:]).tolist() == [1] * 4


def test_a_loop_gives_each_occurrence_a_name(made: MadeDump, store: Path) -> None:
    for number in range(3):
        made.add(np.full(2, number, np.float32), tensor_name("A.a"))
    ingest_directly(made.root, store)
    group = zarr.open_group(view_of(store), path="rank_0/step_0/A.a", mode="r")
    assert sorted(group.array_keys()) == ["output.0", "output.0#1", "output.0#2"]
    last = group["output.0#2"]
    assert isinstance(last, zarr.Array)
    assert np.asarray(last[:]).tolist() == [2, 2]


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


def test_what_is_damaged_or_not_committed_is_named(many: Path) -> None:
    (many / "rank_1/step_3/zarr.json").write_text("{}")
    (many / "rank_2/step_7/zarr.json").unlink()
    damaged, uncommitted = ShownSteps(open_store(many), include_partial=False).left_out()
    assert damaged.key == StepKey(1, 3)
    assert damaged.reason.startswith("damaged: ")
    assert str(uncommitted) == "rank 2 step 7: not committed"


def test_pinned_generations_are_shown(made: MadeDump, store: Path) -> None:
    path = made.add(np.zeros(4, np.float32))
    ingest_directly(made.root, store)
    before = open_store(store).step(0, 0).commit
    path.write_bytes(path.read_bytes()[:-4] + np.float32(7).tobytes())
    ingest_directly(made.root, store)
    steps = ShownSteps(open_store(store), include_partial=False)
    steps.pin(before)
    (step,) = steps.of_rank(0)
    assert step.fingerprint == before.fingerprint
    assert steps.commits == [before]


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


def test_tensors_of_which_only_statistics_were_dumped_are_told_by_their_operator(
    dumps: DumpLibrary, store: Path
) -> None:
    ingest_directly(next(dumps["msprobe-26.2.0-pytorch-cpu"].glob("*statistics*")), store)
    opened = ingest.open_store(store)
    tensor = next(t for t in opened.tensors() if not t.is_dumped)
    path = f"rank_{tensor.rank}/step_{tensor.step}/{tensor.op_type}.{tensor.op_name}"
    group = zarr.open_group(opened.as_zarr(include_partial=True), path=path, mode="r")
    told = group.attrs["statistics_only"]
    assert isinstance(told, dict)
    assert told[f"{tensor.io}.{tensor.slot}"]["source"] == tensor.source
    assert not list(group.array_keys())
