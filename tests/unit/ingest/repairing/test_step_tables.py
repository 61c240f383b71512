"""Metadata comes from the commit, tables from the dump or from payloads."""

from pathlib import Path

import pytest

from ingest.repairing.commits import commit_of
from ingest.repairing.tables import mend_nodes, tables_of
from ingest.repairing.work import StepWork, Unmendable
from tests.damages import DAMAGES
from tests.repairs import work_on
from workers.store.commit import Commit


def committed_of(work: StepWork) -> Commit:
    leaf = work.objects.get(work.leaf_path)
    assert leaf is not None
    return commit_of(work, leaf)


def test_metadata_that_differs_is_written_again(lone_store: Path) -> None:
    DAMAGES["metadata of an array changed"](lone_store)
    work = work_on(lone_store)
    mend_nodes(work, committed_of(work))
    (mended,) = work.repair.mended
    assert (mended.path.endswith("tensors/float32/zarr.json"), mended.origin) == (True, "the commit")
    mend_nodes(work, committed_of(work))
    assert work.repair.mended == [mended]


def test_digests_follow_from_payloads(lone_store: Path) -> None:
    DAMAGES["digests missing"](lone_store)
    work = work_on(lone_store)
    step = tables_of(work, committed_of(work))
    assert step is not None
    assert [mended.path.endswith("digest/c/0/0") for mended in work.repair.mended] == [True]
    assert len(list(step.tensors())) == 3


def test_names_are_in_the_dump_alone(lone_store: Path) -> None:
    DAMAGES["labels flipped"](lone_store)
    work = work_on(lone_store)
    with pytest.raises(Unmendable, match="the dump that has the step was not found"):
        tables_of(work, committed_of(work))
