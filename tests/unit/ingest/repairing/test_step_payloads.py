"""Shards are written again from whatever has their payloads; the rest is named."""

from dataclasses import replace
from pathlib import Path

from ingest.api import open_store, repair
from ingest.reader.verifying.verify import Verified, verify_step
from ingest.repairing.payloads import mend_payloads
from ingest.repairing.tables import DIGEST_CHUNK
from tests import checker
from tests.damages import SHARD, flip, forget_checksums, only
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.repairs import work_on
from workers.store import tables


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


def test_rows_that_do_not_agree_what_lies_in_their_place_stop_no_other_step(
    made: MadeDump, tmp_path: Path
) -> None:
    """A commit of an earlier version, which lists no checksums of its index."""
    for step in range(2):
        for name in ("a.txt", "b.txt"):
            made.add(b"the same", name, step=step)
    store = tmp_path / "run.zarr"
    ingest_directly(made.root, store)
    backup = made.root.rename(tmp_path / "backup")
    whole = checker.objects(store)
    opened = open_store(store).step(0, 0)
    digest, prefix = opened.tables.digest.copy(), opened.commit.prefix
    digest[1] ^= 1
    _, chunks = tables.encode(replace(opened.tables, digest=digest))
    (store / prefix / DIGEST_CHUNK).write_bytes(chunks[DIGEST_CHUNK])
    forget_checksums(store / "rank_0/step_0/zarr.json")
    only(store, "rank_0/step_1/*/files/zarr.json").unlink()

    first, second = repair(store, apply=True).repairs

    assert [lost.what for lost in first.lost] == [f"{prefix}/index/digest"]
    assert "a.txt shares its place with rows of other digests" in first.lost[0].reason
    assert second.is_whole
    assert second.mended
    assert repair(store, [backup], apply=True).is_clean
    after = checker.objects(store)
    assert [key for key in whole if after[key] != whole[key]] == ["rank_0/step_0/zarr.json"]
