"""Who hears what happens in a service."""

from ingest.service.observers import Observers
from workers.events import Event


def test_observers_hear_in_order_and_may_come_and_go() -> None:
    heard: list[str] = []

    def first(_: Event) -> None:
        heard.append("first")

    def second(_: Event) -> None:
        heard.append("second")

    observers = Observers([first])
    observers.append(second)
    observers.notify(Event())
    observers.remove(first)
    observers.notify(Event())
    assert heard == ["first", "second", "second"]
