"""When a state that lasts is logged again."""

from ingest.reporting.reminders import REMINDER_S, Reminders


def test_a_state_is_due_when_it_begins_and_every_ten_minutes() -> None:
    now = [5.0]
    reminders = Reminders(lambda: now[0])
    assert reminders.is_due("denied")
    assert not reminders.is_due("denied")
    assert reminders.is_due("another")
    now[0] += REMINDER_S - 1
    assert not reminders.is_due("denied")
    now[0] += 1
    assert reminders.is_due("denied")


def test_a_state_that_comes_back_is_due_at_once() -> None:
    reminders = Reminders(lambda: 0.0)
    assert reminders.is_due("denied")
    reminders.keep(["another"])
    assert reminders.is_due("denied")
    reminders.keep(["denied"])
    assert not reminders.is_due("denied")
