"""What lies beside the steps is verified, too."""

import time
from pathlib import Path

import numpy as np

from ingest.reader.verify_view import uncommitted, verify_surroundings
from tests.gc_stores import age
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.model import StepKey
from workers.store.opening import connect, resolve


def test_a_step_without_a_commit_is_noticed_after_a_day(tmp_path: Path) -> None:
    """Until then somebody may be writing it."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        dump.add(np.arange(5.0), step=step)
    ingest_directly(dump.root, store)
    objects = connect(resolve(store))
    (store / "rank_0/step_1/zarr.json").unlink()
    (store / "rank_0/step_2/zarr.json").write_text("{}")  # damaged, not missing
    assert uncommitted(objects) == []
    age(store)
    assert uncommitted(objects) == [StepKey(0, 1)]
    assert uncommitted(objects, now=time.time() - 2 * 86400.0) == []


def test_a_store_without_a_view_is_not_damaged(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.arange(5.0), step=1)
    ingest_directly(dump.root, store)
    objects = connect(resolve(store))
    assert list(verify_surroundings(objects)) == []
    (store / "rank_0/zarr.json").write_text('{"node_type": "array"}')
    (damage,) = verify_surroundings(objects)
    assert str(damage) == "rank_0/zarr.json is not the metadata of a group"
