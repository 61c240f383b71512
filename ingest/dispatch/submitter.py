"""Submits steps as tasks, and again after workers or schedulers died, until each step is committed.

A step of one job is converted and published by one task, and small steps that wait together share a task. A
larger step has a task for each of its jobs, and one that publishes when all receipts have arrived.

Only a window of bytes is in flight; more is submitted as tasks finish. A task that fails is submitted again
under a new key (an old key would return its old error), with a growing pause. The scheduler keeps nothing:
when it restarts, futures come back as cancelled and are submitted again.

When workers have died of a step, each of its tasks is submitted by itself, and converts in a process of its
own: see `workers.tasks.run`. The step stays isolated until it is committed.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ingest.dispatch.clients import TaskClient, shares_of, submit
from ingest.dispatch.window import TaskMonitor, TaskWindow
from ingest.steps.state import Pause, Phase, StepState, StepTable, Work
from workers.errors import (
    AccessDenied,
    ClusterError,
    DamagedStore,
    DumpError,
    DumpIngestError,
    SourceChanged,
    StoreDenied,
    StoreFormatError,
    StoreUnavailable,
    UsageError,
    WorkerDied,
)
from workers.events import Event
from workers.model import MIB
from workers.store.model import CommitSummary
from workers.tasks import run as tasks
from workers.tasks.model import Receipt, ShardJob, StepPlan


@dataclass(frozen=True, slots=True)
class StepCommitted(Event):
    """A step is visible."""

    plan: StepPlan
    summary: CommitSummary
    seconds: float
    """Since it was offered."""


@dataclass(frozen=True, slots=True)
class StepFailed(Event):
    """A step was given up for now. Nothing of it is visible."""

    plan: StepPlan
    error: DumpIngestError


@dataclass(frozen=True, slots=True)
class StepStale(Event):
    """The source of a step changed while it was read; it must be planned again."""

    plan: StepPlan
    reason: str


@dataclass(frozen=True, slots=True)
class TaskRetried(Event):
    """A task failed and will be submitted again."""

    plan: StepPlan
    error: DumpIngestError
    attempt: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class JobConverted(Event):
    """One task of a step has written its shards."""

    plan: StepPlan
    job: ShardJob


Outcome: TypeAlias = StepCommitted | StepFailed | StepStale | TaskRetried | JobConverted


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
    attempts: dict[int, int] = field(default_factory=dict)
    packed: bytes | None = None
    """The plan, if it must be published by itself: packed while the jobs run."""
    is_alone: bool = False
    """Whether it failed in a way that may be its own doing: then it shares no task with another step."""
    unread_nbytes: int = 0

    def nbytes(self, number: int) -> int:
        """Return the bytes to read for one of its jobs, or for all."""
        if number == WHOLE:
            return sum(job.nbytes for job in self.plan.jobs)
        return 0 if number == PUBLISH else self.plan.jobs[number].nbytes

    def pack(self) -> None:
        """Pack the plan if it will be published by itself, while nothing is to be done but wait."""
        if self.packed is None and len(self.plan.jobs) > 1 and self.attempts:
            self.packed = tasks.pack_plan(self.plan)

    def cost(self, number: int) -> int:
        """Return about how long one of its jobs takes, in bytes that are converted meanwhile."""
        return 0 if number < 0 else self.nbytes(number) + _FILE_NBYTES * len(self.plan.jobs[number].entries)


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


#: What the small steps that share a task may come to. Such a task takes about a tenth of a second.
_SHARED_STEPS = 16
_SHARED_ROWS = 4096
_SHARED_NBYTES = 16 * MIB
#: Errors for which another attempt cannot help before somebody has done something.
_FINAL = (AccessDenied, DamagedStore, StoreDenied, StoreFormatError, UsageError)


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """What bounds the work in flight and the attempts."""

    inflight_nbytes: int
    """Source bytes of submitted, unfinished tasks; a single larger task goes alone."""
    max_attempts: int = 5
    """Attempts at one task before its step is given up (until it is offered again)."""
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0

    def pause_s(self, attempt: int) -> float:
        """Return how long to wait before attempt number `attempt` + 1, in seconds."""
        return float(min(self.first_pause_s * 2 ** (attempt - 1), self.longest_pause_s))


@dataclass(slots=True)
class Submitter:
    """Drives steps through workers. Single-threaded: all methods are called by one thread."""

    connect: Callable[[], TaskClient]
    """Returns a connected client; called for the first task, and again when a client is lost."""
    limits: DispatchLimits
    table: StepTable
    clock: Callable[[], float] = time.monotonic
    resources: Mapping[str, float] = field(default_factory=dict)
    _offered: set[OfferedStep] = field(default_factory=set)
    """The work itself, of each step that is under way. Bounded by who offers."""
    _ready: deque[TaskPart] = field(default_factory=deque)
    _later: list[tuple[float, int, TaskPart, DumpIngestError]] = field(default_factory=list)
    """What to submit not before a certain time, and what it failed with: a heap."""
    _count: Iterator[int] = field(default_factory=itertools.count)
    monitor: TaskMonitor = field(default_factory=TaskMonitor)
    _window: TaskWindow[Sequence[TaskPart]] = field(init=False)
    _client: TaskClient | None = None

    def __post_init__(self) -> None:
        self._window = TaskWindow(math.inf, self.limits.inflight_nbytes, _names_of, self.monitor)

    @property
    def unread_nbytes(self) -> int:
        """Bytes that are still to be read of the steps that are under way."""
        return sum(step.unread_nbytes for step in self._offered)

    @property
    def offered_rows(self) -> int:
        """Rows of all steps that are under way."""
        return sum(len(step.plan.entries) for step in self._offered)

    @property
    def offered_steps(self) -> int:
        """How many steps are under way."""
        return len(self._offered)

    def count_inflight(self) -> int:
        """Return how many tasks the workers have."""
        return len(self._window.jobs)

    def offer(self, plan: StepPlan) -> None:
        """Start a step; it stays under way until an outcome says that it is committed, failed or stale."""
        state = self.table.ensure(plan.key)
        step = OfferedStep(plan, state, state.offer(len(plan.jobs)), self.clock())
        self._offered.add(step)
        numbers = [WHOLE] if len(plan.jobs) < 2 else [job.number for job in plan.jobs]
        # What takes longest first, so that at the end no worker waits long for another.
        numbers.sort(key=step.cost, reverse=True)
        parts = [TaskPart(step, number, step.nbytes(number)) for number in numbers]
        step.unread_nbytes = sum(part.nbytes for part in parts)
        self._ready += parts

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Submit steps that fit, wait up to `timeout_s` for a task to finish, and return the outcomes.

        Raises:
            ClusterError: the scheduler does not answer. Everything stays under way; call again later.
        """
        if self._offered:
            self.client()
        self._submit_waiting()
        for step in self._offered:
            step.pack()
        outcomes: list[Outcome] = []
        for parts, result in self._window.ended(self._client, timeout_s):
            results = result if isinstance(result, list) else [result] * len(parts)
            for part, result_of_part in zip(parts, results, strict=True):
                outcomes += self._outcomes(part.step, part.number, result_of_part)
        try:
            self._submit_waiting()
        except ClusterError:
            if not outcomes:  # none of them may be lost: the next call raises it
                raise
        if not outcomes:  # for the same reason
            self.monitor.require_answer()
        return outcomes

    def retry_now(self, kind: type[DumpIngestError]) -> None:
        """Submit what failed with an error of this kind, without waiting any longer."""
        self._later = [
            (0.0 if isinstance(error, kind) else at, number, part, error)
            for at, number, part, error in self._later
        ]
        heapq.heapify(self._later)

    def cancel(self) -> None:
        """Drop everything that is under way; nothing of it becomes visible."""
        self._window.drop()
        for step in self._offered:
            step.state.work = None
        self._offered.clear()
        self._ready.clear()
        self._later.clear()

    def client(self) -> TaskClient:
        """Return a client that works. What was in flight with a lost one is submitted again.

        Raises:
            ClusterError: the scheduler does not answer, or has no workers.
        """
        if self._client is None or self._client.status in ("closing", "closed"):
            for part in itertools.chain.from_iterable(self._window.clear()):
                part.step.work.phase = Phase.OFFERED
                self._ready.append(part)
            self._client = self.connect()
        return self._client

    def _submit_waiting(self) -> None:
        now = self.clock()
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._ready:
            parts = self._next_parts()
            nbytes = max(sum(part.nbytes for part in parts), 1)  # so that empty tasks are bounded too
            if parts:
                if not self._window.has_room(nbytes):
                    return
                self._submit(parts, nbytes)
            # Only now: if the cluster is lost, what was not submitted still waits.
            for _ in range(max(len(parts), 1)):
                self._ready.popleft()

    def _next_parts(self) -> list[TaskPart]:
        """Return the first parts of `_ready` that make one task; none if their step was given up."""
        parts: list[TaskPart] = []
        rows = nbytes = 0
        for part in self._ready:
            if part.step not in self._offered:
                break
            rows += len(part.step.plan.entries)
            nbytes += part.nbytes
            small = rows <= _SHARED_ROWS and nbytes <= min(_SHARED_NBYTES, self.limits.inflight_nbytes)
            if parts and not (small and part.may_share):
                break
            parts.append(part)
            if not (small and part.may_share) or len(parts) == _SHARED_STEPS:
                break
        return parts

    def _submit(self, parts: Sequence[TaskPart], nbytes: int) -> None:
        client = self.client()
        for part in parts:
            part.step.attempts[part.number] = part.step.attempts.get(part.number, 0) + 1
        first = parts[0]
        name, run, packed = call_of(parts)
        plan = first.step.plan
        # No other attempt has this key. Dask takes alphabetic parts at its front for a part of
        # the name of the task.
        attempt = f"{first.number}-{first.step.attempts[first.number]}-{time.time_ns()}"
        key = f"{name}-0{plan.fingerprint[:15]}-{plan.key.rank}-{plan.key.step}-{attempt}"
        future = submit(client, run, packed, key=key, resources=shares_of(self.resources))
        self._window.add(future, parts, nbytes)
        for part in parts:
            part.step.work.phase = Phase.PUBLISHING if part.number == PUBLISH else Phase.CONVERTING
            part.step.work.retry = None

    def _outcomes(
        self, step: OfferedStep, number: int, result: Receipt | CommitSummary | DumpIngestError
    ) -> Iterator[Outcome]:
        plan = step.plan
        if step not in self._offered:  # it was given up just now
            return
        if isinstance(result, DumpIngestError):
            yield self._fail(step, number, result)
        elif isinstance(result, CommitSummary):
            self._offered.remove(step)
            step.state.work = None
            step.state.is_isolated = False
            if number == WHOLE:
                yield from (JobConverted(plan, job) for job in plan.jobs)
            yield StepCommitted(plan, result, self.clock() - step.offered_at)
        else:
            step.receipts[number] = result
            step.unread_nbytes -= step.nbytes(number)
            step.work.jobs_done = len(step.receipts)
            if len(step.receipts) == len(plan.jobs):
                self._ready.appendleft(TaskPart(step, PUBLISH, 0))
            yield JobConverted(plan, plan.jobs[number])

    def _fail(self, step: OfferedStep, number: int, error: DumpIngestError) -> Outcome:
        attempt = step.attempts[number]
        if isinstance(error, SourceChanged):
            self._drop(step)
            return StepStale(step.plan, error.message)
        if isinstance(error, (*_FINAL, DumpError)) or attempt >= self.limits.max_attempts:
            self._drop(step)
            return StepFailed(step.plan, error)
        if isinstance(error, WorkerDied):
            step.state.is_isolated = True
        step.is_alone |= not isinstance(error, StoreUnavailable)
        pause_s = self.limits.pause_s(attempt)
        until = self.clock() + pause_s
        again = TaskPart(step, number, step.nbytes(number))
        heapq.heappush(self._later, (until, next(self._count), again, error))
        step.work.phase, step.work.retry = Phase.RETRYING, Pause(until, error.message)
        return TaskRetried(step.plan, error, attempt, pause_s)

    def _drop(self, step: OfferedStep) -> None:
        self._offered.remove(step)
        step.state.work = None
        # Its jobs only: a task that is shared has come to its end when a step of it is dropped.
        self._window.drop(lambda parts: parts[0].step is step)


def _names_of(parts: Sequence[TaskPart]) -> str:
    first, *others = (str(part.step.plan.key) for part in parts)
    return f"{first} (and {len(others)} more)" if others else first
