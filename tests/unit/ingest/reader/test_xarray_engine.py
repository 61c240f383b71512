"""A store as a dataset of xarray."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xarray as xr

import ingest
from ingest.reader import xarray_engine
from tests.counted_requests import CountedRequests
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import UsageError
from workers.store.model import Grid

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def opened(store: Path, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine="dump-ingest", **options)


def test_every_tensor_of_a_step_is_a_variable(nan_log: Path) -> None:
    dataset = opened(nan_log, rank=1, step=2)
    tensors = ingest.open_store(nan_log).tensors(rank=1, step=2)
    assert list(dataset) == [tensor.name for tensor in tensors]  # in order of execution
    for tensor in tensors:
        variable = dataset[tensor.name]
        assert variable.dims == tuple(f"d{axis}_{n}" for axis, n in enumerate(tensor.shape))
        assert variable.attrs["digest"] == tensor.digest
        assert variable.values.tobytes() == tensor.read().tobytes()
    assert (dataset.attrs["rank"], dataset.attrs["step"], dataset.attrs["status"]) == (1, 2, "complete")


@pytest.mark.parametrize("key", [(slice(2, 5), 3), (-1, slice(None, None, -2)), ([4, 1], [0, 3]), (..., 0)])
def test_parts_are_those_of_numpy(made: MadeDump, store: Path, key: Any) -> None:
    values = np.arange(60, dtype=np.float32).reshape(6, 10)
    made.add(np.asfortranarray(values))
    ingest_directly(made.root, store)
    (variable,) = opened(store, rank=0, step=0).values()
    index = {
        f"d{axis}_{n}": k for axis, (n, k) in enumerate(zip(values.shape, key, strict=True)) if k is not ...
    }
    expected = values[np.ix_(*key)] if isinstance(key[0], list) else values[key]
    assert np.array_equal(variable.isel(index).values, expected)


def test_a_part_reads_no_more_than_it_needs(made: MadeDump, store: Path, requests: CountedRequests) -> None:
    made.add(np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32))
    ingest_directly(made.root, store, Grid(chunk_nbytes=64 * 1024))
    (lazy,) = opened(store, rank=0, step=0).values()
    dask = lazy.chunk({"d0_1024": 128})
    requests.clear()
    assert lazy[500, 7].values.dtype == np.float32
    assert sum(requests.range_nbytes) < 150_000  # the index of the shard, and one chunk
    requests.clear()
    assert dask[:128].mean().compute().dtype == np.float32
    assert 0 < sum(requests.range_nbytes) < 700_000


def test_bfloat16_is_written_on_as_it_is(made: MadeDump, store: Path, tmp_path: Path) -> None:
    made.add(np.arange(8).astype(ml_dtypes.bfloat16))
    ingest_directly(made.root, store)
    dataset = opened(store, rank=0, step=0)
    dataset.to_zarr(tmp_path / "copy.zarr", consolidated=False)
    (copy,) = xr.open_zarr(tmp_path / "copy.zarr", consolidated=False).values()
    assert copy.dtype == ml_dtypes.bfloat16
    assert copy.values.tobytes() == next(iter(dataset.values())).values.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "`rank` is given and `step` is not"),
        ({"step": 1}, "`step` is given and `rank` is not"),
        ({"rank": 9, "step": 1}, "rank 9 step 1 is not in the store"),
        ({"rank": "a", "step": 1}, "'a' is not a rank or a step"),
        ({}, "no consolidated view"),
        ({"storage_options": {"secret": "x"}}, "looks like a credential"),
    ],
)
def test_a_wrong_request_says_what_to_give(nan_log: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        opened(nan_log, **options)
    assert raised.value.hint


def test_a_partial_step_is_refused_unless_it_is_asked_for(made: MadeDump, store: Path) -> None:
    made.add(np.zeros(4, np.float32), tensor_name("A.a"))
    made.add(b"\x93NUMPY, but no more", tensor_name("B.b"))
    ingest_directly(made.root, store)
    with pytest.raises(UsageError, match="rank 0 step 0 is partial: 1 file quarantined"):
        opened(store, rank=0, step=0)
    assert list(opened(store, rank=0, step=0, include_partial=True)) == ["A.a.output.0"]


def test_step_with_many_tensors_needs_a_name(nan_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook would show each of its variables: 24 MB for 5000."""
    monkeypatch.setattr(xarray_engine, "MAX_VARIABLES", 100)
    with pytest.raises(UsageError, match=r"rank 1 step 2 has 243 tensors.*\n.*name=.\*Log\*"):
        opened(nan_log, rank=1, step=2)
    assert list(opened(nan_log, rank=1, step=2, name="Log.*output.0")) == [LOG]
    assert list(opened(nan_log, rank=1, step=2, name=LOG)) == [LOG]
    assert len(opened(nan_log, rank=1, step=2, name="*")) == 243
    with pytest.raises(UsageError, match="no tensor is named 'log'"):
        opened(nan_log, rank=1, step=2, name="log")
    with pytest.raises(UsageError, match="`name` is given without `rank` and `step`"):
        opened(nan_log, name="*")
