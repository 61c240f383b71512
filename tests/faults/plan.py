"""Determine which faults occur and when, from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, which a schedule may contain several times."""

    name: str
    component: str
    """The component that it affects, and whose recovery is measured."""
    hold_s: tuple[float, float]
    """Its shortest and longest duration in seconds."""
    needs: str = ""
    """What the machine must offer for it: `faketime`, `tmpfs`, or nothing."""


#: The duration of a kill: none, because the supervisor restarts a killed service.
_AT_ONCE = (0.0, 0.0)
KINDS = (
    Kind("kill watcher", "watcher", _AT_ONCE),
    Kind("kill worker", "worker", _AT_ONCE),
    Kind("kill nanny", "nanny", _AT_ONCE),
    Kind("kill scheduler", "scheduler", _AT_ONCE),
    Kind("kill consolidator", "consolidator", _AT_ONCE),
    Kind("kill gateway", "gateway", (0.5, 5)),
    Kind("kill OSD", "OSD", (0.5, 5)),
    Kind("stop watcher", "watcher", (2, 10)),
    Kind("stop worker", "worker", (2, 15)),
    Kind("stop nanny", "nanny", (2, 10)),
    Kind("stop scheduler", "scheduler", (2, 10)),
    Kind("stop consolidator", "consolidator", (2, 10)),
    Kind("stop gateway", "gateway", (2, 15)),
    Kind("stop OSD", "OSD", (2, 15)),
    Kind("503 SlowDown", "S3", (2, 10)),
    Kind("403 from S3", "S3", (1, 4)),
    Kind("reset in mid-body", "S3", (2, 10)),
    Kind("refused connections", "S3", (2, 8)),
    Kind("black hole", "S3", (2, 20)),
    Kind("answers lost", "S3", (2, 15)),
    Kind("slow network", "S3", (3, 10)),
    Kind("store full", "S3", (2, 6)),
    Kind("scratch full", "worker", (3, 10), needs="tmpfs"),
    Kind("clock +10 min", "watcher", (3, 10), needs="faketime"),
    Kind("clock -10 min", "watcher", (3, 10), needs="faketime"),
    Kind("clock +1 h", "watcher", (3, 10), needs="faketime"),
    Kind("second watcher", "watcher", (4, 15)),
    Kind("stop gateway for long", "gateway", (30, 60)),
    Kind("black hole for long", "S3", (30, 60)),
    Kind("clock -1 d", "watcher", (3, 10), needs="faketime"),
    Kind("clock -2 y", "watcher", (3, 10), needs="faketime"),
    Kind("clock of worker +2 h", "worker", (3, 10), needs="faketime"),
    Kind("clock of consolidator +2 h", "consolidator", (3, 10), needs="faketime"),
    Kind("clock of consolidator -2 y", "consolidator", (3, 10), needs="faketime"),
    Kind("clock of scheduler -1 h", "scheduler", (3, 10), needs="faketime"),
    Kind("kill gc", "gc", (0.5, 4)),
)
_BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault: when it begins and when it is healed, in seconds since the campaign began."""

    at_s: float
    until_s: float
    name: str
    victim: int
    """Which of several equal processes it affects, modulo their number."""
    severity: float
    """From 0 to 1, for faults that can be mild or severe."""

    @property
    def component(self) -> str:
        """The component that it affects."""
        return _BY_NAME[self.name].component


@dataclass(frozen=True, slots=True)
class Pace:
    """How closely faults follow one another."""

    first_s: float = 5.0
    """When the first fault begins."""
    pause_s: tuple[float, float] = (1.0, 8.0)
    """The shortest and longest time from the end of a fault to the beginning of the next."""
    overlap: float = 0.25
    """The share of faults that begin before the previous one is healed."""


def available(has: Sequence[str], wanted: Sequence[str] = ()) -> list[Kind]:
    """Return the kinds of fault that a machine which offers `has` can produce, in the order of `KINDS`.

    If `wanted` is given, only kinds with these names are returned.
    """
    return [
        kind
        for kind in KINDS
        if (not kind.needs or kind.needs in has) and (not wanted or kind.name in wanted)
    ]


def schedule(seed: int, duration_s: float, kinds: Sequence[Kind], pace: Pace | None = None) -> list[Fault]:
    """Return the faults of a campaign in order. The same arguments give the same faults on every machine.

    All kinds occur once, in random order, before any kind occurs again. Faults of the same component do not
    overlap. The last fault is healed before `duration_s` has passed.
    """
    pace = pace or Pace()
    rng = random.Random(f"faults {seed}")
    faults: list[Fault] = []
    at_s = pace.first_s
    deck: list[Kind] = []
    while kinds:
        deck = deck or rng.sample(list(kinds), len(kinds))
        kind = deck.pop()
        hold_s = round(rng.uniform(*kind.hold_s), 1)
        overlaps = rng.random() < pace.overlap
        pause_s, early = rng.uniform(*pace.pause_s), rng.random()
        victim, severity = rng.randrange(100), round(rng.random(), 3)
        if faults:
            before = faults[-1]
            # Half of the pause even if faults overlap: the supervisor takes a moment to restart a process.
            at_s = before.at_s + early * (before.until_s - before.at_s) + pause_s / 2
            free_s = max((f.until_s for f in faults if f.component == kind.component), default=0.0)
            if not overlaps:
                at_s = max(fault.until_s for fault in faults) + pause_s
            at_s = max(at_s, free_s + pause_s / 2)
        at_s = round(at_s, 1)
        if at_s + hold_s > duration_s:
            return faults
        faults.append(Fault(at_s, round(at_s + hold_s, 1), kind.name, victim, severity))
    return faults
