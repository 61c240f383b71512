"""The virtual clock, and the actors that take turns on it: one step of one actor at a time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.choices import Choices

#: What one step takes, in virtual seconds.
STEP_S = 0.01
#: Steps after which a schedule counts as one that never ends.
MAX_STEPS = 20_000
#: The wall clock at the beginning, in seconds since the epoch.
EPOCH = 1_800_000_000.0


class Killed(BaseException):
    """The process was killed: nothing more that it does has an effect."""


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


@dataclass(eq=False, slots=True)
class Process:
    """A process: it has a clock of its own, and may be killed."""

    name: str
    kernel: Kernel
    offset_s: float = 0.0
    """By how much its wall clock is wrong."""
    may_die: bool = True
    is_dead: bool = False

    def wall(self) -> float:
        """Return the time by the wall clock of the process."""
        return EPOCH + self.kernel.now + self.offset_s

    def monotonic(self) -> float:
        """Return the time by a clock that does not jump."""
        return self.kernel.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.kernel.sleep(seconds)
        self.check()

    def step(self) -> None:
        """Let others go first, maybe."""
        self.kernel.step()
        self.check()

    def check(self) -> None:
        """Raise Killed if the process is dead."""
        if self.is_dead:
            raise Killed

    def kill(self) -> None:
        """Kill the process, and raise Killed; call it from the process itself."""
        self.is_dead = True
        raise Killed

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.kernel.trace is not None:
            self.kernel.trace.append(f"{self.kernel.now:9.2f} s  {self.name:<14} {text}")


@dataclass(eq=False, slots=True)
class Kernel:
    """Chooses who goes next. Time passes with each step, and jumps when all actors sleep."""

    choices: Choices
    trace: list[str] | None = None
    now: float = 0.0
    steps: int = 0
    max_steps: int = MAX_STEPS
    _ready: list[greenlet] = field(default_factory=list)
    """The one that went last stands first."""
    _asleep: list[tuple[float, int, greenlet | Callable[[], None]]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)
    _parked: list[greenlet] = field(default_factory=list)
    _hub: greenlet = field(default_factory=getcurrent)
    _is_over: bool = False

    def spawn(self, function: Callable[[], None]) -> None:
        """Add an actor."""
        self._ready.append(greenlet(function, self._hub))

    def call_at(self, at: float, function: Callable[[], None]) -> None:
        """Have a function called at a time; it must not sleep."""
        heapq.heappush(self._asleep, (at, next(self._count), function))

    def step(self) -> None:
        """Let others go first, maybe; called by an actor."""
        if self._is_over:
            raise GreenletExit
        self._ready.insert(0, getcurrent())
        self._hub.switch()

    def sleep(self, seconds: float) -> None:
        """Let an actor sleep."""
        if self._is_over:
            raise GreenletExit
        heapq.heappush(self._asleep, (self.now + seconds, next(self._count), getcurrent()))
        self._hub.switch()

    def park(self) -> None:
        """Let an actor wait until `wake` is called."""
        self._parked.append(getcurrent())
        self._hub.switch()

    def wake(self) -> None:
        """Let all actors that wait go on."""
        if self._parked:
            self._ready += self._parked
            self._parked.clear()

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let the actors take turns until everything is over; asked whenever all of them sleep.

        Raises:
            Violation: an invariant does not hold, or there is no end.
        """
        self._hub = getcurrent()
        ready, asleep, pick = self._ready, self._asleep, self.choices.pick
        try:
            while True:
                while asleep and asleep[0][0] <= self.now:
                    sleeper = heapq.heappop(asleep)[2]
                    if isinstance(sleeper, greenlet):
                        ready.append(sleeper)
                    else:
                        sleeper()
                if not ready:
                    if not asleep or is_over():
                        return
                    self.now = asleep[0][0]
                    continue
                self.steps += 1
                if self.steps > self.max_steps:
                    raise Violation("an end", f"{self.max_steps} steps, and no end")
                self.now += STEP_S
                ready.pop(pick(len(ready)) if len(ready) > 1 else 0).switch()
        finally:
            self._end()

    def _end(self) -> None:
        """End all actors; their `finally` blocks can do nothing any more."""
        self._is_over = True
        left = [*self._ready, *self._parked, *(entry[2] for entry in self._asleep)]
        self._ready.clear()
        self._asleep.clear()
        self._parked.clear()
        for actor in left:
            if isinstance(actor, greenlet) and actor:
                actor.throw(GreenletExit)
