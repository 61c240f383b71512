"""Reading back: every byte of a source file is compared with what the store has of it."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, listings, plan_all, run
from workers.errors import DamagedStore, SourceChanged, SourceDiffers, TensorsRemoved
from workers.model import SourceFile, StepKey
from workers.store import commit
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors
from workers.tasks.model import StepPlan
from workers.tasks.read_back import ReadBackJob, ReadBackVerdict, read_back, recheck
from workers.tasks.run import pack, run_recheck


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
    return ReadBackJob(plan.key, plan.fingerprint, plan.origin.root, plan.store, files)


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


def jobs(dump: Path, store: Path) -> Iterator[ReadBackJob]:
    """Yield a job for each committed step of a dump, with all of its files."""
    objects = open_objects(resolve(str(store)))
    for key, listing in listings(dump).items():
        committed = commit.read(objects, key)
        if committed is not None:
            yield ReadBackJob(
                key, committed.fingerprint, committed.record.source.root, objects.address, listing.files
            )


def rewrite(path: Path, at: int) -> None:
    """Flip a bit of a file, and give it its old times."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", ["nan-log-2rank", "cann-bin-synthetic"])
def test_what_was_not_written_anew_is_the_same(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    """Of real dumps, some of them in the layout of an accelerator."""
    dump = dumps[name] / ("dump" if (dumps[name] / "dump").is_dir() else "tf")
    ingest_directly(dump, tmp_path / "run.zarr")
    found = list(jobs(dump, tmp_path / "run.zarr"))
    assert found
    assert run_recheck(pack(found)) == [()] * len(found)


@pytest.mark.parametrize("at", [0, 40, 130, -1])
@pytest.mark.parametrize("kind", ["tensor", "file"])
def test_a_file_that_was_written_anew_is_named_wherever_it_differs(
    at: int, kind: str, made: MadeDump, store: Path
) -> None:
    made.add(np.arange(100.0), tensor_name(slot=0))
    path = made.add(np.arange(100.0) + 1, tensor_name(slot=1) if kind == "tensor" else "table.bin")
    ingest_directly(made.root, store)
    rewrite(path, at)
    (job,) = jobs(made.root, store)
    assert recheck(job) == (str(path.relative_to(made.root)),)


def test_another_listing_or_commit_is_not_compared(made: MadeDump, store: Path) -> None:
    path = made.add(np.arange(100.0), tensor_name(slot=0))
    ingest_directly(made.root, store)
    (job,) = jobs(made.root, store)
    rewrite(path, -1)
    other = SourceFile(job.files[0].path, job.files[0].size, job.files[0].mtime_ns + 1)
    assert recheck(ReadBackJob(job.key, job.fingerprint, job.root, job.store, (other,))) == ()
    with pytest.raises(SourceChanged):
        recheck(ReadBackJob(job.key, "another", job.root, job.store, job.files))
    with pytest.raises(SourceChanged):
        recheck(ReadBackJob(StepKey(7, 7), job.fingerprint, job.root, job.store, job.files))
    path.touch()
    with pytest.raises(SourceChanged):
        recheck(job)
