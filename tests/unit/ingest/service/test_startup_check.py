"""A service that begins says what a listing shows of damage, once, and keeps nobody waiting."""

import time
from pathlib import Path

import numpy as np

from ingest.reader.verifying import ExpectedObjects
from ingest.service.rechecks import StartupCheck, expected_of
from ingest.steps.state import StepTable
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.model import StepKey
from workers.store import commit
from workers.store.opening import connect, resolve


def test_missing_objects_are_reported_once(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path / "dump")
    for step in range(3):
        dump.add(np.arange(5.0), step=step)
    ingest_directly(dump.root, tmp_path / "run.zarr")
    objects = connect(resolve(tmp_path / "run.zarr"))
    keys = [StepKey(0, step) for step in range(3)]
    table = StepTable()
    for key, record in commit.read_records(objects, keys).items():
        table.ensure(key).stored = ExpectedObjects.of(record)
    assert expected_of(table).keys() == set(keys)
    (path,) = (tmp_path / "run.zarr").glob("rank_0/step_1/*/tensors/float64/c/0")
    path.unlink()
    look = StartupCheck(objects)
    deadline = time.monotonic() + 30
    while not (events := look.poll(table)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [(event.key, "0 of 1 shards" in event.reason) for event in events] == [(StepKey(0, 1), True)]
    assert look.poll(table) == []
