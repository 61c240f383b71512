"""What a task does: one job of a step, its publishing, or some small steps as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingest.dispatch.clients import TaskFuture
from ingest.steps.state import StepState, Work
from workers.tasks import run as tasks
from workers.tasks.model import Receipt, StepPlan

#: Stand in for the number of a job: the publishing of a step, and a step done as a whole.
PUBLISH = -1
WHOLE = -2
#: How many bytes are converted in the time that a file takes besides its bytes, 20 µs.
_FILE_NBYTES = 32 * 1024


@dataclass(eq=False, slots=True)
class OfferedStep:
    """A step that is under way, and how far its jobs are."""

    plan: StepPlan
    state: StepState
    work: Work
    offered_at: float
    receipts: dict[int, Receipt] = field(default_factory=dict)
    tasks: dict[int, InflightTask] = field(default_factory=dict)
    """Those in flight."""
    attempts: dict[int, int] = field(default_factory=dict)
    packed: bytes | None = None
    """The plan, if it must be published by itself: packed while the jobs run."""
    is_alone: bool = False
    """Whether it failed in a way that may be its own doing: then it shares no task with another step."""
    unread_nbytes: int = 0
    """Bytes to read for the jobs that are not done."""

    def nbytes(self, number: int) -> int:
        """Return the bytes to read for one of its jobs, or for all."""
        if number == WHOLE:
            return sum(job.nbytes for job in self.plan.jobs)
        return 0 if number == PUBLISH else self.plan.jobs[number].nbytes

    def cost(self, number: int) -> int:
        """Return about how long one of its jobs takes, in bytes that are converted meanwhile."""
        return 0 if number < 0 else self.nbytes(number) + _FILE_NBYTES * len(self.plan.jobs[number].entries)

    def add_receipt(self, number: int, receipt: Receipt) -> None:
        """Record that a job is done."""
        self.receipts[number] = receipt
        self.unread_nbytes -= self.nbytes(number)
        self.work.jobs_done = len(self.receipts)


@dataclass(frozen=True, slots=True)
class TaskPart:
    """What a task does for one step."""

    step: OfferedStep
    number: int
    """Of the job; or `PUBLISH`, or `WHOLE`."""
    nbytes: int

    @property
    def may_share(self) -> bool:
        """Whether it may be done together with others: not if it has failed before, maybe for all of them.

        A store that did not answer does not count: then all of a backlog has failed, and is to be done as
        quickly as ever.
        """
        return self.number == WHOLE and not self.step.is_alone and not self.step.state.is_isolated


@dataclass(eq=False, slots=True)
class InflightTask:
    """A task that was submitted and has not finished."""

    parts: Sequence[TaskPart]
    nbytes: int
    future: TaskFuture
    submitted_at: float = 0.0
    """By the monotonic clock."""

    @property
    def name(self) -> str:
        """What it works at, for people: the first of its steps."""
        return str(self.parts[0].step.plan.key)


def call_of(parts: Sequence[TaskPart]) -> tuple[str, Callable[[bytes], Any], bytes]:
    """Return the name, the function and the packed argument of a task."""
    step, number = parts[0].step, parts[0].number
    plan, is_isolated = step.plan, step.state.is_isolated
    if number == WHOLE:
        run = tasks.run_steps_isolated if is_isolated else tasks.run_steps
        return "ingest", run, tasks.pack_steps([part.step.plan for part in parts])
    if number == PUBLISH:
        receipts = [step.receipts[job.number] for job in plan.jobs]
        return (
            "publish",
            tasks.run_publish,
            tasks.pack_publish(step.packed or tasks.pack_plan(plan), receipts),
        )
    run_job = tasks.run_convert_isolated if is_isolated else tasks.run_convert
    return "convert", run_job, tasks.pack_convert(plan.jobs[number])


def key_suffix(part: TaskPart) -> str:
    """Return a suffix that makes the key of a task unique."""
    plan, number = part.step.plan, part.number
    # Digits in front: Dask takes alphabetic parts of a key for part of the name of the task.
    place = f"{plan.key.rank}-{plan.key.step}-{number}-{part.step.attempts[number]}-{time.time_ns()}"
    return f"0{plan.fingerprint[:15]}-{place}"
