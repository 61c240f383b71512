"""A black box beside a job keeps the tensors of the newest steps and of those around incidents."""

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ingest
from ingest.dump_retention.policy import RetentionPolicy
from ingest.steps.events import SourceKept, StoreIncident, TensorsDropped
from ingest.store_gc import ring as ring_of
from ingest.store_gc.ring import StoreRing
from tests.gc_stores import assert_sound, fill, objects_of
from tests.services import observed_service
from tests.stores import MadeDump, ingest_directly, plan_all, run
from workers.events import Event
from workers.model import StepKey
from workers.store import commit as commit_format

BOTH = (0, 1)


@pytest.fixture
def dump(tmp_path: Path) -> MadeDump:
    dump = MadeDump(tmp_path / "dump")
    dump.root.mkdir()
    return dump


def commit(dump: MadeDump, store: Path, step: int, nan_in: Iterator[int] | range | tuple[int, ...]) -> None:
    fill(dump, [step], nan_in=tuple(nan_in))
    ingest_directly(dump.root, store)
    for path in dump.root.glob(f"rank_*/Net/0/{step}/*"):
        path.unlink()  # or each step is ingested again


def with_tensors(store: Path, rank: int = 0) -> list[int]:
    opened = ingest.open_store(store)
    return [step.step for step in opened.select(rank=rank) if step.step is not None and step.has_tensors]


def incidents(events: list[Event]) -> list[tuple[int, int | None, bool]]:
    found = [event for event in events if isinstance(event, StoreIncident)]
    return [(event.key.rank, event.key.step, event.is_kept) for event in found]


def test_tensors_of_the_newest_steps_and_of_those_around_incidents_stay(
    dump: MadeDump, tmp_path: Path
) -> None:
    """NaN comes on rank 1 in step 7 and stays for a while; a watcher that begins again knows as much."""
    store = tmp_path / "run.zarr"
    commit(dump, store, 0, ())
    ring, events = StoreRing(objects_of(store), 2), list[Event]()
    for step in range(1, 20):
        commit(dump, store, step, range(7, 15))
        for rank in BOTH:
            ring.note(StepKey(rank, step))
        if step == 11:
            ring = StoreRing(objects_of(store), 2)
        events += ring.turn(BOTH, ())
        held = with_tensors(store)
        assert held[-2:] == [step - 1, step]
        assert len(held) <= 2 + 5
    for rank in BOTH:
        assert with_tensors(store, rank) == [5, 6, 7, 8, 9, 18, 19]
    assert set(incidents(events)) == {(1, 7, True)}
    assert sum(isinstance(event, TensorsDropped) for event in events) == 2 * (20 - 7)
    assert len(ring._held) == 2 * 9
    assert ingest.origin(ingest.open_store(store)).step == 7
    assert_sound(store)


#: Step 3 comes when those that may be around an incident in 4 have left the ring.
LATE = [0, 1, 2, 4, 5, 6, 7, 8, 3, 9, 10, 11, 12, 13]


@st.composite
def orders(draw: st.DrawFn) -> list[int]:
    """Return steps in an order in which each is late by a few at most."""
    late = draw(st.lists(st.floats(0, 6), min_size=14, max_size=14))
    return sorted(range(14), key=lambda step: step + late[step])


@given(orders(), st.integers(0, 13))
@example(LATE, 4)
@settings(max_examples=8)
def test_steps_that_are_committed_in_any_order_end_the_same(order: list[int], nan_from: int) -> None:
    """What is pending may be an incident: its neighbours stay until that is known."""
    with tempfile.TemporaryDirectory() as root:
        dump, store = MadeDump(Path(root, "dump")), Path(root, "run.zarr")
        fill(dump, range(14), nan_in=range(nan_from, 14))
        plans = {plan.key: plan for plan in plan_all(dump.root, store)}
        commit_format.ensure_root(objects_of(store))
        ring, events = StoreRing(objects_of(store), 2), list[Event]()
        for place, step in enumerate(order):
            for rank in BOTH:
                run(plans[StepKey(rank, step)])
                ring.note(StepKey(rank, step))
            pending = [one for one in order[place + 1 :] if one < max(order[: place + 1])]
            events += ring.turn(BOTH, (), pending)
        around = set(range(max(nan_from - 2, 0), nan_from + 3)) | {12, 13}
        assert with_tensors(store) == with_tensors(store, 1) == sorted(around & set(range(14)))


def test_steps_that_others_look_after_or_that_are_busy_are_left_alone(dump: MadeDump, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    for step in range(6):
        commit(dump, store, step, ())
    ring = StoreRing(objects_of(store), 2)
    list(ring.turn([0], [StepKey(0, 1)]))
    assert with_tensors(store) == [1, 4, 5]
    assert with_tensors(store, 1) == [0, 1, 2, 3, 4, 5]


def test_only_so_many_incidents_keep_their_tensors(
    dump: MadeDump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_of, "INCIDENTS", 1)
    store = tmp_path / "run.zarr"
    for step in range(12):
        commit(dump, store, step, (3, 8))
    events = list(StoreRing(objects_of(store), 1).turn(BOTH, ()))
    assert incidents(events) == [(1, 3, True), (1, 8, False)]
    assert with_tensors(store) == [2, 3, 4, 11]


def test_a_watcher_drops_tensors_when_source_files_were_read_back(dump: MadeDump, tmp_path: Path) -> None:
    store, stop = tmp_path / "run.zarr", threading.Event()
    fill(dump, range(12), nan_in=[5])
    service, heard = observed_service(dump, store, black_box=2, retention=RetentionPolicy())
    watcher = threading.Thread(target=service.watch, args=(stop,), kwargs={"drain_s": 30})
    watcher.start()
    deadline = time.monotonic() + 120
    try:
        while len(heard.of(TensorsDropped)) < 2 * 5 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        stop.set()
        watcher.join()
    for rank in BOTH:
        assert with_tensors(store, rank) == [3, 4, 5, 6, 7, 10, 11]
    assert {path.parent.name for path in dump.root.rglob("*.npy")} == {"11"}
    assert [event.key for event in heard.of(StoreIncident)] == [StepKey(1, 5)]
    assert heard.of(SourceKept) == []
    assert_sound(store)
