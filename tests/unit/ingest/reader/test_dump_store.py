"""A store as users open it."""

from pathlib import Path

import pytest
import zarr

import ingest
from ingest.api import DumpStore, open_store
from tests.counted_requests import CountedRequests
from workers.errors import DumpIngestError, UsageError
from workers.model import StepKey


def test_store_is_not_read_before_it_is_asked(many: Path, requests: CountedRequests) -> None:
    opened = open_store(many)
    assert isinstance(opened, DumpStore)
    assert requests.of(lambda: repr(opened)) == 0


def test_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(DumpIngestError, match="no dump-ingest store"):
        open_store(str(tmp_path / "nothing"))


def test_opening_takes_one_request(many: Path, requests: CountedRequests) -> None:
    assert requests.of(lambda: open_store(many)) == 1


def test_snapshot_and_cubes_are_those_of_the_store(filled: DumpStore) -> None:
    assert filled.snapshot(rank=1, step=9).keys == [StepKey(1, 9)]
    with pytest.raises(UsageError, match="no consolidated view") as raised:
        filled.consolidated()
    assert f"dump-ingest consolidate {filled.url}" in raised.value.hint
    ingest.consolidate(filled.url)
    assert filled.consolidated().steps.tolist() == [8, 9]


def test_verify_reads_the_chosen_steps_alone(filled: DumpStore, store: Path) -> None:
    for rank in (0, 1):
        (path,) = store.glob(f"rank_{rank}/step_9/*/tensors/float32/c/0")
        path.unlink()
    assert {damage.key for damage in filled.verify()} == {StepKey(0, 9), StepKey(1, 9)}
    assert {damage.key for damage in filled.verify(rank=1)} == {StepKey(1, 9)}
    assert list(filled.verify(step=8)) == []
    with pytest.raises(UsageError, match="no rank 7"):
        list(filled.verify(rank=7))


def test_view_shows_the_tensors(filled: DumpStore) -> None:
    group = zarr.open_group(filled.as_zarr(), path="rank_1/step_9", mode="r")
    assert sorted(group.group_keys()) == ["Log.b", "MatMul.a"]
