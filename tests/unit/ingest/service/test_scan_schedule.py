"""When the dump is looked at, and that nothing but looking is not all that is done."""

import pytest

from ingest.service.service import ScanSchedule

pytestmark = pytest.mark.timeout(30)


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
