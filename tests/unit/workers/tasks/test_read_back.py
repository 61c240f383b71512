"""Reading back: every byte of a source file is compared with what the store has of it."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all, run
from workers.errors import DamagedStore, DumpIngestError, SourceChanged, SourceDiffers, TensorsRemoved
from workers.store import commit
from workers.store.opening import open_objects
from workers.store.record import WithoutTensors
from workers.tasks.model import StepPlan
from workers.tasks.read_back import ReadBackJob, ReadBackVerdict, read_back


@pytest.fixture
def plan(made: MadeDump, store: Path) -> StepPlan:
    """A committed step of two tensors and a table."""
    for slot in range(2):
        made.add(np.arange(40, dtype="<f4") + slot, tensor_name(slot=slot))
    made.add(b"a,b\n", "table.csv")
    (planned,) = plan_all(made.root, store)
    run(planned)
    return planned


def job_of(plan: StepPlan) -> ReadBackJob:
    files = tuple(dict.fromkeys(entry.source for entry in plan.entries))
    return ReadBackJob(plan.key, 0, plan.fingerprint, plan.origin.root, plan.store, files)


def test_every_byte_is_compared(plan: StepPlan) -> None:
    result = read_back(job_of(plan))
    assert result.verdicts.tolist() == [ReadBackVerdict.SAME] * 3
    assert result.nbytes == plan.nbytes


@pytest.mark.parametrize("at", [20, -1])
def test_a_byte_written_in_place_is_found_though_the_time_is_set_back(plan: StepPlan, at: int) -> None:
    """In the header, which no digest covers, as in the payload."""
    path = Path(plan.origin.root) / plan.entries[-1].source.path
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SourceDiffers, match=r"rank 0 step 0: .* differs from the store"):
        read_back(job_of(plan))


def test_a_file_that_the_commit_does_not_have_as_it_is_now_is_told(plan: StepPlan) -> None:
    path = Path(plan.origin.root) / plan.entries[-1].source.path
    os.utime(path, ns=(1, 1))
    (again,) = plan_all(Path(plan.origin.root), plan.store.url)
    job = job_of(again)
    result = read_back(ReadBackJob(job.key, 0, plan.fingerprint, job.root, job.store, job.files))
    assert sorted(result.verdicts.tolist()) == [
        ReadBackVerdict.SAME,
        ReadBackVerdict.SAME,
        ReadBackVerdict.NOT_STORED,
    ]


def test_a_missing_shard_a_later_generation_and_removed_tensors_are_told_apart(
    plan: StepPlan, store: Path
) -> None:
    (shard,) = (path for path in (store / "rank_0/step_0").rglob("c/0") if "tensors" in path.parts)
    shard.rename(shard.with_name("away"))
    with pytest.raises(DamagedStore):
        read_back(job_of(plan))
    objects = open_objects(plan.store)
    current = commit.read(objects, plan.key)
    assert current is not None
    commit.drop_tensors(objects, current, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))
    with pytest.raises(TensorsRemoved):
        read_back(job_of(plan))
    (Path(plan.origin.root) / "rank_0/Net/0/0/table.csv").write_text("a,b\n1,2\n")
    ingest_directly(Path(plan.origin.root), store)
    with pytest.raises(SourceChanged, match="another generation"):
        read_back(job_of(plan))


def test_a_partial_step_is_refused(made: MadeDump, store: Path) -> None:
    made.add(b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False", tensor_name())
    (planned,) = plan_all(made.root, store)
    run(planned)
    with pytest.raises(DumpIngestError, match="is partial"):
        read_back(job_of(planned))
