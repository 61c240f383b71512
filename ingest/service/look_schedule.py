"""When to look at the dump: often, but for a small part of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: How much of the time goes into looking: a large dump takes long to list. A look that failed waited for the
#: store, and did not list.
_SHARE_OF_LOOKS = 0.1
_SHARE_OF_FAILED_LOOKS = 0.5
#: How long nothing is looked at after a look that took far longer than the one before: something else than
#: the size of the dump may have held it up.
_LONGEST_FIRST_REST_S = 60.0


@dataclass(slots=True)
class LookSchedule:
    """Decides when the next look is due."""

    poll_s: float = 1.0
    """From one look to the next at least."""
    clock: Callable[[], float] = time.monotonic
    is_fresh: bool = False
    """Whether nothing has come of any step since the last look, so that the look still holds."""
    next_at: float = 0.0
    rests_until: float = 0.0
    """Before this time, a change in the dump does not make a look due."""
    _last_took_s: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self.clock() >= self.next_at

    def look_soon(self) -> None:
        """Have the next look now."""
        self.next_at = 0.0

    def note_change(self) -> None:
        """Have the next look as soon as the share of the time allows: something in the dump has changed."""
        self.next_at = min(self.next_at, self.rests_until)

    def outdate(self) -> None:
        """Record that something has come of a step since the last look."""
        self.is_fresh = False

    def record_look(self, started: float, *, failed: bool) -> None:
        """Record a look that has just ended."""
        share = _SHARE_OF_FAILED_LOOKS if failed else _SHARE_OF_LOOKS
        now = self.clock()
        took_s, last_took_s, rest_per_s = now - started, self._last_took_s, 1 / share - 1
        self._last_took_s = took_s
        rest_s = min(took_s * rest_per_s, max(last_took_s * rest_per_s, _LONGEST_FIRST_REST_S))
        self.rests_until = now + rest_s
        self.next_at = max(now + self.poll_s, self.rests_until)
