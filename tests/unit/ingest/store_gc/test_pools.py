"""Arrays in the pool go when no commit refers to them, and only when nobody may be about to."""

from dataclasses import replace

import pytest

from ingest.store_gc.inventory import CommitFacts, Extent, Generation, Inventory, StepInventory
from ingest.store_gc.planner import Pools
from tests.gc_inventories import DAY_S, NOW
from workers.model import StepKey

A, B = (f"pool/step_1/{digit * 64}/float32" for digit in "ab")
OLD = Extent(2, 100, NOW - 10 * DAY_S)


def member(rank: int, *refers_to: str, damage: str = "") -> StepInventory:
    """Return what a rank has of step 1, committed ten days ago."""
    facts = CommitFacts("f" * 32, NOW - 10 * DAY_S, False, True, frozenset(refers_to))
    record = Extent(1, 1, NOW - 10 * DAY_S)
    return StepInventory(
        StepKey(rank, 1), {"f" * 32: Generation(OLD, OLD)}, record, None if damage else facts, damage
    )


def pools(*members: StepInventory, b: Extent = OLD, grace_s: float = DAY_S) -> Pools:
    inventory = Inventory("/run.zarr", Extent(), members, {}, pools={1: {A: OLD, B: b}})
    return Pools(inventory, grace_s, NOW)


def going_of(found: Pools, *going: StepKey) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    return [action.path for action in found.actions(going, notes)], notes


def test_what_any_rank_refers_to_stays() -> None:
    assert going_of(pools(member(0, A), member(1, B))) == ([], [])
    assert going_of(pools(member(0, A), member(1, A))) == ([B], [])
    assert pools(member(0, A)).unused([]) == OLD


def test_what_only_steps_that_go_refer_to_goes() -> None:
    found = pools(member(0, A), member(1, A, B))
    assert going_of(found, StepKey(1, 1)) == ([B], [])
    assert going_of(found, StepKey(0, 1)) == ([], [])
    assert found.unused([StepKey(0, 1), StepKey(1, 1)], step=1) == OLD + OLD
    assert found.unused([StepKey(0, 1), StepKey(1, 1)], step=2) == Extent()


def test_young_arrays_wait_for_those_who_may_refer_to_them() -> None:
    young = replace(OLD, newest_at=NOW - 60)
    removed, notes = going_of(pools(member(0, A), b=young))
    assert removed == []
    assert "2 objects in pools that no commit refers to stay" in notes[0]
    assert pools(member(0, A), b=young).unused([]) == young  # however young it is


@pytest.mark.parametrize("is_committed", [True, False])
def test_any_rank_that_writes_the_step_keeps_all_of_its_pool(*, is_committed: bool) -> None:
    own = member(1, A)
    fresh = Extent(1, 1, NOW - 60)
    writing = (
        replace(own, record=fresh)
        if is_committed
        else replace(own, generations={**own.generations, "e" * 32: Generation(fresh, fresh)})
    )
    assert going_of(pools(member(0, A), writing))[0] == []


def test_what_a_damaged_commit_refers_to_is_not_known() -> None:
    assert going_of(pools(member(0, A), member(1, damage="truncated"))) == ([], [])
