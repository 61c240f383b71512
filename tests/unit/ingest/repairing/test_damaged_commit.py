"""A commit that is damaged is made again, and is not written over that of somebody else."""

from pathlib import Path

import pytest

from ingest.api import open_store, repair
from ingest.repairing.commits import commit_of, write_commit
from ingest.repairing.work import Unmendable
from tests import checker
from tests.repairs import work_on
from workers.errors import SourceChanged


def test_a_whole_commit_is_taken_as_it_is(lone_store: Path) -> None:
    work = work_on(lone_store)
    leaf = work.objects.get(work.leaf_path)
    assert leaf is not None
    write_commit(work, leaf, commit_of(work, leaf))
    assert work.repair.mended == []
    assert work.objects.get(work.leaf_path) == leaf


def test_without_the_dump_it_comes_from_the_objects(lone_store: Path) -> None:
    work = work_on(lone_store)
    (step,) = work.catalog.select(rank=0, step=1)
    work.objects.put(work.leaf_path, b"")
    made = commit_of(work, b"")
    assert made.fingerprint == step.commit.fingerprint
    assert [mended.origin for mended in work.repair.mended] == ["the objects of its generation"]
    assert work.objects.get(work.leaf_path) == b""  # it is written when the rest is whole
    write_commit(work, b"", made)
    assert work.objects.get(work.leaf_path)


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


def test_a_copy_of_another_generation_is_not_the_commit(store: Path) -> None:
    leaf = store / "rank_0/step_1/zarr.json"
    name = open_store(store).step(0, 1).commit.fingerprint.encode()
    leaf.write_bytes(leaf.read_bytes().replace(name, b"0" * 32)[:-9])
    report = repair(store, apply=True, rank=0, step=1)
    assert report.is_clean
    assert [mended.origin for mended in report.repairs[0].mended] == ["the objects of its generation"]


def test_a_commit_that_came_meanwhile_stays(lone_store: Path) -> None:
    work = work_on(lone_store)
    with pytest.raises(SourceChanged, match="meanwhile"):
        write_commit(work, b"", commit_of(work, b""))


def test_what_nothing_is_left_of_is_said_with_what_to_do(lone_store: Path) -> None:
    with pytest.raises(Unmendable, match="name a dump with --dump"):
        commit_of(work_on(lone_store, step=9), b"")
