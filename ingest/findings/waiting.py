"""Wait until something has happened in a store: an incident with its evidence, a step, or silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from ingest.findings.evidence import CommittedStep, has_evidence, newest_steps
from ingest.findings.incidents import Incident, incidents
from ingest.findings.severities import at_least
from ingest.reader import dump_store
from ingest.reader.catalog import Catalog
from workers.errors import StoreMissing, UsageError
from workers.model import StepKey

#: How long a store must be as it is to be idle, in seconds.
IDLE_S = 60.0
#: How long to pause between two looks at a store, in seconds.
POLL_S = 5.0
#: A look reads the commits of all steps: the pause is at least this many times as long.
_REST = 4.0


class Until(StrEnum):
    """What to wait for."""

    INCIDENT = "incident"
    """An incident of at least some severity, of which every rank has committed the first step."""
    STEP = "step"
    """Every rank of the store has committed a step, or a later one."""
    IDLE = "idle"
    """Nothing has been committed for some time."""


@dataclass(frozen=True, slots=True)
class Waited:
    """How a wait ended."""

    came: bool
    reason: str
    """What came, or what there is instead, in one sentence."""
    incident: Incident | None = None


def wait(
    url: str,
    until: str = Until.INCIDENT,
    *,
    step: int | None = None,
    timeout_s: float | None = None,
    severity: str = "critical",
    since: float = 0.0,
    idle_s: float = IDLE_S,
    poll_s: float = POLL_S,
) -> Waited:
    """Wait until something has happened in a store, which need not exist yet.

    Args:
        url: the store.
        until: `incident`, `step` or `idle`; see `Until`.
        step: for `step`: its number.
        timeout_s: how long to wait at most, in seconds; None for ever.
        severity: for `incident`: the mildest that counts.
        since: for `incident`: a Unix time in seconds. Incidents count whose first step was committed after
            it: a job that goes on in the same store gives the time of its start.
        idle_s: for `idle`: how long nothing must have been committed, in seconds.
        poll_s: how long to pause between two looks, in seconds; longer if the store is large.

    Raises:
        UsageError: the event or the severity is unknown, its step has no number, or the URL is not that of a
            store.
        StoreError: the store cannot be reached.
    """
    return wait_with(
        lambda: dump_store.open_store(url),
        until,
        step=step,
        timeout_s=timeout_s,
        severity=severity,
        since=since,
        idle_s=idle_s,
        poll_s=poll_s,
    )


def wait_with(
    open_store: Callable[[], Catalog],
    until: str,
    *,
    step: int | None,
    timeout_s: float | None,
    severity: str,
    since: float = 0.0,
    idle_s: float,
    poll_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Waited:
    """Wait as `wait` does, for a store that a function opens; that raises `StoreMissing` if there is none."""
    if until not in tuple(Until):
        raise UsageError(f"cannot wait for {until!r}", hint=f"Known: {', '.join(Until)}.")
    if until == Until.STEP and step is None:
        raise UsageError(
            "--until step needs the number of a step", hint="dump-ingest wait STORE --until step 8"
        )
    at_least(severity)  # a mistake must not wait for the store
    silence = _Silence(idle_s, clock)
    deadline = None if timeout_s is None else clock() + timeout_s
    store: Catalog | None = None
    while True:
        began = clock()
        if store is None:
            with suppress(StoreMissing):
                store = open_store()
        seen = None if store is None else store.reopened()
        if until == Until.IDLE:
            waited = silence.in_store(seen)
        else:
            waited = _looked_at(seen, step if until == Until.STEP else None, severity, since)
        now = clock()
        if waited.came or (deadline is not None and now >= deadline):
            return waited
        pause_s = max(poll_s, _REST * (now - began))
        sleep(pause_s if deadline is None else max(0.0, min(pause_s, deadline - now)))


def _looked_at(store: Catalog | None, step: int | None, severity: str, since: float) -> Waited:
    if store is None:
        return Waited(came=False, reason="there is no store yet")
    if step is not None:
        return _reached(store, step)
    incident = first_with_evidence(store, severity, since)
    if incident is None:
        return Waited(came=False, reason=f"no {severity} incident of which every rank has the step")
    return Waited(came=True, reason=incident.summary, incident=incident)


def _reached(store: Catalog, wanted: int) -> Waited:
    newest = newest_steps(_committed(store))
    behind = [rank for rank, step in newest.items() if step < wanted]
    if newest and not behind:
        return Waited(came=True, reason=f"every rank has committed step {wanted} or a later one")
    reason = f"rank {behind[0]} has committed step {newest[behind[0]]}" if behind else "no step is committed"
    return Waited(came=False, reason=f"{reason}, and not step {wanted}")


@dataclass
class _Silence:
    idle_s: float
    clock: Callable[[], float]
    _state: Mapping[StepKey, str] | None = None
    _since: float = 0.0

    def in_store(self, store: Catalog | None) -> Waited:
        state = {} if store is None else {step.key: step.fingerprint for step in store.select(damages=[])}
        now = self.clock()
        if state != self._state:
            self._state, self._since = state, now
        quiet_s = now - self._since
        if state and quiet_s >= self.idle_s:
            return Waited(came=True, reason=f"nothing was committed for {quiet_s:.0f} s")
        return Waited(came=False, reason="steps are still committed" if state else "no step is committed")


def _committed(store: Catalog) -> list[CommittedStep]:
    return [
        CommittedStep(step.key.rank, step.key.step, step.commit.record.committed_at_s)
        for step in store.select(damages=[])
        if step.key.step is not None
    ]


def first_with_evidence(store: Catalog, severity: str, since: float = 0.0) -> Incident | None:
    """Return the worst incident of which every rank has committed the first step; None if there is none."""
    listed = incidents(store, severity=severity).incidents
    committed = _committed(store) if listed else []
    return next((each for each in listed if has_evidence(committed, each.first_step, since)), None)
