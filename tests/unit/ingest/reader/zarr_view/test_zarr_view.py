"""The Zarr view of a store."""

import asyncio
import json
import pickle
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

import ingest
from ingest.reader import array_like
from ingest.reader.zarr_nodes import ViewArray, ViewElements, chunk_shape, escape
from ingest.reader.zarr_view import TensorView
from tests.dump_data_writer import DATA_TYPES, Tensor, dump_data
from tests.stores import SMALL_GRID, MadeDump, ingest_and_open, ingest_directly, npy_header, tensor_name
from workers.arrays import dtypes
from workers.errors import DamagedStore, UsageError

# What tests do with the Zarr view of a store.


PROTOTYPE = default_buffer_prototype()

_ELEMENTS: dict[tuple[tuple[int, ...], bool], ViewElements] = {}
_DIRECTORIES: list[tempfile.TemporaryDirectory[str]] = []


def view_of(store: Path, **options: Any) -> TensorView:
    """Return the view of a store."""
    view: TensorView = ingest.open_store(store).as_zarr(**options)
    return view


def collected(names: AsyncIterator[str]) -> list[str]:
    """Return everything that an asynchronous iterator yields."""

    async def collect() -> list[str]:
        return [name async for name in names]

    return asyncio.run(collect())


def read_object(
    store: TensorView | MemoryStore, key: str, byte_range: ByteRequest | None = None
) -> bytes | None:
    """Return an object of a Zarr store, or a range of it; None if it does not exist."""
    buffer = asyncio.run(store.get(key, PROTOTYPE, byte_range))
    return None if buffer is None else buffer.to_bytes()


def array_at(view: TensorView, path: str) -> zarr.Array[Any]:
    """Return the array at a path."""
    return zarr.open_array(view, path=path, mode="r")


def only_array(view: TensorView) -> zarr.Array[Any]:
    """Return the array of a view that has a single one."""
    members = zarr.open_group(view, mode="r").members(max_depth=None)
    (array,) = [node for _, node in members if isinstance(node, zarr.Array)]
    return array


def stored_elements(values: npt.NDArray[np.int16], *, fortran: bool) -> ViewElements:
    """Return the elements of a tensor in a store; each shape and order is stored once."""
    key = values.shape, fortran
    if key not in _ELEMENTS:
        _DIRECTORIES.append(tempfile.TemporaryDirectory())
        directory = Path(_DIRECTORIES[-1].name)
        dump = MadeDump(directory / "dump")
        payload = values.tobytes("F" if fortran else "C")
        dump.add(npy_header("<i2", values.shape, fortran=fortran) + payload)
        ingest_directly(dump.root, directory / "store", SMALL_GRID)
        _ELEMENTS[key] = ViewElements(ingest.open_store(directory / "store").step(0, 0), 0)
    return _ELEMENTS[key]


# Nodes of a view: any name of a dump is a part of a path; keys and attributes are those of a Zarr store.


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


# Elements are shown in types that Zarr has, and read in parts; chunks cover the tensor.


PACKED = ("int4", "uint1", "int2", "uint2", "float4_e2m1fn")


CANN_TYPES = (*PACKED, "complex32", "hifloat8", "bfloat16", "float8_e4m3fn")


def cann_dump(made: MadeDump, outputs: list[Tensor]) -> None:
    """Add one file of CANN's format."""
    directory = made.root / "20260101000000/3/net/0/0"
    directory.mkdir(parents=True)
    (directory / "Op.of_all.5.2.1700000000000000").write_bytes(dump_data([], outputs))


