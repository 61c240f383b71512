"""Steps that are kept without the payloads of their tensors."""

from pathlib import Path

import pytest
import zarr

import ingest
from tests.dumps import DumpLibrary
from tests.in_process import run_here
from tests.pipeline import ingest_directly
from workers.errors import TensorsRemoved
from workers.model import StepKey
from workers.store import commit
from workers.store.model import StoreAddress
from workers.store.opening import open_objects
from workers.store.record import WithoutTensors

WHY = WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "no anomaly within 3 steps")
KEY = StepKey(1, 2)


@pytest.fixture
def store(dumps: DumpLibrary, tmp_path: Path) -> Path:
    """A store of which rank 1 step 2, where the NaN is born, has lost its tensors."""
    path = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", path)
    objects = open_objects(StoreAddress(str(path)))
    found = commit.read(objects, KEY)
    assert found is not None
    after = commit.drop_tensors(objects, found, WHY)
    assert after.without_tensors == WHY
    assert after.fingerprint == found.fingerprint
    assert after.summary.stored_bytes < found.summary.stored_bytes
    assert after.summary.nan_count == found.summary.nan_count
    for shard in found.record.stored.keys() - after.record.stored.keys():
        (path / found.prefix / shard).unlink()
    return path


def test_everything_but_values_is_there(store: Path) -> None:
    opened = ingest.open_store(store)
    assert list(opened.verify()) == []
    assert not opened.step(1, 2).has_tensors
    assert opened.step(0, 2).has_tensors
    assert next(tensor.op_type for tensor in opened.tensors(where="nan_count > 0")) == "Log"
    origin = ingest.origin(opened)
    assert (origin.rank, origin.step, origin.op_type) == (1, 2, "Log")


def test_values_are_refused_with_the_reason(store: Path) -> None:
    tensor = ingest.open_store(store).tensors(rank=1, step=2, where="nan_count > 0")[0]
    with pytest.raises(TensorsRemoved, match=r"rank 1 step 2: the tensors were removed on 2026-01-02T03:04"):
        tensor.read()
    assert str(WHY) in run_here("show", store, "Log*output.0", "--rank", "1", "--step", "2").stdout


def test_a_plain_zarr_reader_finds_no_array_to_fill_with_zeros(store: Path) -> None:
    generation = ingest.open_store(store).step(1, 2).fingerprint
    leaf = zarr.open_group(store / KEY.path, mode="r")
    assert f"{generation}/statistics" in leaf
    assert f"{generation}/tensors" not in leaf
