"""Tensor files beside a dump are named, and those of the dump and of stores are not."""

from pathlib import Path

import pytest

from ingest.layouts.detect import find_dump
from ingest.layouts.places import tensors_beside


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The directory of a job: a dump, a checkpoint two levels down, a store, and logs."""
    for path in (
        "job/run/dump/rank_0/Net/0/1/Mul.op.0.0.1.output.0.DefaultFormat.Float32.npy",
        "job/run/last/model.safetensors",
        "job/mine/a/b/x.pt",
        "job/store.zarr/zarr.json",
        "job/store.zarr/rank_0/x.npy",
        "job/logs/log.txt",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path / "job"


def test_what_a_dump_that_is_found_below_leaves_is_named(job: Path) -> None:
    root = find_dump(job).root
    assert root == job / "run" / "dump"
    assert tensors_beside(job, root) == (job / "mine", job / "run" / "last")
    assert tensors_beside(job / "run", root) == (job / "run" / "last",)


def test_a_dump_that_is_named_has_nothing_beside_it(job: Path) -> None:
    root = job / "run" / "dump"
    assert tensors_beside(root, root) == ()
    assert tensors_beside(root / "rank_0", root) == ()
