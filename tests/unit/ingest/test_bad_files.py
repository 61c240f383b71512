"""What is known of files that cannot be read, or that kill who reads them."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from ingest.layouts.base import Listing
from ingest.steps.bad_files import BadFiles
from tests.npy_files import MadeDump
from tests.pipeline import listings, plan_all
from workers.errors import ClusterError, PoisonedFile, StoreError, UnreadableFile
from workers.model import SourceFile
from workers.store.commit import Commit
from workers.store.record import PoisonedSource
from workers.tasks.model import StepPlan


@pytest.fixture
def dump(tmp_path: Path) -> tuple[StepPlan, Listing]:
    """A step of twelve files, planned and listed."""
    made = MadeDump(tmp_path / "dump")
    for number in range(12):
        made.add(np.full(4, number, np.float32))
    (plan,) = plan_all(made.root, tmp_path / "store")
    (listing,) = listings(made.root).values()
    return plan, listing


def commit_of(*files: SourceFile) -> Commit:
    rows = tuple(PoisonedSource(file.path, file.size, file.mtime_ns, bytes_kept=True) for file in files)
    return cast("Commit", SimpleNamespace(record=SimpleNamespace(poison=rows)))


def test_a_file_that_failed_is_known_and_nothing_else(dump: tuple[StepPlan, Listing]) -> None:
    plan, _ = dump
    bad = BadFiles()
    first, second = (entry.source for entry in plan.entries[:2])
    assert not bad.note(plan, StoreError("away"))
    assert bad.note(plan, UnreadableFile("gone bad", path=first.path))
    assert bad.note(plan, PoisonedFile("deadly", path=second.path))
    assert list(bad.unreadable(plan.key)) == [first.path]
    assert bad.poison(plan.key) == {second: True}  # it was decoded: its bytes may be read
    bad.forget([])
    assert (list(bad.unreadable(plan.key)), bad.poison(plan.key)) == ([], {})


def test_what_a_commit_tells_is_taken_over_once(dump: tuple[StepPlan, Listing]) -> None:
    plan, listing = dump
    bad = BadFiles()
    file, elsewhere = listing.files[0], SourceFile("rank_0/elsewhere", 1, 1)
    assert bad.learn(listing, commit_of(file, elsewhere))
    assert bad.poison(plan.key) == {file: True}
    assert not bad.learn(listing, commit_of(file))
    assert not bad.learn(listing, commit_of())


def test_where_too_many_files_are_deadly_it_is_not_the_files(dump: tuple[StepPlan, Listing]) -> None:
    plan, _ = dump
    bad = BadFiles()
    for entry in plan.entries[:8]:
        error = PoisonedFile("deadly", path=entry.source.path)
        assert bad.believed(plan, error) is error
        bad.note(plan, error)
    ninth = PoisonedFile("deadly", path=plan.entries[8].source.path)
    doubted = bad.believed(plan, ninth)
    assert isinstance(doubted, ClusterError)
    assert "8 other files" in str(doubted)
    assert "memory of the workers" in doubted.hint
    assert bad.poison(plan.key) == {}
