"""A commit that is damaged is made again, and is not written over that of somebody else."""

from pathlib import Path

import pytest

from ingest.repairing.damaged_commit import commit_of, write_commit
from ingest.repairing.work import Unmendable
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


def test_a_commit_that_came_meanwhile_stays(lone_store: Path) -> None:
    work = work_on(lone_store)
    with pytest.raises(SourceChanged, match="meanwhile"):
        write_commit(work, b"", commit_of(work, b""))


def test_what_nothing_is_left_of_is_said_with_what_to_do(lone_store: Path) -> None:
    with pytest.raises(Unmendable, match="name a dump with --dump"):
        commit_of(work_on(lone_store, step=9), b"")
