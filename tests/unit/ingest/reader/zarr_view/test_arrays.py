"""The chunks of an array cover the tensor, and are read in parts."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.zarr_view.arrays import ViewArray
from ingest.reader.zarr_view.elements import chunk_shape
from tests.counted_requests import CountedRequests
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.zarr_views import only_array, stored_elements, view_of
from workers.store.model import Grid


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
        first, count = array._elements_of(index)
        seen[first : first + count] += 1
    assert (seen == 1).all()


def test_a_slice_reads_no_more_chunks_than_it_touches(
    made: MadeDump, store: Path, requests: CountedRequests
) -> None:
    values = np.arange(6 * 1024 * 1024, dtype=np.float32).reshape(6 * 1024, 1024)
    made.add(np.random.default_rng(0).permutation(values))
    ingest_directly(made.root, store, Grid(chunk_nbytes=64 * 1024))
    array = only_array(view_of(store))
    assert array.chunks == (256, 1024)
    requests.clear()
    array[1000:1010, 5]
    (fetched,) = [
        nbytes for (_, stop), nbytes in zip(requests.ranges, requests.range_nbytes, strict=True) if stop
    ]
    assert fetched <= 1024 * 1024 * 1.1
