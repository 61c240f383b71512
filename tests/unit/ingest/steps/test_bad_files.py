"""Files that cannot be read, or that kill who reads them."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from ingest.layouts.base import Listing
from ingest.steps.state import NO_BAD_FILES
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
    first, second = (entry.source for entry in plan.entries[:2])
    assert NO_BAD_FILES.with_failure(plan, StoreError("away")) is NO_BAD_FILES
    bad = NO_BAD_FILES.with_failure(plan, UnreadableFile("gone bad", path=first.path))
    bad = bad.with_failure(plan, PoisonedFile("it died", path=second.path))
    assert bad.unreadable == {first.path}
    assert bad.poison == {second: True}  # it was decoded: its bytes may be read
    assert (NO_BAD_FILES.unreadable, NO_BAD_FILES.poison) == (frozenset(), {})


def test_what_a_commit_tells_is_taken_over_once(dump: tuple[StepPlan, Listing]) -> None:
    _, listing = dump
    file, elsewhere = listing.files[0], SourceFile("rank_0/elsewhere", 1, 1)
    bad = NO_BAD_FILES.with_commit(listing.files, commit_of(file, elsewhere))
    assert bad.poison == {file: True}
    assert bad.with_commit(listing.files, commit_of(file)) is bad


def test_if_too_many_files_are_poison_it_is_not_the_files(dump: tuple[StepPlan, Listing]) -> None:
    plan, _ = dump
    bad = NO_BAD_FILES
    for entry in plan.entries[:8]:
        error = PoisonedFile("it died", path=entry.source.path)
        assert bad.doubts(error) is None
        bad = bad.with_failure(plan, error)
    doubted = bad.doubts(PoisonedFile("it died", path=plan.entries[8].source.path))
    assert isinstance(doubted, ClusterError)
    assert "8 other files" in str(doubted)
    assert "memory of the workers" in doubted.hint
    assert bad.doubts(StoreError("away")) is None
