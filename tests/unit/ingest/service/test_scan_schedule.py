"""When the dump is looked at, and that nothing but looking is not all that is done."""

from pathlib import Path
from typing import Any, cast

import pytest

from ingest.dispatch.processes import ProcessWorkers
from ingest.service.service import ScanSchedule
from ingest.watching.watcher import DumpState, Watcher
from tests.npy_files import MadeDump
from tests.services import observed_service

pytestmark = pytest.mark.timeout(30)


def test_changes_in_a_dump_that_takes_long_to_list_do_not_bring_looks_forward(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing but looking would be done while the job writes into a dump with a backlog."""
    now = [0.0]
    running, heard = observed_service(filled, store, clock=lambda: now[0])
    look = Watcher.scan

    def slow(self: Watcher, *arguments: Any, **options: Any) -> DumpState:
        now[0] += 2.0
        return look(self, *arguments, **options)

    monkeypatch.setattr(Watcher, "scan", slow)

    def looks() -> int:
        running.schedule.note_change()
        running.tick()
        return sum(isinstance(event, DumpState) for event in heard)

    assert looks() == 1
    now[0] += 17.9
    assert looks() == 1
    now[0] += 0.2
    assert looks() == 2


def test_a_change_makes_a_look_due_before_the_poll_but_not_before_the_rest_is_over() -> None:
    now = [10.0]
    schedule = ScanSchedule(poll_s=60.0, clock=lambda: now[0])
    schedule.record_scan(9.0, failed=False)
    assert (schedule.rests_until, schedule.next_at) == (19.0, 70.0)
    schedule.note_change()
    assert schedule.next_at == 19.0


@pytest.mark.parametrize(
    ("hears_all", "is_calm", "pause_s"), [(True, True, 60), (True, False, 1), (False, True, 1)]
)
def test_looks_are_rare_where_every_change_is_heard_of_and_nothing_is_left_to_do(
    *, hears_all: bool, is_calm: bool, pause_s: int
) -> None:
    schedule = ScanSchedule(poll_s=1.0, clock=lambda: 10.0)
    if hears_all:
        schedule.hears_all.set()
    schedule.record_scan(10.0, failed=False, is_calm=is_calm)
    assert schedule.next_at == 10 + pause_s
    schedule.note_change()
    assert schedule.is_due


class Workers:
    """Counts how often worker processes are told to rest."""

    rests = 0

    def rest(self) -> None:
        """Be told."""
        self.rests += 1


def test_workers_rest_a_minute_after_the_last_work(filled: MadeDump, store: Path) -> None:
    now, workers = [0.0], Workers()
    running, _ = observed_service(filled, store, clock=lambda: now[0])
    running.workers = cast("ProcessWorkers", workers)
    while running.dump_state is None or running.dump_state.pending:
        now[0] += 0.5
        running.schedule.scan_soon()
        running.tick()
    running.tick()
    now[0] += 59.0
    running.tick()
    assert not workers.rests
    now[0] += 2.0
    running.tick()
    assert workers.rests
