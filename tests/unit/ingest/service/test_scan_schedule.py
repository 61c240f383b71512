"""When the dump is looked at, and that nothing but looking is not all that is done."""

from pathlib import Path
from typing import Any

import pytest

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


def test_a_look_that_waited_for_the_store_does_not_keep_the_next_one_waiting() -> None:
    """Listing is work, of which little is to be done; to wait for a store that is away is none."""
    now = [100.0]
    schedule = ScanSchedule(poll_s=1.0, clock=lambda: now[0])
    now[0] = 106.0
    schedule.record_scan(100.0, failed=True)
    assert schedule.next_at == 106 + 6
    schedule.record_scan(100.0, failed=False)
    assert schedule.next_at == 106 + 54
    is_due = [schedule.is_due]
    schedule.scan_soon()
    is_due.append(schedule.is_due)
    assert is_due == [False, True]


def test_a_change_makes_a_look_due_before_the_poll_but_not_before_the_rest_is_over() -> None:
    now = [10.0]
    schedule = ScanSchedule(poll_s=60.0, clock=lambda: now[0])
    schedule.record_scan(9.0, failed=False)
    assert (schedule.rests_until, schedule.next_at) == (19.0, 70.0)
    schedule.note_change()
    assert schedule.next_at == 19.0
