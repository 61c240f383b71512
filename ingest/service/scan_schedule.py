"""When to scan the dump: often, but for at most a tenth of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: The share of the time that scans may take, because a large dump takes long to list. A scan that failed has
#: mostly waited for the store.
_SCAN_SHARE = 0.1
_FAILED_SCAN_SHARE = 0.5
#: The longest pause, in seconds, after a scan that took far longer than the one before: something other than
#: the size of the dump may have held it up.
_LONGEST_FIRST_REST_S = 60.0


@dataclass(slots=True)
class ScanSchedule:
    """Decides when the next scan is due."""

    poll_s: float = 1.0
    """The shortest time between two scans, in seconds."""
    clock: Callable[[], float] = time.monotonic
    is_fresh: bool = False
    """Whether no step has changed its state since the last scan, so that its result still holds."""
    next_at: float = 0.0
    rests_until: float = 0.0
    """Until this time, a change in the dump does not make a scan due."""
    _last_took_s: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to scan."""
        return self.clock() >= self.next_at

    def scan_soon(self) -> None:
        """Make a scan due now."""
        self.next_at = 0.0

    def note_change(self) -> None:
        """Make a scan due as soon as the share of the time allows, because the dump has changed."""
        self.next_at = min(self.next_at, self.rests_until)

    def outdate(self) -> None:
        """Record that a step has changed its state since the last scan."""
        self.is_fresh = False

    def record_scan(self, started: float, *, failed: bool) -> None:
        """Record a scan that has just ended."""
        share = _FAILED_SCAN_SHARE if failed else _SCAN_SHARE
        now = self.clock()
        took_s, last_took_s, rest_per_s = now - started, self._last_took_s, 1 / share - 1
        self._last_took_s = took_s
        rest_s = min(took_s * rest_per_s, max(last_took_s * rest_per_s, _LONGEST_FIRST_REST_S))
        self.rests_until = now + rest_s
        self.next_at = max(now + self.poll_s, self.rests_until)
