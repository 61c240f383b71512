"""Events: what happened, as values. Metrics, logs and reports observe them; emitters know no observer.

Every event of the project derives from `Event`. Events of the data plane (requests, tasks) go to the
observers of the process, which subscribe here; events of a service go to the observers that it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""


Observer: TypeAlias = Callable[[Event], None]
_observers: list[Observer] = []


def subscribe(observer: Observer) -> None:
    """Have `observer` called with every event of this process, in the thread where it happens."""
    _observers.append(observer)


def unsubscribe(observer: Observer) -> None:
    """Stop calling `observer`."""
    _observers.remove(observer)


def emit(event: Event) -> None:
    """Pass an event to all observers of this process."""
    for observer in _observers:
        observer(event)
