"""Reading source files again: what differs from its digest is named, whatever its size and time say."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, listings
from workers.errors import SourceChanged
from workers.model import SourceFile, StepKey
from workers.store import commit
from workers.store.opening import open_objects, resolve
from workers.tasks.read_back import RecheckJob, recheck
from workers.tasks.run import pack_recheck, run_recheck


def jobs(dump: Path, store: Path) -> Iterator[RecheckJob]:
    """Yield a job for each committed step of a dump, with all of its files."""
    objects = open_objects(resolve(str(store)))
    for key, listing in listings(dump).items():
        committed = commit.read(objects, key)
        if committed is not None:
            yield RecheckJob(
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
    assert [run_recheck(pack_recheck(job)) for job in found] == [()] * len(found)


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
    assert recheck(RecheckJob(job.key, job.fingerprint, job.root, job.store, (other,))) == ()
    with pytest.raises(SourceChanged):
        recheck(RecheckJob(job.key, "another", job.root, job.store, job.files))
    with pytest.raises(SourceChanged):
        recheck(RecheckJob(StepKey(7, 7), job.fingerprint, job.root, job.store, job.files))
    path.touch()
    with pytest.raises(SourceChanged):
        recheck(job)
