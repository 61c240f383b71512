"""Committed steps that are made up."""

from pathlib import Path

from bench.steps import CountingStore, commit_tables, make_tables
from ingest.api import open_store
from workers.model import StepKey
from workers.store import commit
from workers.store.opening import open_objects, resolve


def test_made_steps_are_found_by_their_nan(tmp_path: Path) -> None:
    objects = open_objects(resolve(str(tmp_path / "run.zarr")))
    commit.ensure_root(objects)
    for step in range(2):
        key = StepKey(0, step)
        commit_tables(objects, key, make_tables(key, ["a", "b", "c"], [1] if step else []))
    (tensor,) = open_store(tmp_path / "run.zarr").tensors(where="nan_count > 0")
    assert (tensor.step, tensor.op_name) == (1, "b")


def test_requests_are_counted(tmp_path: Path) -> None:
    objects = open_objects(resolve(str(tmp_path)))
    objects.put("a", b"1")
    counting = CountingStore(objects)
    assert counting.get("a") == b"1"
    assert counting.get_many(["a", "b"]) == {"a": b"1"}
    assert counting.requests == 3
