"""Which incidents are worth a message: new ones, and those that have grown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ingest.findings.incidents import Incident, Incidents
from workers.store.model import SEVERITIES

#: Asking the store takes at most this share of the time, however many steps it has.
_SHARE = 0.1
#: An incident has grown if another rank has it, or if it was seen in this many times the steps.
_GROWTH = 10


class _Extent(NamedTuple):
    """How far an incident had gone when it was told."""

    ranks: frozenset[int]
    steps: int
    severity: str


@dataclass(slots=True, eq=False)
class IncidentPosts:
    """Remembers what was told. Used by one thread. Memory: an entry for each incident that was told."""

    ask: Callable[[], Incidents]
    """Returns the incidents of the store as it is now."""
    severity: str = "warning"
    """The mildest that is told."""
    clock: Callable[[], float] = time.monotonic
    _told: dict[str, _Extent] = field(default_factory=dict)
    _rest_until: float = 0.0

    @property
    def rest_s(self) -> float:
        """For how long the store should not be asked, in seconds."""
        return max(self._rest_until - self.clock(), 0.0)

    def due(self, steps: Iterable[int]) -> Iterator[Incident]:
        """Return the incidents of these steps to tell, and take them as told.

        Raises:
            DumpIngestError: the store cannot be reached, or is damaged.
        """
        chosen = set(steps)
        severe = SEVERITIES[SEVERITIES.index(self.severity) :]
        started = self.clock()
        try:
            incidents = self.ask().incidents
        finally:
            now = self.clock()
            self._rest_until = now + (now - started) / _SHARE
        for incident in incidents:
            touched = any(incident.first_step <= step <= incident.last_step for step in chosen)
            if touched and incident.severity in severe and self._has_grown(incident):
                self._told[incident.id] = _Extent(
                    frozenset(incident.ranks), incident.steps, incident.severity
                )
                yield incident

    def forget(self, incident: str) -> None:
        """Tell an incident again: the message about it did not arrive."""
        self._told.pop(incident, None)

    def _has_grown(self, incident: Incident) -> bool:
        told = self._told.get(incident.id)
        return (
            told is None
            or not told.ranks.issuperset(incident.ranks)
            or incident.steps >= _GROWTH * told.steps
            or incident.severity != told.severity
        )
