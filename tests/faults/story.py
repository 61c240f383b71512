"""Determine what the training job writes and when, from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class Op(StrEnum):
    """What the job does to one file of a step."""

    WRITE = "write"
    """Open the file, write it in two halves, close it and remove the write permission, as MindSpore does."""
    RENAME = "rename"
    """Write a file with another name, then rename it, so that it appears or is replaced atomically."""
    GROW = "grow"
    """Append a quarter of the content; after the fourth quarter, close the file."""
    TEAR = "tear"
    """Write half of the content, remove the write permission, and never continue."""
    SHRINK = "shrink"
    """Write a shorter tensor into the same file."""
    VANISH = "vanish"
    """Remove the file."""
    SNEAK = "sneak"
    """Write other values of the same size into the file, and put its modification time back."""
    FORGE = "forge"
    """Write other values with the digests of those that other ranks write; or a file whose name deceives."""


class Manner(StrEnum):
    """How one rank writes one step."""

    PLAIN = "plain"
    ATOMIC = "atomic"
    SLOW = "a file that grows slowly"
    LATE = "a file that arrives late"
    SHRINK = "a file that shrinks"
    REPLACE = "a file that is replaced"
    VANISH = "a file that vanishes"
    TORN = "a torn file"
    FUTURE = "times in the future"
    PAST = "times in the past"
    AGAIN = "dumped again"
    FEWER = "dumped again with fewer files"
    SNEAK = "a file that is rewritten under its old time"
    HOSTILE = "a hostile rank"


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
    """The number of the attempt; each attempt writes other contents."""
    shift_s: float = 0.0
    """The difference between the file's modification time and the present, in seconds."""


@dataclass(frozen=True, slots=True)
class Job:
    """The training job."""

    ranks: int = 4
    files: int = 24
    """The number of files in each step of each rank that are its own."""
    shared_files: int = 1
    """The number of further, large files that all ranks have in common, as replicas have weights."""
    every_s: float = 6.0
    """The time from one step to the next."""
    hostile_files: int = 3
    """The number of further files that a hostile rank writes, with names made to deceive."""
    odd: float = 0.6
    """The share of steps of a rank that are not written in the manner PLAIN."""
    restart_every: int = 8
    """The number of steps after which the job dies and restarts from a checkpoint two steps earlier."""

    @property
    def file_count(self) -> int:
        """The number of all files in each step of each rank; the shared ones are the last."""
        return self.files + self.shared_files


_DAY_S = 86_400.0


def manners(seed: int, duration_s: float, job: Job) -> dict[tuple[int, int], Manner]:
    """Return the manner in which each step of each rank is written, by rank and step."""
    rng = random.Random(f"story {seed}")
    odd = [manner for manner in Manner if manner not in (Manner.PLAIN, Manner.AGAIN)]
    chosen: dict[tuple[int, int], Manner] = {}
    for step in range(1, int(duration_s / job.every_s) + 1):
        for rank in range(job.ranks):
            is_odd, which = rng.random() < job.odd, rng.randrange(len(odd))
            chosen[rank, step] = odd[which] if is_odd else Manner.PLAIN
    return chosen


def story(seed: int, duration_s: float, job: Job) -> list[Action]:
    """Return all actions of the job in order. The same arguments give the same actions on every machine."""
    rng = random.Random(f"delays {seed}")
    actions: list[Action] = []
    steps = int(duration_s / job.every_s)
    for (rank, step), manner in manners(seed, duration_s, job).items():
        of_step = list(_actions_of_step(rng, job, rank, step, manner))
        actions += _as_a_hostile_rank(of_step, job) if manner is Manner.HOSTILE else of_step
    for last in range(job.restart_every, steps, job.restart_every):
        # The whole job restarts: every rank writes the last two steps again, with other values.
        for rank in range(job.ranks):
            for step in (last - 1, last):
                at_s = (last + 0.5 + 0.25 * (step - last)) * job.every_s + rank * 0.01
                actions += [
                    Action(round(at_s, 3), rank, step, n, Op.WRITE, attempt=2) for n in range(job.file_count)
                ]
    return sorted(actions)


def _as_a_hostile_rank(actions: list[Action], job: Job) -> Iterator[Action]:
    """Yield the actions by which a hostile rank writes a step, given how it would write it otherwise."""
    for action in actions:
        yield replace(action, op=Op.FORGE) if action.file >= job.files else action
    for number in range(job.hostile_files):
        yield replace(actions[-1], file=job.file_count + number, op=Op.FORGE)


def _actions_of_step(rng: random.Random, job: Job, rank: int, step: int, manner: Manner) -> Iterator[Action]:
    """Yield the actions by which a rank writes a step. Most manners concern one file, chosen at random."""
    at_s = round((step - 1) * job.every_s + rank * 0.05, 3)
    special, delay_s = rng.randrange(job.file_count), round(rng.uniform(0.5, 3.0) * job.every_s, 3)
    shift_s = {Manner.FUTURE: _DAY_S, Manner.PAST: -3650 * _DAY_S}.get(manner, 0.0)
    op = Op.RENAME if manner is Manner.ATOMIC else Op.WRITE
    instead = {
        Manner.LATE: [(at_s + delay_s, Op.WRITE)],
        Manner.SLOW: [(round(at_s + delay_s * quarter / 4, 3), Op.GROW) for quarter in range(4)],
        Manner.TORN: [(at_s, Op.TEAR)],
    }
    for file in range(job.file_count):
        if file == special and manner in instead:
            for special_at_s, special_op in instead[manner]:
                yield Action(special_at_s, rank, step, file, special_op)
        else:
            yield Action(at_s, rank, step, file, op, shift_s=shift_s)
    afterwards = {
        Manner.SHRINK: Op.SHRINK,
        Manner.REPLACE: Op.RENAME,
        Manner.VANISH: Op.VANISH,
        Manner.SNEAK: Op.SNEAK,
    }
    if manner is Manner.FEWER:
        again_s = round(at_s + delay_s, 3)
        for file in range(job.file_count):
            yield Action(again_s, rank, step, file, Op.VANISH, attempt=3)
        for file in range(job.file_count * 2 // 3):
            yield Action(round(again_s + 0.1, 3), rank, step, file, Op.WRITE, attempt=3)
    if manner in afterwards:
        yield Action(round(at_s + delay_s, 3), rank, step, special, afterwards[manner], attempt=1)
