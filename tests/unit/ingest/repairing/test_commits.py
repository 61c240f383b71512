"""A damaged commit is made again: from its copy in the view, the dump, or the objects of its generation."""

import json
from pathlib import Path

import pytest

from ingest.api import open_store, repair
from ingest.repairing.commits import commit_from_objects, list_generations, write_commit
from ingest.repairing.work import Dumps, StepRepair, StepWork
from tests import checker
from tests.damages import DAMAGES
from workers.errors import SourceChanged
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store.objects import ObjectStore

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
