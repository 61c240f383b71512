"""Observers of a process hear every event, as long as they are subscribed."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from workers import events
from workers.events import Event


@dataclass(frozen=True, slots=True)
class Happened(Event):
    number: int


@pytest.fixture
def observed() -> Iterator[list[Event]]:
    seen: list[Event] = []
    events.subscribe(seen.append)
    yield seen
    events.unsubscribe(seen.append)


def test_every_observer_hears_every_event_in_order(observed: list[Event]) -> None:
    other: list[Event] = []
    events.subscribe(other.append)
    events.emit(Happened(1))
    events.unsubscribe(other.append)
    events.emit(Happened(2))
    assert observed == [Happened(1), Happened(2)]
    assert other == [Happened(1)]


def test_an_observer_that_was_never_subscribed_cannot_be_removed() -> None:
    with pytest.raises(ValueError, match="not in list"):
        events.unsubscribe(lambda _: None)
