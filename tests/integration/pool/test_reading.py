"""What is in the pool is read like everything else: by export, by verify, and before files are deleted."""

import pytest

from ingest.api import open_store
from ingest.reader.verifying import verify
from tests.pools import RANKS, PooledRun, replicas
from tests.wrapped_objects import WrappedObjects
from workers.model import SourceFile, StepKey
from workers.tasks import read_back as read_back_task
from workers.tasks.read_back import ReadBackJob, ReadBackVerdict, read_back


@pytest.mark.parametrize("what", ["c/0", "zarr.json"])
def test_verify_names_what_is_missing_in_the_pool(pooled: PooledRun, what: str) -> None:
    pooled.take(2, 1, replicas(1))
    path = min(pooled.commit(0, 1).record.pool)
    (pooled.store / path / what).unlink()
    damages = list(verify(open_store(str(pooled.store))))
    assert {damage.key for damage in damages if damage.path == f"{path}/{what}"} == {
        StepKey(0, 1),
        StepKey(1, 1),
    }


def test_files_are_read_back_from_the_pool_before_they_are_deleted(pooled: PooledRun) -> None:
    flushed: list[str] = []

    class Flushes(WrappedObjects):
        def flush(self, prefix: str) -> None:
            flushed.append(prefix)
            super().flush(prefix)

    pooled.take(RANKS, 1, replicas(1))
    committed = pooled.commit(0, 1)
    paths = sorted(pooled.dump.root.glob("rank_0/**/1/*.npy"))
    files = tuple(
        SourceFile(str(path.relative_to(pooled.dump.root)), path.stat().st_size, path.stat().st_mtime_ns)
        for path in paths
    )
    job = ReadBackJob(StepKey(0, 1), committed.fingerprint, str(pooled.dump.root), pooled.address, files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_back_task, "open_objects", lambda _: Flushes(pooled.objects))
        result = read_back(job)
    assert set(result.verdicts.tolist()) == {ReadBackVerdict.SAME}
    assert set(committed.record.pool) <= set(flushed)
