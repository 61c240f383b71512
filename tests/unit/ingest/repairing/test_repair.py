"""Repair: what is damaged is made again from the dump, or named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store, repair
from ingest.layouts.detect import find_dump
from ingest.reader.verifying import verify, verify_surroundings
from ingest.repairing.commits import commit_from_objects, list_generations, write_commit
from ingest.repairing.work import Dumps, StepRepair, StepWork, grids_like
from tests import checker
from tests.damages import DAMAGES, STEP, flip, only
from tests.pools import GRID, PooledRun, replicas, small_pools
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, tensor_name
from workers.errors import DamagedStore, SourceChanged, StoreFormatError, UsageError
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store.model import Grid
from workers.store.objects import ObjectStore
from workers.store.sketches import ALL_MARGINALS, HISTOGRAM_TABLE

# Whatever is damaged is named, mended from what is there, and then as it was.


def damages_of(store: Path) -> list[str]:
    """Return what verifying names; it cannot even open a store without its root."""
    try:
        opened = open_store(store)
    except DamagedStore as exc:
        return [exc.message]
    return [*map(str, opened.verify()), *map(str, verify_surroundings(opened.objects))]


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def is_of_commit_or_view(key: str) -> bool:
    """Return whether an object says when it was written, or may be another one with the same content."""
    return key.startswith("consolidated/") or (key.endswith("zarr.json") and key.count("/") == 2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", DAMAGES)
def test_every_kind_of_damage_is_named_and_mended(
    kind: str, store: Path, whole: Path, tmp_path: Path
) -> None:
    DAMAGES[kind](store)
    assert damages_of(store)
    damaged = content(store)

    planned = repair(store)

    assert content(store) == damaged  # a dry run
    assert not planned.is_clean
    assert all(outcome.is_whole and outcome.mended for outcome in planned.repairs)
    done = repair(store, apply=True)
    assert done.is_clean, done.to_dict()
    # Copies of commits that are repaired are announced as outdated, which only the plan has to name.
    assert all(outcome.mended in [plan.mended for plan in planned.repairs] for outcome in done.repairs)
    assert damages_of(store) == []
    for step in open_store(store).select():
        step.export(tmp_path / "out")
    assert content(tmp_path / "out") == content(whole / "dump")
    before, after = checker.objects(whole / "run.zarr"), checker.objects(store)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert not {key for key in changed if not is_of_commit_or_view(key)}


#: What is made again without the dump, and from what.
LONE = {
    "digests missing": "the payloads, computed again",
    "statistics flipped": "the payloads, computed again",
    "findings missing": "the index, by the rules of the commit",
    "commit with wrong totals": "the index",
    "metadata of an array changed": "the commit",
}


@pytest.mark.parametrize("kind", LONE)
def test_what_follows_from_the_store_needs_no_dump(kind: str, lone_store: Path) -> None:
    before = checker.objects(lone_store)
    DAMAGES[kind](lone_store)
    done = repair(lone_store, apply=True)
    assert done.is_clean
    assert {mended.origin for mended in done.repairs[0].mended} == {LONE[kind]}
    after = checker.objects(lone_store)
    changed = {key for key in before if after[key] != before[key]}
    assert not {key for key in changed if not is_of_commit_or_view(key)}


def test_without_the_dump_copies_are_used_and_the_rest_is_named(lone_store: Path) -> None:
    """Of two tensors in a shard, one is on the other rank, too; the other one was nowhere else."""
    flip(only(lone_store, f"{STEP}/*/tensors/float32/c/0"), 5)
    before = checker.objects(lone_store)
    done = repair(lone_store, apply=True)
    (outcome,) = done.repairs
    assert not done.is_clean
    assert ["output.1" in lost.what for lost in outcome.lost] == [True]
    assert checker.objects(lone_store) == before  # half a shard is not written

    done = repair(lone_store, apply=True, accept_loss=True)
    assert done.repairs[0].generation
    assert done.repairs[0].remains == ()
    assert not done.is_clean  # something is lost
    assert repair(lone_store).is_clean  # and from now on said by the commit
    step = open_store(lone_store).step(0, 1)
    assert step.commit.summary.status == "partial"
    kept, lost, _ = step.tensors()
    assert kept.read().size == lost.statistics.count == 200
    assert lost.problem.startswith("lost: ")
    with pytest.raises(DamagedStore, match="lost"):
        lost.read()


def test_a_tensor_that_another_rank_has_comes_from_there(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for rank in range(2):
        dump.add(np.arange(99, dtype="<f4"), step=1, rank=rank)
    ingest_directly(dump.root, store)
    shutil.rmtree(dump.root)
    shard = only(store, f"{STEP}/*/tensors/float32/c/0")
    before = shard.read_bytes()
    shard.unlink()
    done = repair(store, apply=True)
    assert done.is_clean
    assert [mended.origin for mended in done.repairs[0].mended] == ["rank 1 step 1"]
    assert shard.read_bytes() == before


@pytest.mark.parametrize("array", ["files", "tensors/float32"])
def test_the_payloads_of_another_step_do_not_become_right(array: str, lone_store: Path) -> None:
    shards = [only(lone_store, f"rank_0/step_{step}/*/{array}/c/0") for step in (1, 2)]
    shutil.copy(shards[1], shards[0])
    before = checker.objects(lone_store)
    (outcome,) = repair(lone_store, apply=True).repairs
    assert checker.objects(lone_store) == before
    assert outcome.lost
    assert outcome.remains


def test_what_is_no_store_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dump-ingest store"):
        repair(tmp_path)
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    with pytest.raises(StoreFormatError):
        repair(store, apply=True)


# A damaged commit is made again: from its copy in the view, the dump, or the objects of its generation.


KEY = StepKey(0, 1)


def test_what_only_the_commit_says_is_taken_from_what_is_left_of_it(whole_objects: ObjectStore) -> None:
    leaf = whole_objects.get(f"{KEY.path}/zarr.json")
    assert leaf is not None
    (name,) = list_generations(whole_objects, KEY)
    committed = open_store(whole_objects.address.url).step(0, 1).commit
    made = commit_from_objects(whole_objects, KEY, name, leaf=leaf, origin=committed.record.source)
    before, after = json.loads(leaf), json.loads(made.data)
    # Not in the objects: the time of the commit, and by which rules nothing was found.
    for document in (before, after):
        del document["attributes"]["dump_ingest_crc32c"]
        record = document["attributes"]["dump_ingest"]
        del record["committed_at"], record["summary"]["rules"]
    assert after == before


def test_a_commit_follows_from_its_objects(lone_store: Path) -> None:
    """What only the commit said is not known any more, so the step is partial and says why."""
    DAMAGES["commit empty"](lone_store)
    done = repair(lone_store, apply=True)
    assert done.is_clean
    assert [mended.origin for mended in done.repairs[0].mended] == ["the objects of its generation"]
    step = open_store(lone_store).step(0, 1)
    assert step.commit.summary.status == "partial"
    assert "skipped are not known" in step.commit.record.problems[0]
    assert [tensor.read().size for tensor in step.tensors()] == [200, 200, 200]


@pytest.mark.parametrize(
    "change", [(b'"fields":["count"', b'"fields":["caunt"'), (b'"host":"test', b'"host":"best')]
)
def test_the_copy_in_the_view_is_the_commit(store: Path, change: tuple[bytes, bytes]) -> None:
    """One byte that is wrong does not get into the arrays, and all that only the commit said comes back."""
    before = checker.objects(store)
    leaf = store / "rank_0/step_1/zarr.json"
    leaf.write_bytes(leaf.read_bytes().replace(*change))
    report = repair(store, apply=True)
    assert report.is_clean
    (mended,) = report.repairs[0].mended
    assert mended.origin == "its copy in the consolidated view"
    after = checker.objects(store)
    assert {name: after[name] for name in before} == before


def test_a_commit_that_came_meanwhile_stays(lone_store: Path) -> None:
    opened = open_store(lone_store)
    dumps = Dumps(opened.objects.address, (), load_rules().enabled, "host")
    work = StepWork(opened, KEY, dumps, StepRepair(KEY, ()), apply=True)
    with pytest.raises(SourceChanged, match="meanwhile"):
        write_commit(work, b"", opened.step(0, 1).commit)


# Damaged arrays in the pool are made again from what any rank has, if that is what their names say.


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PooledRun:
    """A run of two ranks whose step 1 uses the pool."""
    small_pools(monkeypatch)
    made = PooledRun(tmp_path)
    made.begin(2, replicas(0))
    made.take(2, 1, replicas(1))
    return made


def shard_of(pooled: PooledRun) -> Path:
    """Return the larger shard of those that both ranks refer to."""
    path, _ = max(pooled.commit(0, 1).record.pool.items(), key=lambda item: item[1].nbytes)
    return pooled.store / path / "c" / "0"


def damages(pooled: PooledRun) -> list[str]:
    return list(map(str, verify(open_store(str(pooled.store)))))


@pytest.mark.parametrize("damage", ["missing", "flipped", "metadata"])
def test_an_array_is_made_again_from_the_dump(pooled: PooledRun, damage: str) -> None:
    shard = shard_of(pooled)
    before = checker.objects(pooled.store)
    if damage == "metadata":
        (shard.parents[1] / "zarr.json").write_text("{}")
    elif damage == "missing":
        shard.unlink()
    else:
        data = bytearray(shard.read_bytes())
        data[100] ^= 1
        shard.write_bytes(data)
    assert damages(pooled)
    report = repair(pooled.store, apply=True, grid=GRID)
    assert report.is_clean
    assert not damages(pooled)
    assert checker.objects(pooled.store) == before


def test_a_forged_dump_does_not_get_into_the_array(
    pooled: PooledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors have the right XXH3 digests, which is not enough for what other ranks read."""
    shard = shard_of(pooled)
    before = shard.read_bytes()
    shard.unlink()
    for path in pooled.dump.root.glob("rank_0/**/1/*weight*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    monkeypatch.setattr("ingest.repairing.work.is_same", lambda *_: True)
    repair(pooled.store, apply=True, grid=GRID, rank=0, step=1)
    monkeypatch.undo()
    assert not shard.exists()
    # What rank 0 has is committed as another array, to which rank 1 does not refer.
    forged = set(pooled.commit(0, 1).record.pool) - set(pooled.commit(1, 1).record.pool)
    assert len(forged) == 1
    repair(pooled.store, apply=True, grid=GRID, rank=1, step=1)
    assert shard.read_bytes() == before


def test_what_is_found_nowhere_is_lost_for_one_rank_at_a_time(pooled: PooledRun) -> None:
    lost = sorted(pooled.dump.root.glob("rank_*/**/1/*"))
    for path in lost:
        path.unlink()
    shard_of(pooled).unlink()
    assert not repair(pooled.store, apply=True, grid=GRID, rank=0, step=1).is_clean
    report = repair(pooled.store, apply=True, accept_loss=True, grid=GRID, rank=0, step=1)
    assert report.repairs[0].lost
    assert not list(verify(open_store(str(pooled.store)), [StepKey(0, 1)]))
    after = pooled.commit(0, 1)
    assert after.summary.status == "partial"
    assert set(after.record.pool) < set(pooled.commit(1, 1).record.pool)


def test_a_commit_is_made_again_from_its_objects(pooled: PooledRun) -> None:
    leaf = pooled.store / "rank_0/step_1/zarr.json"
    before = pooled.commit(0, 1)
    leaf.write_text(leaf.read_text()[:-200])
    shutil.rmtree(pooled.dump.root)
    assert repair(pooled.store, apply=True, grid=GRID, rank=0, step=1).is_clean
    after = pooled.commit(0, 1)
    assert (after.fingerprint, after.record.pool) == (before.fingerprint, before.record.pool)
    assert after.summary.stored_bytes == before.summary.stored_bytes
    assert not damages(pooled)


# A generation is made again from a dump, which may have moved or was cut in another grid.


def test_only_a_generation_of_the_name_that_is_wanted_is_made(
    whole: Path, whole_objects: ObjectStore
) -> None:
    step = open_store(whole / "run.zarr").step(0, 1)
    rules, named = load_rules().enabled, [find_dump(whole / "dump")]
    dumps = Dumps(whole_objects.address, grids_like(Grid()), rules, "host", named)
    made = dumps.remake(step.key, None, None)
    assert made is not None
    name = made.assembled.summary.fingerprint
    assert made.origin == f"the dump {whole / 'dump'}"
    again = dumps.remake(step.key, [name], step.commit.record)
    assert again is not None
    assert again.assembled.chunks == made.assembled.chunks
    assert dumps.remake(step.key, ["0" * 32], None) is None
    assert dumps.remake(StepKey(7, 1), None, None) is None


def test_another_place_of_the_dump_can_be_named(tmp_path: Path) -> None:
    """And only files with the digests of the index count: one was overwritten there."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in (1, 2):
        dump.add(np.arange(99, dtype="<f4") + step, tensor_name(time=1), step=step)
    ingest_directly(dump.root, store)
    moved = dump.root.rename(tmp_path / "elsewhere")
    (changed,) = moved.glob("rank_0/*/*/2/*.npy")
    changed.write_bytes(changed.read_bytes()[:-4] + b"abcd")
    for step in (1, 2):
        only(store, f"rank_0/step_{step}/*/tensors/float32/c/0").unlink()
    assert len(repair(store).repairs) == 2
    done = repair(store, [moved], apply=True)
    assert [outcome.is_whole for outcome in done.repairs] == [True, False]
    with pytest.raises(UsageError, match="does not exist"):
        repair(store, [dump.root])


def test_dump_of_a_declared_layout_is_read_with_its_pattern(tmp_path: Path) -> None:
    """The commit names the dump, and not the pattern."""
    dump, store, layout = tmp_path / "dump", tmp_path / "run.zarr", "rank{rank}/step{step}/{module}.npy"
    (dump / "rank0" / "step1").mkdir(parents=True)
    np.save(dump / "rank0" / "step1" / "fc.npy", np.arange(99, dtype="<f4"))
    ingest_directly(dump, store, layout=layout)
    only(store, "rank_0/step_1/*/tensors/float32/c/0").unlink()
    assert not repair(store, apply=True).is_clean
    assert repair(store, layout=layout, apply=True).is_clean
    with pytest.raises(UsageError, match="no dump of a known layout"):
        repair(store, [dump])


def test_steps_of_another_grid_get_a_new_generation(tmp_path: Path) -> None:
    """The name of the generation depends on sizes that the commit does not say."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.arange(99, dtype="<f4"), step=1)
    (summary,) = ingest_directly(dump.root, store, SMALL_GRID)
    only(store, "rank_0/step_1/*/index/labels/c/0/0").unlink()
    planned = repair(store)
    assert planned.repairs[0].generation not in ("", summary.fingerprint)
    assert repair(store, apply=True).is_clean
    assert open_store(store).step(0, 1).fingerprint == planned.repairs[0].generation
    assert repair(store, grid=SMALL_GRID).is_clean


# Damaged histograms are made again: from the payloads, or else from the dump.


CHUNK = f"rank_1/step_2/*/{HISTOGRAM_TABLE.chunk}"


def reasons(store: Path) -> list[str]:
    return [damage.reason for damage in open_store(store).verify()]


def spoil(store: Path) -> None:
    """Make one histogram that contradicts its tensor, and has its counts."""
    path = only(store, CHUNK)
    step = open_store(store).step(1, 2)
    entries = HISTOGRAM_TABLE.decode(step.commit.nodes, {HISTOGRAM_TABLE.chunk: path.read_bytes()}, "").copy()
    entries[[0, 1], 1] = entries[[1, 0], 1]
    path.write_bytes(HISTOGRAM_TABLE.encode(np.sort(entries, axis=0))[1][HISTOGRAM_TABLE.chunk])


@pytest.mark.parametrize("dump_is_there", [True, False])
def test_histograms_come_from_the_payloads(store: Path, lone_store: Path, *, dump_is_there: bool) -> None:
    damaged = store if dump_is_there else lone_store
    before = checker.objects(damaged)
    flip(only(damaged, CHUNK))
    (reason,) = reasons(damaged)
    assert "crc32c" in reason
    done = repair(damaged, apply=True)
    assert done.is_clean
    assert [mended.origin for mended in done.repairs[0].mended] == ["the payloads, computed again"]
    assert checker.objects(damaged) == before


def test_histograms_that_contradict_the_payloads_are_made_again(store: Path) -> None:
    before = checker.objects(store)
    spoil(store)
    assert reasons(store)
    assert repair(store, apply=True).is_clean
    assert checker.objects(store) == before


@pytest.mark.parametrize("damaged", [ALL_MARGINALS.axes.chunk, f"{ALL_MARGINALS.values}/c/0/0"])
def test_of_the_two_tables_of_marginals_only_the_damaged_one_is_written(tmp_path: Path, damaged: str) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    values = np.random.default_rng(0).normal(size=(32, 512)).astype("<f4")
    dump.add(values, tensor_name(slot=0, time=1), step=2, rank=1)
    ingest_directly(dump.root, store, sketches=True)
    before = checker.objects(store)
    path = only(store, f"rank_1/step_2/*/{damaged}")
    flip(path)
    (repaired,) = repair(store, apply=True).repairs
    assert [mended.path for mended in repaired.mended] == [str(path.relative_to(store))]
    assert checker.objects(store) == before
