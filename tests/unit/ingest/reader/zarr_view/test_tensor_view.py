"""Every tensor as a Zarr array of its own, read by zarr-python, xarray and dask as any other."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ingest
from tests.npy_files import MadeDump, npy_header
from tests.pipeline import SMALL_GRID, ingest_directly
from tests.zarr_views import only_array, view_of
from workers.errors import DamagedStore

LOG = "rank_1/step_2/Log.Default_net-LogLoss_Log-op0"


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
    ingest_directly(dump.root, directory / "store", SMALL_GRID)
    store = ingest.open_store(directory / "store")
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
