"""The observers of a service."""

from __future__ import annotations

from workers.events import Event, Observer


class Observers(list[Observer]):
    """The observers of one service, in the order in which they are called."""

    def notify(self, event: Event) -> None:
        """Call every observer with an event."""
        for observer in self:
            observer(event)
