"""What is committed, compared with what the cubes hold, and which ranks are listed for it."""

import shutil
from collections.abc import Collection
from pathlib import Path

import pytest

from ingest.consolidating import listing
from ingest.consolidating.consolidator import Consolidator
from ingest.consolidating.listing import CommitListing, CommittedSteps
from tests.cube_stores import once, put
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreUnavailable
from workers.model import StepKey
from workers.store.objects import ObjectStore


class Listings(WrappedObjects):
    """Remembers which ranks are listed; refuses to list one of them."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.ranks: set[int] = set()
        self.refused = -1

    def children(self, prefix: str = "") -> list[str]:
        if prefix.startswith("rank_"):
            rank = int(prefix.removeprefix("rank_"))
            if rank == self.refused:
                raise StoreUnavailable("the store does not answer")
            self.ranks.add(rank)
        return super().children(prefix)

    def taken(self) -> set[int]:
        """Return the ranks that were listed since the last call."""
        taken, self.ranks = self.ranks, set()
        return taken


def list_due(
    listed: CommitListing, lacking: Collection[int] = (), named: Collection[int] = ()
) -> CommittedSteps:
    listed.list_due(lacking=lacking, named=named, keep=lambda: None)
    return listed.compare(None)


def list_all(objects: ObjectStore) -> CommitListing:
    listed = CommitListing(objects)
    listed.list_all(keep=lambda: None)
    return listed


@pytest.fixture
def counted(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Listings:
    """Ten ranks with one step, of which a round lists three in turn."""
    monkeypatch.setattr(listing, "WINDOW", 3)
    for rank in range(10):
        put(objects, rank, 1)
    return Listings(objects)


def test_a_round_lists_some_ranks_in_turn_and_comes_to_all_of_them(counted: Listings) -> None:
    listed = CommitListing(counted)
    list_due(listed)
    assert counted.taken() == {*range(10)}  # none was listed before
    rounds = []
    for _ in range(4):
        list_due(listed)
        rounds.append(counted.taken())
    assert {len(ranks) for ranks in rounds} == {3}
    assert set().union(*rounds) == {*range(10)}


def test_a_step_that_no_rank_had_before_makes_a_round_list_every_rank(counted: Listings) -> None:
    listed = list_all(counted)
    put(counted, 2, 2)
    put(counted, 7, 2)
    counted.taken()
    assert {StepKey(2, 2), StepKey(7, 2)} <= list_due(listed).new
    assert counted.taken() == {*range(10)}


def test_a_rank_that_a_step_waits_for_is_listed_in_each_round(counted: Listings) -> None:
    listed = list_all(counted)
    for rank in range(9):
        put(counted, rank, 2)
    list_due(listed)
    counted.taken()
    for _ in range(5):
        list_due(listed, lacking=[2])
        assert 9 in counted.taken()
    put(counted, 9, 2)
    assert StepKey(9, 2) in list_due(listed, lacking=[2])
    counted.taken()
    list_due(listed, lacking=[2])
    assert len(counted.taken()) == 3


def test_rounds_in_turn_take_in_what_comes_late_is_replaced_or_goes(counted: Listings) -> None:
    with Consolidator(counted, patience_s=1000) as consolidator:
        assert consolidator.once(listed_in_turn=True).appended == (1,)
        for rank in range(9):
            put(counted, rank, 2)
        assert consolidator.once(listed_in_turn=True).waiting == (2,)
        put(counted, 9, 2)
        assert consolidator.once(listed_in_turn=True).appended == (2,)
        put(counted, 9, 1, seed=1)  # replaced, and announced
        assert consolidator.once(listed_in_turn=True).rewritten == (1,)
        shutil.rmtree(Path(counted.address.url) / "rank_9" / "step_1")  # removed, and not announced
        rounds = [consolidator.once(listed_in_turn=True).rewritten for _ in range(4)]
        assert (1,) in rounds
    assert not once(counted)
