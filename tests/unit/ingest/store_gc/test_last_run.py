"""The record that gc leaves in a store."""

from pathlib import Path

import pytest
import zarr

from ingest.store_gc.execute import KEY, GcRuns, read_last_runs, record_run, recorded
from workers.errors import StoreDenied
from workers.store import commit
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    found = open_objects(resolve(str(tmp_path / "run.zarr")))
    commit.ensure_root(found)
    return found


def test_the_record_is_plain_zarr_and_keeps_both_ends(objects: ObjectStore) -> None:
    assert read_last_runs(objects) is None
    record_run(objects, clock=lambda: 10.0)
    record_run(objects, "denied", clock=lambda: 20.0)
    runs = read_last_runs(objects)
    assert runs == GcRuns(10.0, 20.0, "denied")
    assert runs.is_failing
    group = zarr.open_group(objects.address.url, mode="r")["gc"]
    assert group.attrs["dump_ingest"] == {"succeeded_at": 10.0, "failed_at": 20.0, "reason": "denied"}
    record_run(objects, clock=lambda: 30.0)
    assert not (read_last_runs(objects) or GcRuns()).is_failing


def test_the_end_of_a_block_is_recorded(objects: ObjectStore) -> None:
    message = "it may not delete"
    with pytest.raises(StoreDenied), recorded(objects):
        raise StoreDenied(message)
    runs = read_last_runs(objects)
    assert runs is not None
    assert (runs.is_failing, runs.reason) == (True, message)
    with recorded(objects):
        pass
    assert not (read_last_runs(objects) or GcRuns()).is_failing


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"attributes": {"dump_ingest": {"failed_at": "x"}}}'])
def test_a_damaged_record_says_nothing(data: bytes, objects: ObjectStore) -> None:
    objects.put(KEY, data)
    assert read_last_runs(objects) is None
