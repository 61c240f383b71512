"""What a listing shows of damage, without reading an object."""

from pathlib import Path

import numpy as np
import pytest

from ingest.reader.verifying import ExpectedObjects, damage_in_listing
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.model import StepKey
from workers.store import commit
from workers.store.opening import connect, resolve


@pytest.mark.parametrize(
    ("pattern", "content", "reason"),
    [
        ("", None, ""),
        ("*/tensors/float64/c/0", None, "0 of 1 shards are there"),
        ("*/tensors/float64/c/0", b"short", "its shards have 5 bytes instead of"),
        ("*/index/numbers/c/0/0", None, "index/numbers/c/0/0 is missing or empty"),
        ("*/statistics/c/0/0", b"", "statistics/c/0/0 is missing or empty"),
        ("*/zarr.json", None, "zarr.json is missing or empty"),
    ],
)
def test_what_is_missing_is_named(pattern: str, content: bytes | None, reason: str, tmp_path: Path) -> None:
    dump = MadeDump(tmp_path / "dump")
    for rank in range(2):
        dump.add(np.arange(5.0), step=1, rank=rank)
    ingest_directly(dump.root, tmp_path / "run.zarr")
    objects = connect(resolve(tmp_path / "run.zarr"))
    records = commit.read_records(objects, [StepKey(0, 1), StepKey(1, 1)])
    expected = {key: ExpectedObjects.of(record) for key, record in records.items()}
    if pattern:
        (path,) = (tmp_path / "run.zarr/rank_1/step_1").glob(pattern)
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    damages = damage_in_listing(objects, expected)
    assert [damage.key for damage in damages] == ([StepKey(1, 1)] if reason else [])
    assert all(reason in damage.reason for damage in damages)
