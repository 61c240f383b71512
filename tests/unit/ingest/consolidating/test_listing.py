"""What is committed, compared with what the cubes hold, and which ranks are listed for it."""

import shutil
from pathlib import Path

import pytest

from ingest.consolidating import consolidator as consolidator_module
from ingest.consolidating.consolidator import Consolidator
from tests.cube_stores import once, put
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreUnavailable
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


@pytest.fixture
def counted(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Listings:
    """Ten ranks with one step, of which a round lists three in turn."""
    monkeypatch.setattr(consolidator_module, "WINDOW", 3)
    for rank in range(10):
        put(objects, rank, 1)
    return Listings(objects)


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
