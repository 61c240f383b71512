"""What lasts is logged when it begins, and again every ten minutes: more lines would hide all others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

#: How often a state that lasts is logged again, in seconds.
REMINDER_S = 600.0


@dataclass(slots=True)
class Reminders:
    """Remembers when each state was logged last. Bounded by what `is_due` is asked about."""

    clock: Callable[[], float] = time.monotonic
    _logged_at: dict[str, float] = field(default_factory=dict)

    def is_due(self, state: str) -> bool:
        """Return whether a state is worth a line now, and take it as logged if so."""
        now = self.clock()
        if now < self._logged_at.get(state, -math.inf) + REMINDER_S:
            return False
        self._logged_at[state] = now
        return True

    def keep(self, states: Collection[str]) -> None:
        """Forget all other states: they have ended, and are logged at once when they come back."""
        self._logged_at = {state: at for state, at in self._logged_at.items() if state in states}
