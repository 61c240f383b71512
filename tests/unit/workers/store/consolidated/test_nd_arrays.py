"""Chunks of N-dimensional arrays: what is written is what zarr-python reads, and damage is named."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workers.errors import DamagedStore
from workers.store.consolidated.nd_arrays import ArrayLayout

PLAIN = ArrayLayout("plain", "int64", ("a", "b"), (3, 4), -1)
SHARDED = ArrayLayout("sharded", "float64", ("a", "b", "c"), (1, 3, 8), float("nan"), 2, 2)
TEXT = ArrayLayout("text", "string", ("a",), (5,), "")


@given(values=hnp.arrays(np.int64, (5, 7)))
def test_a_plain_array_comes_back_chunk_by_chunk(values: np.ndarray[Any, Any]) -> None:
    for index, key in PLAIN.keys(values.shape).items():
        part = values[index[0] * 3 : index[0] * 3 + 3, index[1] * 4 : index[1] * 4 + 4]
        decoded = PLAIN.decode(PLAIN.encode(part), key)
        np.testing.assert_array_equal(decoded[: part.shape[0], : part.shape[1]], part)
        assert (decoded[part.shape[0] :] == -1).all()


@given(values=hnp.arrays(np.float64, (1, 3, 8)))
def test_a_sharded_array_comes_back_bit_for_bit(values: np.ndarray[Any, Any]) -> None:
    assert SHARDED.decode(SHARDED.encode(values), "here").tobytes() == values.tobytes()


@given(values=hnp.arrays(np.float64, (1, 3, 8), elements=st.sampled_from([0.0, 1.0])))
def test_the_inner_chunks_of_an_object_are_its_parts(values: np.ndarray[Any, Any]) -> None:
    """Equal ones in a row are decoded once."""
    parts = list(SHARDED.inner_parts(SHARDED.encode(values), "here"))
    np.testing.assert_array_equal(np.concatenate(parts, axis=2), values)
    for before, part in pairwise(parts):
        assert (part is before) == np.array_equal(part, before)
    (only,) = PLAIN.inner_parts(PLAIN.encode(PLAIN.full()), "here")
    np.testing.assert_array_equal(only, PLAIN.full())


@pytest.mark.parametrize(
    ("layout", "shape"),
    [(PLAIN, (5, 7)), (SHARDED, (4, 5, 11)), (TEXT, (7,))],
    ids=lambda value: str(value)[:20],
)
def test_zarr_python_reads_what_is_written(
    layout: ArrayLayout, shape: tuple[int, ...], tmp_path: Path
) -> None:
    values: np.ndarray[Any, Any] = np.arange(np.prod(shape)).reshape(shape).astype(layout.dtype)
    if layout.data_type == "string":
        values = np.array([f"name {i} é" for i in range(shape[0])], object)
    for index, key in layout.keys(shape).items():
        place = tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, layout.chunk, strict=True))
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(layout.encode(values[place]))
    (tmp_path / layout.path / "zarr.json").write_text(json.dumps(layout.document(shape)))

    array: Any = zarr.open_array(tmp_path / layout.path, mode="r")

    assert array[:].tolist() == values.tolist()
    assert array.metadata.dimension_names == layout.dimensions


@pytest.mark.parametrize("layout", [PLAIN, SHARDED, TEXT], ids=lambda layout: layout.path)
@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_changed_byte_is_damage_and_the_object_is_named(layout: ArrayLayout, place: int) -> None:
    data = bytearray(layout.encode(layout.full()))
    data[place] ^= 1
    with pytest.raises(DamagedStore, match="c/0"):
        layout.decode(bytes(data), "c/0")


@pytest.mark.parametrize("layout", [PLAIN, SHARDED, TEXT], ids=lambda layout: layout.path)
def test_an_object_that_was_cut_is_damage(layout: ArrayLayout) -> None:
    data = layout.encode(layout.full())
    for length in range(len(data)):
        with pytest.raises(DamagedStore):
            layout.decode(data[:length], "c/0")


def test_a_chunk_of_another_size_is_damage_before_it_is_decompressed() -> None:
    larger = ArrayLayout("plain", "int64", ("a", "b"), (3, 4096), -1)
    with pytest.raises(DamagedStore, match="98304 bytes"):
        PLAIN.decode(larger.encode(larger.full()), "c/0")
