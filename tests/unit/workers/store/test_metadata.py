"""Metadata documents: strict JSON that Zarr readers take, and packed grids that come back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr

from workers.arrays import dtypes
from workers.store import metadata
from workers.store.model import ArraySpec
from workers.store.zarr_dtypes import register

register()
SPEC = ArraySpec("tensors/float32", "float32", 4, big_endian=True, chunk=8, chunks_per_shard=4)


@pytest.mark.parametrize(
    "data_type", ["bool", "int8", "uint64", "float16", "bfloat16", "float8_e8m0fnu", "complex64", "float64"]
)
def test_zarr_python_reads_zero_bits_where_nothing_was_written(data_type: str, tmp_path: Path) -> None:
    itemsize = dtypes.from_name(data_type).itemsize
    spec = ArraySpec("tensors/x", data_type, itemsize, big_endian=False, chunk=8, chunks_per_shard=4)
    (tmp_path / "zarr.json").write_bytes(metadata.encode(metadata.packed_array(spec, 5)))
    array: Any = zarr.open_array(tmp_path, mode="r")
    assert array.metadata.dimension_names == ("x_element",)
    values = array[:]
    assert values.shape == (5,)
    assert values.tobytes() == bytes(values.nbytes)


@pytest.mark.parametrize(
    "spec", [SPEC, replace(SPEC, sparse="zstd"), replace(SPEC, dense="shuffle", sparse="zstd_quick")]
)
def test_a_packed_grid_comes_back(spec: ArraySpec) -> None:
    assert metadata.packed_spec("tensors/float32", metadata.packed_array(spec, 100)) == spec


@pytest.mark.parametrize(
    ("chunk", "shard"), [(0, 32), (8, 33), (8.0, 32), (True, 32), (8, 2**62), (2**31, 2**31)]
)
def test_an_impossible_grid_is_refused(chunk: Any, shard: Any) -> None:
    document = metadata.packed_array(SPEC, 100)
    document["codecs"][0]["configuration"]["chunk_shape"] = [chunk]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [shard]
    with pytest.raises(ValueError, match="an impossible"):
        metadata.packed_spec("tensors/float32", document)


@pytest.mark.parametrize("document", [{}, {"attributes": []}, {"attributes": {}}, [], None])
def test_a_document_without_our_attributes_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing"):
        metadata.own_attributes(json.dumps(document).encode())
