"""A file that really kills the workers of a command."""

from pathlib import Path

import numpy as np
import pytest

from ingest import open_store
from tests.cli import own_workers, run, run_here, start
from tests.poison.sitecustomize import KILLS_DECODER, KILLS_READER
from tests.stores import MadeDump, npy_header, tensor_name

pytestmark = [pytest.mark.dask, pytest.mark.slow]

ENV = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "poison"),
    "DUMP_INGEST_CONSOLIDATE": "false",
}


def test_poison_kills_a_worker_of_ingest_and_not_the_command(tmp_path: Path) -> None:
    """Whose workers are copies of it, and no cluster."""
    made, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    made.add(np.ones(50, "<f4"))
    made.add(npy_header("<f4", (16,)) + KILLS_DECODER.ljust(64), tensor_name("Evil.op"))
    done = run("ingest", made.root, "--store", store, env=ENV, code=4)
    assert done.stderr.count("the worker that took the task died (SIGKILL)") == 1
    said = run_here("ls", store, "--problems").stdout
    assert "Evil" in said
    assert "kills the process that decodes it" in said


@pytest.mark.campaign
def test_poison_costs_one_file_and_not_its_step_nor_others(tmp_path: Path) -> None:
    """Small steps share a task. What cannot be decoded is kept as bytes, what cannot be read is named."""
    made, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        for slot in range(3):
            made.add(np.full(50, slot + step, "<f4"), tensor_name(slot=slot), step=step)
    content = npy_header("<f4", (16,)) + KILLS_DECODER.ljust(64)
    made.add(content, tensor_name("Evil.op"), step=1)
    made.add(KILLS_READER, "notes.txt", step=1)

    words = ("watch", made.root, "--store", store)
    with start(*words, env=ENV) as watch:
        watch.wait_until(lambda: len(watch.events("step_committed")) == 3, timeout_s=90)
        poisoned = [event for event in watch.events("step_failed") if "died" in event["error"]]
        # One death of a worker: from then on, what dies are processes that are made for it.
        assert len(watch.events("task_retried")) == 3
        assert [event["step"] for event in poisoned] == [1, 1]
        watch.wait_until(lambda: len(own_workers(watch.pid)) == 1, timeout_s=60)
        assert watch.terminate() == 0

    steps = {key.step: open_store(store).step(key.rank, key.step) for key in open_store(store).keys}
    assert {n: step.commit.summary.status for n, step in steps.items()} == {
        0: "complete",
        1: "partial",
        2: "complete",
    }
    bad = steps[1]
    assert (bad.commit.summary.tensors, bad.commit.summary.quarantined) == (3, 2)
    kinds = dict(zip(bad.tables.label("source"), bad.tables.label("kind"), strict=True))
    evil = next(source for source in kinds if "Evil" in source)
    assert kinds[evil] == "quarantined"
    row = list(bad.tables.label("source")).index(evil)
    assert bytes(bad.read(row)) == content

    said = run_here("ls", store, "--problems").stdout
    for word in ("Evil", "kills the process that decodes it", "notes.txt", "kills the process that reads it"):
        assert word in said

    # A new watcher learns from the store what is poison: it kills nobody, and commits nothing.
    again = run("ingest", *words[1:], "--json", env=ENV)
    assert again.json == []
    assert "retrying" not in again.stderr
