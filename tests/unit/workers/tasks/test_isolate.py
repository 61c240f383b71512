"""Processes of their own, that really die."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ingest import open_store
from ingest.dispatch.submitter import StepCommitted, StepFailed
from tests.hanging import HangingFiles
from tests.poison.sitecustomize import EATS_MEMORY, KILLS_DECODER, KILLS_ONCE
from tests.pools import SIZE, PooledRun, replicas, small_pools
from tests.services import FakeClient, observed_service
from tests.stores import MadeDump, npy_header, plan_all, tensor_name
from workers.errors import PoisonedFile, WorkerDied
from workers.model import MIB
from workers.tasks import isolate
from workers.tasks.isolate import convert_in_subprocess
from workers.tasks.model import ShardJob


@pytest.fixture(autouse=True)
def deadly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3] / "poison"))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each process was to do."""
    orders: list[str] = []
    carry_out = isolate._carry_out

    def counting(order: isolate._Order) -> isolate._Outcome:
        orders.append(order.what)
        return carry_out(order)

    monkeypatch.setattr(isolate, "_carry_out", counting)
    return orders


def job_with(made: MadeDump, store: Path, payload: bytes, *, name: str | None = None) -> ShardJob:
    """Return a job that reads this payload between those of good tensors."""
    made.add(np.arange(5, dtype="<f4"), tensor_name(slot=0))
    padded = payload.ljust(256, b"\n")
    content = padded if name else npy_header("<f4", (64,)) + padded
    made.add(content, name or tensor_name(slot=1))
    made.add(np.ones(7, "<f4"), tensor_name(slot=2))
    (plan,) = plan_all(made.root, store)
    (job,) = plan.jobs
    return job


def sources_in_pool(job: ShardJob) -> set[str]:
    """Return the files whose payloads a job packs into the pool."""
    rows = [row for segment in job.segments if segment.pooled for row in segment.rows]
    return {job.entries[row].source.path for row in rows}


def test_file_that_takes_all_memory_is_named(
    made: MadeDump, store: Path, processes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that kills its process otherwise is in `tests/integration/test_keeping.py`."""
    monkeypatch.setattr(isolate, "_memory_left", lambda: 300 * MIB)
    job = job_with(made, store, EATS_MEMORY)
    with pytest.raises(PoisonedFile, match="out of memory") as caught:
        convert_in_subprocess(job)
    assert ".output.1." in caught.value.path
    assert processes == ["write", "read", "control", "read", "control"]


def test_file_whose_payload_belongs_into_the_pool_is_named(
    tmp_path: Path, processes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only reads does not write into the pool either."""
    monkeypatch.setattr(isolate, "DEATHS_ALONE", 1)
    small_pools(monkeypatch)
    run = PooledRun(tmp_path)
    run.begin(2, replicas(0))
    run.add(0, 1, replicas(1)(0))
    source = next(run.dump.root.glob("rank_0/*/*/1/*weight0*"))
    source.write_bytes(npy_header("<f4", (SIZE,)) + KILLS_DECODER.ljust(4 * SIZE))
    path = source.relative_to(run.dump.root).as_posix()
    job = next(job for job in run.plan(0, 1).jobs if path in sources_in_pool(job))
    with pytest.raises(PoisonedFile) as caught:
        convert_in_subprocess(job)
    assert caught.value.path == path
    assert processes == ["write", "read", "control"]


def test_file_during_which_a_process_happened_to_die_is_not_blamed(
    made: MadeDump, store: Path, tmp_path: Path, processes: list[str]
) -> None:
    """It was killed because of a neighbour, or somebody did it."""
    job = job_with(made, store, KILLS_ONCE + str(tmp_path / "done").encode())
    with pytest.raises(WorkerDied, match="another one did not"):
        convert_in_subprocess(job)
    assert processes == ["write", "read"]
    assert convert_in_subprocess(job).rows.tolist() == [0, 1, 2]


def test_file_is_not_blamed_where_everything_dies(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without memory kills whatever asks for some."""
    monkeypatch.setattr(isolate, "_memory_left", lambda: 300 * MIB)
    monkeypatch.setattr(isolate, "MAX_CONVERTED_BYTES", 0)
    monkeypatch.setattr(isolate, "PIECE_BYTES", 2048 * MIB)
    job = job_with(made, store, KILLS_DECODER)
    with pytest.raises(WorkerDied, match="read nothing"):
        convert_in_subprocess(job)


@pytest.mark.timeout(300)
def test_file_that_hangs_when_it_is_read_costs_itself_alone(
    made: MadeDump,
    store: Path,
    processes: list[str],
    make_hanging: Callable[[Callable[[], None]], HangingFiles],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read that the kernel does not let go on, as of a file server that has gone, in real processes.

    A task that did not end in time before is up to the task monitor, and is left out here.
    """
    carry_out = isolate._carry_out

    def patiently(order: isolate._Order) -> isolate._Outcome:
        # Until the process hangs: one that starts slowly must not count as one that hangs.
        monkeypatch.setattr(isolate, "ROW_TIMEOUT_S", 60.0)
        return carry_out(order)

    monkeypatch.setattr(isolate, "_carry_out", patiently)
    monkeypatch.setattr(isolate, "_WATCH_CHILD_S", 0.1)
    monkeypatch.setattr(isolate, "DEATHS_ALONE", 1)
    hanging = make_hanging(lambda: monkeypatch.setattr(isolate, "ROW_TIMEOUT_S", 0.2))
    job = job_with(made, store, b"harmless")
    (path,) = {entry.source.path for entry in job.entries.values() if ".output.1." in entry.source.path}
    hanging.add(made.root / path)
    client = FakeClient()
    service, heard = observed_service(made, store, client=cast("Any", client))
    service.tick()
    client.pending[0].fail(WorkerDied("a task did not come to an end"))
    until = time.monotonic() + 240
    while not heard.of(StepCommitted) and time.monotonic() < until:
        service.tick()
        for future in client.pending:
            future.run()
    # First its content counts as what cannot be decoded, and then as what cannot be read.
    assert processes == [*["write", "read", "control"] * 2, "write"]
    for failed in heard.of(StepFailed):
        assert f"a process that read {path} died (it hung)" in failed.error.message
    (committed,) = heard.of(StepCommitted)
    assert (committed.summary.tensors, committed.summary.quarantined) == (2, 1)
    tables = open_store(store).step(0, 0).tables
    kinds = dict(zip(tables.label("source"), tables.label("kind"), strict=True))
    assert [source for source, kind in kinds.items() if kind == "quarantined"] == [path]
