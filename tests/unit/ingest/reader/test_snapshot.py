"""A snapshot has the complete steps of one moment, and names all others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ingest
from ingest.reader.snapshot import LeftOut, take_snapshot
from tests.replicas import Replicas
from workers.errors import UsageError
from workers.model import StepKey


def made() -> Replicas:
    """Two ranks with steps 0 to 2, of which rank 1 step 1 is partial."""
    replicas = Replicas()
    for rank in (0, 1):
        for step in range(3):
            status = "partial" if (rank, step) == (1, 1) else "complete"
            replicas.put(rank, step, {"Add.a.output.0": step}, status=status)
    return replicas


def test_complete_steps_are_taken_and_others_named() -> None:
    replicas = made()
    replicas.objects.put("rank_1/step_5/half-written", b"")
    replicas.objects.put("rank_0/step_7/zarr.json", b"{}")
    snapshot = take_snapshot(replicas.store)
    assert snapshot.keys == [StepKey(r, s) for r, s in ((0, 0), (1, 0), (0, 1), (0, 2), (1, 2))]
    partial, uncommitted, damaged = snapshot.left_out
    assert partial == LeftOut(StepKey(1, 1), "partial")
    assert uncommitted == LeftOut(StepKey(1, 5), "not committed")
    assert (damaged.key, damaged.reason.split(":")[0]) == (StepKey(0, 7), "damaged")


def test_a_part_of_a_snapshot_has_the_chosen_ranks_and_steps() -> None:
    snapshot = take_snapshot(made().store)
    assert snapshot.only(ranks=[1]).keys == [StepKey(1, 0), StepKey(1, 2)]
    assert snapshot.only(ranks=[0, 1], steps={2, 9}).keys == [StepKey(0, 2), StepKey(1, 2)]
    assert snapshot.only(steps=[0]).left_out == snapshot.left_out
    assert snapshot.only() is snapshot.only(ranks=[1, 0], steps=range(3)) is snapshot


def test_partial_steps_are_taken_on_request() -> None:
    snapshot = take_snapshot(made().store, include_partial=True)
    assert len(snapshot.keys) == 6
    assert snapshot.left_out == ()


def test_later_commits_change_nothing_in_it() -> None:
    replicas = made()
    store = replicas.store
    assert store.steps == [0, 1, 2]
    before = take_snapshot(store)
    replicas.put(0, 3, {"Add.a.output.0": 3})
    assert before.steps == [0, 1, 2]
    # A snapshot of the same store object reads the commits again.
    assert take_snapshot(store).steps == [0, 1, 2, 3]


def test_without_a_complete_step_the_error_names_the_first_that_is_not() -> None:
    with pytest.raises(UsageError, match=r"no complete step \(rank 1 step 1: partial\)") as raised:
        take_snapshot(made().store, rank=1, step=1)
    assert "--include-partial" in raised.value.hint


@pytest.mark.parametrize(
    "ask",
    [take_snapshot, ingest.layout, ingest.missing, lambda store: ingest.next_dump(store, "tensor", "a")],
)
def test_a_url_in_the_place_of_a_store_is_told(store: Path, ask: Callable[[Any], object]) -> None:
    for text in (store, str(store)):
        with pytest.raises(UsageError, match="is where a store is, and not a store") as caught:
            ask(text)
        assert "open_store" in caught.value.hint
