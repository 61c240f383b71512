"""Shards are written again from whatever has their payloads; the rest is named."""

from pathlib import Path

from ingest.reader.verifying.verify import Verified, verify_step
from ingest.repairing.step_payloads import mend_payloads
from tests.damages import SHARD, flip, only
from tests.repairs import work_on


def test_a_shard_comes_from_the_dump_that_the_commit_names(store: Path) -> None:
    shard = only(store, SHARD)
    whole = shard.read_bytes()
    flip(shard, 5)
    work = work_on(store)
    (step,) = work.catalog.select(rank=0, step=1)
    mend_payloads(work, step, list(verify_step(step, Verified())))
    assert shard.read_bytes() == whole
    assert ([mended.path for mended in work.repair.mended], work.repair.lost) == (
        [str(shard.relative_to(store))],
        [],
    )


def test_half_a_shard_is_not_written(lone_store: Path) -> None:
    shard = only(lone_store, SHARD)
    flip(shard, 5)
    damaged = shard.read_bytes()
    work = work_on(lone_store)
    (step,) = work.catalog.select(rank=0, step=1)
    mend_payloads(work, step, list(verify_step(step, Verified())))
    assert shard.read_bytes() == damaged
    assert [lost.what.endswith("npy") for lost in work.repair.lost] == [True]
    assert (work.repair.mended, work.repair.generation) == ([], "")
