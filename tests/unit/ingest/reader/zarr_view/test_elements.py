"""Elements are shown in types that Zarr has, and read in parts; chunks cover the tensor."""

from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import ingest
from ingest.reader import array_like
from ingest.reader.zarr_nodes import ViewArray, chunk_shape
from tests.dump_data_writer import DATA_TYPES, Tensor, dump_data
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.zarr_views import stored_elements
from workers.arrays import dtypes

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
