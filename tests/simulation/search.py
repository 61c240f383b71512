"""Plays many schedules, and makes the shortest of one that violates an invariant."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.simulation.choices import Choices, Recorded, Replayed
from tests.simulation.kernel import Violation
from tests.simulation.seams import simulated
from tests.simulation.world import Setting, World

#: Schedules that a process plays before it reports.
_BATCH = 500
#: Replays that making a schedule shorter may take.
_MAX_REPLAYS = 400


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule that violates an invariant."""

    seed: int
    invariant: str
    message: str


@dataclass(slots=True)
class Played:
    """What came of schedules."""

    schedules: int = 0
    steps: int = 0
    faults: int = 0
    casts: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    def add(self, other: Played) -> None:
        """Add what came of others."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.faults += other.faults
        self.casts += other.casts
        self.found += other.found


def play(seeds: Sequence[int], setting: Setting, *, most: int = 1) -> Played:
    """Play the schedules of these seeds, until `most` of them have violated an invariant."""
    played = Played()
    with simulated(), _without_collections():
        for seed in seeds:
            world = World(Choices(seed), setting)
            try:
                world.run()
            except Violation as exc:
                played.found.append(Found(seed, exc.invariant, str(exc)))
            played.schedules += 1
            played.steps += world.kernel.steps
            played.faults += world.faults.seen
            played.casts[world.cast] += 1
            if len(played.found) == most:
                break
    return played


def play_in_processes(first: int, count: int, setting: Setting, processes: int) -> Iterator[Played]:
    """Play the schedules of `count` seeds in several processes; yield what came of each batch, in order."""
    starts = range(first, first + count, _BATCH)
    batches = [range(start, min(start + _BATCH, first + count)) for start in starts]
    if processes == 1:
        yield from (play(batch, setting) for batch in batches)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.simulation.search"])
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running = [pool.submit(play, batch, setting) for batch in batches]
        try:
            for batch in running:
                yield batch.result()
        finally:
            pool.shutdown(cancel_futures=True)


def trace(seed: int, setting: Setting) -> tuple[list[str], Violation | None]:
    """Play the schedule of one seed; return its trace, and what it violates."""
    with simulated():
        return _traced(World(Choices(seed), setting, []))


def shortest(seed: int, setting: Setting, *, most_replays: int = _MAX_REPLAYS) -> tuple[list[str], Violation]:
    """Return a trace, as short as it gets, that violates the same invariant as the schedule of a seed does.

    What was chosen is recorded. Then choices are left out, or made the plainest ones, as long as the same
    invariant is violated.

    Raises:
        ValueError: the schedule violates nothing.
    """
    with simulated(), _without_collections():
        choices = Recorded(seed)
        world = World(choices, setting)
        violation = _violation(world)
        if violation is None:
            raise ValueError(f"seed {seed} violates nothing")
        best = _Schedule(choices.record, world.kernel.steps)
        left, size = most_replays, max(len(best.choices) // 2, 1)
        while size and left > 0:
            shorter = None
            for candidate in _candidates(best.choices, size):
                left -= 1
                shorter = _shorter(candidate, best, setting, violation.invariant)
                if shorter is not None or left <= 0:
                    break
            if shorter is None:
                size //= 2
            else:
                best = shorter
        lines, found = _traced(World(Replayed(best.choices), setting, []))
    assert found is not None
    return lines, found


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What was chosen, and how many steps that took."""

    choices: list[int]
    steps: int

    @property
    def size(self) -> tuple[int, int, int]:
        """How far it is from the plainest one."""
        return self.steps, sum(map(bool, self.choices)), len(self.choices)


def _candidates(choices: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(choices), size):
        block = choices[start : start + size]
        yield choices[:start] + choices[start + size :]
        if any(block):
            yield choices[:start] + [0] * len(block) + choices[start + size :]


def _shorter(candidate: list[int], best: _Schedule, setting: Setting, invariant: str) -> _Schedule | None:
    """Return what came of these choices, if it violates the same invariant and is simpler."""
    choices = Replayed(candidate)
    world = World(choices, setting)
    world.kernel.max_steps = best.steps
    violation = _violation(world)
    if violation is None or violation.invariant != invariant:
        return None
    while choices.record and not choices.record[-1]:
        choices.record.pop()
    schedule = _Schedule(choices.record, world.kernel.steps)
    return schedule if schedule.size < best.size else None


def _violation(world: World) -> Violation | None:
    try:
        world.run()
    except Violation as exc:
        return exc
    return None


def _traced(world: World) -> tuple[list[str], Violation | None]:
    violation = _violation(world)
    assert world.trace is not None
    return world.trace, violation


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect garbage at the end only: otherwise it takes a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
