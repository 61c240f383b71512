"""What the training job writes, and when: arithmetic on a seed, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Op(StrEnum):
    """What is done to one file of a step."""

    WRITE = "write"
    """Open, write in two halves, close, take away the write bit: as MindSpore does it."""
    RENAME = "rename"
    """Write under another name beside it, then rename: the file is there at once, or replaced at once."""
    GROW = "grow"
    """Append a quarter of it; the fourth time, close."""
    TEAR = "tear"
    """Write half of it, take away the write bit, and never come back."""
    SHRINK = "shrink"
    """Write a shorter tensor into the same file."""
    VANISH = "vanish"
    """Remove it."""


class Manner(StrEnum):
    """How one rank writes one step."""

    PLAIN = "plain"
    ATOMIC = "atomic"
    SLOW = "a file that grows slowly"
    LATE = "a file that comes late"
    SHRINK = "a file that shrinks"
    REPLACE = "a file that is replaced"
    VANISH = "a file that vanishes"
    TORN = "a torn file"
    FUTURE = "times in the future"
    PAST = "times in the past"
    AGAIN = "dumped again"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One thing that a rank does to one of its files."""

    at_s: float
    rank: int
    step: int
    file: int
    """Its number among the files of the step."""
    op: Op
    attempt: int = 0
    """Contents differ from attempt to attempt."""
    shift_s: float = 0.0
    """How much later than now the file says that it was written."""


@dataclass(frozen=True, slots=True)
class Job:
    """The training job."""

    ranks: int = 4
    files: int = 24
    """In each step of each rank."""
    every_s: float = 4.0
    """From step to step."""
    odd: float = 0.6
    """The share of steps of a rank that are not written plainly."""
    restart_every: int = 8
    """After so many steps the job dies, and goes on from a checkpoint two steps back."""


_DAY_S = 86_400.0


def manners(seed: int, duration_s: float, job: Job) -> dict[tuple[int, int], Manner]:
    """Return how each step of each rank is written, by rank and step."""
    rng = random.Random(f"story {seed}")
    odd = [manner for manner in Manner if manner not in (Manner.PLAIN, Manner.AGAIN)]
    chosen: dict[tuple[int, int], Manner] = {}
    for step in range(1, int(duration_s / job.every_s) + 1):
        for rank in range(job.ranks):
            is_odd, which = rng.random() < job.odd, rng.randrange(len(odd))
            chosen[rank, step] = odd[which] if is_odd else Manner.PLAIN
    return chosen


def story(seed: int, duration_s: float, job: Job) -> list[Action]:
    """Return all that the job does, in order; the same for the same arguments on every machine."""
    rng = random.Random(f"delays {seed}")
    actions: list[Action] = []
    steps = int(duration_s / job.every_s)
    for (rank, step), manner in manners(seed, duration_s, job).items():
        actions += _step(rng, job, rank, step, manner)
    for last in range(job.restart_every, steps, job.restart_every):
        # The whole job starts again: every rank writes the last two steps once more, with other values.
        for rank in range(job.ranks):
            for step in (last - 1, last):
                at_s = (last + 0.5 + 0.25 * (step - last)) * job.every_s + rank * 0.01
                actions += [
                    Action(round(at_s, 3), rank, step, n, Op.WRITE, attempt=2) for n in range(job.files)
                ]
    return sorted(actions)


def _step(rng: random.Random, job: Job, rank: int, step: int, manner: Manner) -> Iterator[Action]:
    at_s = round((step - 1) * job.every_s + rank * 0.05, 3)
    special, delay_s = rng.randrange(job.files), round(rng.uniform(0.5, 3.0) * job.every_s, 3)
    shift_s = {Manner.FUTURE: _DAY_S, Manner.PAST: -3650 * _DAY_S}.get(manner, 0.0)
    op = Op.RENAME if manner is Manner.ATOMIC else Op.WRITE
    for file in range(job.files):
        if file == special and manner is Manner.LATE:
            yield Action(at_s + delay_s, rank, step, file, Op.WRITE)
        elif file == special and manner is Manner.SLOW:
            for quarter in range(4):
                yield Action(round(at_s + delay_s * quarter / 4, 3), rank, step, file, Op.GROW)
        elif file == special and manner is Manner.TORN:
            yield Action(at_s, rank, step, file, Op.TEAR)
        else:
            yield Action(at_s, rank, step, file, op, shift_s=shift_s)
    afterwards = {Manner.SHRINK: Op.SHRINK, Manner.REPLACE: Op.RENAME, Manner.VANISH: Op.VANISH}
    if manner in afterwards:
        yield Action(round(at_s + delay_s, 3), rank, step, special, afterwards[manner], attempt=1)
