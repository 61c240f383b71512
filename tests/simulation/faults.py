"""What may go wrong in a schedule, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.choices import Choices
from tests.simulation.kernel import Process

#: How long a process may stand still in the middle of a step, or a request on its way, in seconds.
STALLS_S = (0.5, 5.0, 45.0)
#: How long after a write was given up it may reach the store, in seconds.
LATE_S = (1.0, 30.0, 200.0)
#: Kinds of faults of a write into the store.
OF_WRITES = ("refused", "answer lost", "stall", "kill before", "kill after", "late")
OF_SHARDS = ("spoiled",)
OF_READS = ("refused", "stall", "kill before")
#: The scheduler forgets the task; or the task never comes to an end.
OF_TASKS = ("forgotten", "blocked")
OF_FILES = ("stall", "kill before")
#: Jumps of a wall clock, in seconds.
JUMPS_S = (600.0, -600.0, 3600.0, -86400.0, -63_072_000.0)


@dataclass(slots=True)
class Faults:
    """A number of faults, of which each may hit any step."""

    choices: Choices
    left: int = 0
    """How many are still to come."""
    rate: float = 0.0
    """How likely each step is to be hit."""
    without: frozenset[str] = frozenset()
    """Kinds that do not happen in this schedule."""
    seen: int = 0
    only: frozenset[str] = frozenset()
    """If any: the only kinds that do."""
    _possible: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    def draw(self, process: Process, kinds: tuple[str, ...]) -> str:
        """Return what goes wrong with a step of a process; "" for nothing."""
        if not self.left:
            return ""
        possible = self._possible.get(kinds)
        if possible is None:
            possible = self._possible[kinds] = tuple(
                kind for kind in kinds if kind not in self.without and (not self.only or kind in self.only)
            )
        choice = self.choices.rare(self.rate, len(possible)) if possible else 0
        if not choice:
            return ""
        kind = possible[choice - 1]
        if kind.startswith("kill") and not process.may_die:
            return ""
        self.left -= 1
        self.seen += 1
        return kind

    def stall_s(self) -> float:
        """Return how long something stands still."""
        return STALLS_S[self.choices.pick(len(STALLS_S))]

    def late_s(self) -> float:
        """Return how late a write is."""
        return LATE_S[self.choices.pick(len(LATE_S))]