@pytest.mark.parametrize("piece_nbytes", [1, 7, 1 << 20])
def test_types_that_zarr_lacks_are_shown_by_their_values(
    made: MadeDump, store: Path, piece_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = bytes(np.random.default_rng(1).permutation(256).astype(np.uint8)[:32])
    elements = [dtypes.from_name(name) for name in CANN_TYPES]
    cann_dump(
        made,
        [Tensor(payload, DATA_TYPES[e.name], (2, len(payload) * 8 // e.bits // 2)) for e in elements],
    )
    ingest_directly(made.root, store)
    monkeypatch.setattr("ingest.reader.zarr_nodes.CHUNK_NBYTES", piece_nbytes)
    opened = ingest.open_store(store)
    tensors = opened.tensors()
    assert [tensor.dtype for tensor in tensors] == list(CANN_TYPES)
    group = zarr.open_group(opened.as_zarr(), mode="r")
    arrays = [node for _, node in group.members(max_depth=None) if isinstance(node, zarr.Array)]
    by_type = {array.attrs["logical_dtype"]: np.asarray(array[...]) for array in arrays}
    shown = {"int4": "i1", "uint1": "u1", "int2": "i1", "uint2": "u1", "float4_e2m1fn": "f2"}
    for tensor in tensors:
        values, expected = by_type[tensor.dtype], tensor.read()
        if tensor.dtype in shown:
            assert values.dtype == np.dtype(shown[tensor.dtype])
            assert np.array_equal(values, expected.astype(values.dtype))
        elif tensor.dtype == "complex32":
            assert values.shape == (*expected.shape, 2)
            assert values.dtype == np.float16
            assert values.tobytes() == expected.tobytes()
        else:
            assert values.dtype == expected.dtype
            assert values.tobytes() == expected.tobytes()


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    data=st.data(),
    fortran=st.booleans(),
    wasted=st.sampled_from([1, 16, 1 << 20]),
    run=st.sampled_from([1, 24, 1 << 20]),
)
@settings(max_examples=100)
def test_a_part_is_what_numpy_would_return(
    shape: tuple[int, ...], data: st.DataObject, fortran: bool, wasted: int, run: int
) -> None:
    key = tuple(data.draw(st.one_of(st.slices(n), *([st.integers(0, n - 1)] if n else []))) for n in shape)
    values = np.arange(np.prod(shape, dtype=int), dtype=np.int16).reshape(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_like, "_WASTED_NBYTES", wasted)
        patch.setattr(array_like, "_RUN_NBYTES", run)
        found = stored_elements(values, fortran=fortran)[key]
    expected = values[key]
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


@given(
    shape=st.lists(st.integers(0, 9), max_size=4).map(tuple), fortran=st.booleans(), nbytes=st.integers(1, 99)
)
def test_chunks_are_contiguous_and_cover_the_tensor(
    shape: tuple[int, ...], fortran: bool, nbytes: int
) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.int16).reshape(shape)
    elements = stored_elements(values, fortran=fortran)
    array = ViewArray(elements, chunk_shape(elements, nbytes))
    assert all(length >= 1 for length in array.chunk)
    assert array.chunk_nbytes <= max(nbytes, 2)
    seen = np.zeros(values.size, int)
    for key in array.chunk_keys():
        index = array.chunk_index(key)
        assert index is not None
        first, count = array.extent(index)
        seen[first : first + count] += 1
    assert (seen == 1).all()


# Every tensor as a Zarr array of its own, read by zarr-python, xarray and dask as any other.


def test_the_tree_shows_ranks_steps_operators_and_their_tensors(nan_log: Path) -> None:
    group = zarr.open_group(view_of(nan_log), mode="r")
    assert sorted(group.group_keys()) == ["rank_0", "rank_1"]
    tree = str(group.tree(max_nodes=10_000))
    assert "├── step_1" in tree
    assert "Log.Default_net-LogLoss_Log-op0" in tree
    assert "└── output.0 (6, 4) float32" in tree


def test_xarray_opens_an_operator_and_a_step(nan_log: Path) -> None:
    view = view_of(nan_log)
    dataset = xr.open_zarr(view, group=LOG)
    assert dataset["output.0"].dims == ("d0_6", "d1_4")
    assert int(np.isnan(dataset["output.0"]).sum()) == 2
    place: Any = view  # its type is narrower than what xarray takes
    tree = xr.open_datatree(place, engine="zarr", group="rank_1/step_2")
    assert "Log.Default_net-LogLoss_Log-op0" in tree.children


_NUMBERS = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"]


_SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def npy_files(draw: st.DrawFn) -> tuple[str, tuple[int, ...], bool, bytes]:
    """Descr, shape, order and payload of an npy file: any bits, so NaN with any payload."""
    plain = (
        st.sampled_from(_NUMBERS).map(np.dtype).flatmap(lambda t: st.sampled_from([t, t.newbyteorder(">")]))
    )
    other = st.sampled_from(["<E2", "<U3", "|S5", "|V3", "<M8[ns]", ">c8"])
    descr = draw(st.one_of(plain.map(lambda dtype: dtype.str), other))
    shape = draw(_SHAPES)
    itemsize = 2 if descr == "<E2" else np.dtype(descr).itemsize
    size = int(np.prod(shape, dtype=int)) * itemsize
    payload = draw(st.binary(min_size=size, max_size=size))
    if descr == "|b1":  # numpy makes 1 of any other byte when it likes
        payload = bytes(byte & 1 for byte in payload)
    return descr, shape, draw(st.booleans()), payload


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=npy_files(), piece_nbytes=st.integers(1, 64))
def test_any_tensor_comes_back_bit_for_bit(
    file: tuple[str, tuple[int, ...], bool, bytes],
    piece_nbytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    descr, shape, fortran, payload = file
    directory = tmp_path_factory.mktemp("made")
    dump = MadeDump(directory / "dump")
    dump.add(npy_header(descr, shape, fortran=fortran) + payload)
    store = ingest_and_open(dump.root, directory / "store", SMALL_GRID)
    (tensor,) = store.tensors()
    expected = tensor.read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingest.reader.zarr_nodes.CHUNK_NBYTES", piece_nbytes)
        array = only_array(store.as_zarr())
        values = np.asarray(array[...])
    if values.ndim > expected.ndim:
        expected = np.frombuffer(expected.tobytes(), values.dtype).reshape(values.shape)
    elif expected.dtype.byteorder == ">":
        expected = expected.astype(values.dtype.newbyteorder(">")).view(expected.dtype)
        values = values.astype(expected.dtype)
    assert values.dtype == expected.dtype
    assert values.shape == expected.shape
    assert values.tobytes() == expected.tobytes()


def test_nothing_can_be_written(nan_log: Path) -> None:
    view = view_of(nan_log)
    assert view.read_only
    assert not view.supports_writes
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_group(view, mode="w")
    with pytest.raises(ValueError, match="read-only"):
        zarr.create_array(view, name="x", shape=(1,), dtype="i4")
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_group(view, mode="r").attrs["x"] = 1
    with pytest.raises(ValueError, match="read-only"):
        asyncio.run(view.delete("zarr.json"))


@pytest.mark.parametrize("harm", ["lost", "flipped"])
def test_damage_is_raised_and_never_filled_in(made: MadeDump, store: Path, harm: str) -> None:
    made.add(np.zeros(1000, np.float32))
    ingest_directly(made.root, store)
    (shard,) = store.glob("rank_0/step_0/*/tensors/float32/c/0")
    content = bytearray(shard.read_bytes())
    content[4] ^= 1
    shard.unlink() if harm == "lost" else shard.write_bytes(content)
    with pytest.raises(DamagedStore):
        only_array(view_of(store))[:]
