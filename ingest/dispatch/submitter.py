"""Steps become Dask tasks, and stay under way until they are committed, whatever dies meanwhile.

A step of one job is converted and published by one task, and small steps that wait together share a task. A
larger step has a task for each of its jobs, and one that publishes when all receipts are there.

Only a window of bytes is in flight; more is submitted as tasks finish. A task that fails is submitted again
under a new key (an old key would return its old error), with a growing pause. The scheduler keeps nothing:
when it restarts, futures come back as cancelled and are submitted again.

Of a step of which workers have died, each task is submitted by itself, and converts in a process of its own:
see `workers.tasks.isolate`. It is so from then on, until the step is committed.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

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
    as_error,
)
from workers.events import Event
from workers.model import MIB, StepKey
from workers.store.model import CommitSummary
from workers.tasks import run as tasks
from workers.tasks.model import Receipt, ShardJob, StepPlan

if TYPE_CHECKING:
    from distributed import Client, Future

#: What stands in the place of a job number: the publishing of a step, and a step done as a whole.
_PUBLISH = -1
_WHOLE = -2
#: What small steps that share a task may come to. Such a task takes about a tenth of a second.
_SHARED_STEPS = 16
_SHARED_ROWS = 4096
_SHARED_NBYTES = 16 * MIB
#: Of what a worker offers of a resource, a task takes one of these.
_SHARES = 1000
#: How long to wait for the small result of a task that has finished, in seconds.
_GATHER_TIMEOUT_S = 30
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
        """How long to wait before attempt number `attempt` + 1."""
        return float(min(self.first_pause_s * 2 ** (attempt - 1), self.longest_pause_s))


#: What to do where no worker may take the tasks of a host.
NO_WORKER_HINT = (
    "Start a worker on this host with the resources of the setting `worker_resources`, "
    "such as `dask worker ADDRESS --resources host-n17=1`; or unset it where all hosts see the dump."
)


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


@dataclass(eq=False, slots=True)
class _Step:
    plan: StepPlan
    offered_at: float
    receipts: dict[int, Receipt] = field(default_factory=dict)
    tasks: dict[int, _Task] = field(default_factory=dict)
    """Those in flight."""
    attempts: dict[int, int] = field(default_factory=dict)
    packed: bytes | None = None
    """The plan, where it must be published by itself: packed while the jobs run."""
    by_itself: bool = False
    """Whether it failed by what may be its own doing: then it shares no task with another one."""
    apart: bool = False
    """Whether its jobs are converted in processes of their own."""
    unread_nbytes: int = 0
    """Bytes to read for the jobs that are not done."""

    def nbytes(self, number: int) -> int:
        """Return the bytes to read for one of its jobs, or for all."""
        if number == _WHOLE:
            return sum(job.nbytes for job in self.plan.jobs)
        return 0 if number == _PUBLISH else self.plan.jobs[number].nbytes


@dataclass(frozen=True, slots=True)
class _Part:
    """What a task does for one step."""

    step: _Step
    number: int
    """Of the job; or `_PUBLISH`, or `_WHOLE`."""
    nbytes: int

    @property
    def may_share(self) -> bool:
        """Whether it may be done together with others: not where it has failed before, maybe for all.

        But for a store that was away: then all of a backlog has failed, and is to be done as quickly as ever.
        """
        return self.number == _WHOLE and not self.step.by_itself and not self.step.apart


@dataclass(eq=False, slots=True)
class _Task:
    parts: Sequence[_Part]
    nbytes: int
    future: Future[Any]


@dataclass(slots=True)
class Submitter:
    """Drives steps through Dask. Single-threaded: all methods are called by one thread."""

    connect: Callable[[], Client]
    """Returns a connected client; called for the first task, and again when a client is lost."""
    limits: DispatchLimits
    clock: Callable[[], float] = time.monotonic
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a worker must offer to be given a task, as Dask counts resources."""
    _steps: dict[StepKey, _Step] = field(default_factory=dict)
    _deadly: set[StepKey] = field(default_factory=set)
    """Steps of which workers have died, and that are not committed since."""
    _ready: deque[_Part] = field(default_factory=deque)
    """What to submit, in this order."""
    _later: list[tuple[float, int, _Part, DumpIngestError]] = field(default_factory=list)
    """What to submit not before a certain time, and what it failed with: a heap."""
    _count: Iterator[int] = field(default_factory=itertools.count)
    _inflight: set[_Task] = field(default_factory=set)
    _inflight_nbytes: int = 0
    _client: Client | None = None
    _finished: queue.SimpleQueue[_Task] = field(default_factory=queue.SimpleQueue)

    @property
    def unread_nbytes(self) -> int:
        """Bytes that are still to be read of the steps that are under way."""
        return sum(step.unread_nbytes for step in self._steps.values())

    @property
    def offered_rows(self) -> int:
        """Rows of all steps that are under way."""
        return sum(len(step.plan.entries) for step in self._steps.values())

    @property
    def busy(self) -> frozenset[StepKey]:
        """The steps that are under way."""
        return frozenset(self._steps)

    def prepare(self) -> None:
        """Connect now, rather than with the first task.

        Raises:
            ClusterError: there is no scheduler, or it has no workers.
        """
        self.client()

    def offer(self, plan: StepPlan) -> None:
        """Take on a step; it stays under way until an outcome says that it is committed, failed or stale."""
        step = _Step(plan, self.clock(), apart=plan.key in self._deadly)
        self._steps[plan.key] = step
        numbers = [_WHOLE] if len(plan.jobs) < 2 else [job.number for job in plan.jobs]
        parts = [_Part(step, number, step.nbytes(number)) for number in numbers]
        step.unread_nbytes = sum(part.nbytes for part in parts)
        self._ready += parts

    def drive(self, timeout_s: float) -> list[Outcome]:
        """Submit what fits, wait up to `timeout_s` for a task to finish, and say what came of it.

        Raises:
            ClusterError: there is no scheduler. Everything stays under way; call again later.
        """
        if self._steps:
            self.client()
        self._submit_waiting()
        self._pack_plans()
        outcomes: list[Outcome] = []
        for task in self._drain(timeout_s):
            outcomes += self._settle(task)
        self._submit_waiting()
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
        for task in list(self._inflight):
            self._take_back(task)
            task.future.cancel()
        self._steps.clear()
        self._ready.clear()
        self._later.clear()

    def client(self) -> Client:
        """Return a client that works. What was in flight with a lost one is submitted again.

        Raises:
            ClusterError: there is no scheduler, or it has no workers.
        """
        if self._client is None or self._client.status in ("closing", "closed"):
            for task in list(self._inflight):
                self._ready += self._take_back(task)
            self._client = self.connect()
        return self._client

    def _drain(self, timeout_s: float) -> Iterator[_Task]:
        try:
            yield self._finished.get(timeout=timeout_s)
            while True:
                yield self._finished.get_nowait()
        except queue.Empty:
            return

    def _submit_waiting(self) -> None:
        now = self.clock()
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._ready:
            parts = self._next_parts()
            nbytes = max(sum(part.nbytes for part in parts), 1)  # so that empty tasks are bounded too
            if parts and not self._fits(nbytes):
                return
            if parts:
                self._submit(parts, nbytes)
            # Only now: where the cluster is lost, what was not submitted still waits.
            for _ in range(max(len(parts), 1)):
                self._ready.popleft()

    def _pack_plans(self) -> None:
        """Prepare what will be published, while there is nothing to do but wait."""
        for step in self._steps.values():
            if step.packed is None and len(step.plan.jobs) > 1 and step.tasks:
                step.packed = tasks.pack_plan(step.plan)

    def _next_parts(self) -> list[_Part]:
        """Return what stands first in `_ready` and makes one task; nothing if its step was given up."""
        parts: list[_Part] = []
        rows = nbytes = 0
        for part in self._ready:
            if self._steps.get(part.step.plan.key) is not part.step:
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

    def _fits(self, nbytes: int) -> bool:
        return not self._inflight_nbytes or self._inflight_nbytes + nbytes <= self.limits.inflight_nbytes

    def _submit(self, parts: Sequence[_Part], nbytes: int) -> None:
        client = self.client()
        step, number = parts[0].step, parts[0].number
        for part in parts:
            part.step.attempts[part.number] = part.step.attempts.get(part.number, 0) + 1
        plan = step.plan
        # Digits in front: Dask takes alphabetic parts of a key for part of the name of the task.
        place = f"{plan.key.rank}-{plan.key.step}-{number}-{step.attempts[number]}-{time.time_ns()}"
        suffix = f"0{plan.fingerprint[:15]}-{place}"
        needed = shares_of(self.resources)
        run: Callable[[bytes], Any]
        if number == _WHOLE:
            name, run = "ingest", tasks.run_steps_apart if step.apart else tasks.run_steps
            packed = tasks.pack_steps([part.step.plan for part in parts])
        elif number == _PUBLISH:
            name, run = "publish", tasks.run_publish
            receipts = [step.receipts[job.number] for job in plan.jobs]
            packed = tasks.pack_publish(step.packed or tasks.pack_plan(plan), receipts)
        else:
            name, run = "convert", tasks.run_convert_apart if step.apart else tasks.run_convert
            packed = tasks.pack_convert(plan.jobs[number])
        future: Future[Any] = client.submit(run, packed, key=f"{name}-{suffix}", pure=False, resources=needed)
        task = _Task(parts, nbytes, future)
        self._inflight.add(task)
        self._inflight_nbytes += nbytes
        for part in parts:
            part.step.tasks[part.number] = task
        # Called in a thread of the client: only the queue is touched.
        future.add_done_callback(lambda _: self._finished.put(task))

    def _take_back(self, task: _Task) -> Sequence[_Part]:
        """Note that a task is no longer in flight; return what it was to do."""
        self._inflight.remove(task)
        self._inflight_nbytes -= task.nbytes
        for part in task.parts:
            del part.step.tasks[part.number]
        return task.parts

    def _settle(self, task: _Task) -> list[Outcome]:
        if task not in self._inflight:
            return []  # of a step or a client that was given up
        parts = self._take_back(task)
        result = _result_of(task)
        results = result if isinstance(result, list) else [result] * len(parts)
        return [
            outcome
            for part, one in zip(parts, results, strict=True)
            for outcome in self._outcomes(part.step, part.number, one)
        ]

    def _outcomes(
        self, step: _Step, number: int, result: Receipt | CommitSummary | DumpIngestError
    ) -> Iterator[Outcome]:
        plan = step.plan
        if isinstance(result, DumpIngestError):
            yield self._fail(step, number, result)
        elif isinstance(result, CommitSummary):
            del self._steps[plan.key]
            self._deadly.discard(plan.key)
            if number == _WHOLE:
                yield from (JobConverted(plan, job) for job in plan.jobs)
            yield StepCommitted(plan, result, self.clock() - step.offered_at)
        else:
            step.receipts[number] = result
            step.unread_nbytes -= step.nbytes(number)
            if len(step.receipts) == len(plan.jobs):
                self._ready.appendleft(_Part(step, _PUBLISH, 0))
            yield JobConverted(plan, plan.jobs[number])

    def _fail(self, step: _Step, number: int, error: DumpIngestError) -> Outcome:
        attempt = step.attempts[number]
        if isinstance(error, SourceChanged):
            self._drop(step)
            return StepStale(step.plan, error.message)
        if isinstance(error, (*_FINAL, DumpError)) or attempt >= self.limits.max_attempts:
            self._drop(step)
            return StepFailed(step.plan, error)
        if isinstance(error, WorkerDied):
            step.apart = True
            self._deadly.add(step.plan.key)
        step.by_itself |= not isinstance(error, StoreUnavailable)
        pause_s = self.limits.pause_s(attempt)
        again = _Part(step, number, step.nbytes(number))
        heapq.heappush(self._later, (self.clock() + pause_s, next(self._count), again, error))
        return TaskRetried(step.plan, error, attempt, pause_s)

    def _drop(self, step: _Step) -> None:
        del self._steps[step.plan.key]
        # Its jobs only: a task that is shared has come to its end when a step of it is dropped.
        for task in list(step.tasks.values()):
            self._take_back(task)
            task.future.cancel()


def _result_of(task: _Task) -> Receipt | CommitSummary | DumpIngestError | list[Any]:
    """Return what a task that has come to its end brought, or why it brought nothing."""
    what, *others = (str(part.step.plan.key) for part in task.parts)
    what += f" (and {len(others)} more)" if others else ""
    result: Receipt | CommitSummary | DumpIngestError | list[Any] = result_of(task.future, what)
    return result


def shares_of(resources: Mapping[str, float]) -> dict[str, float] | None:
    """Return what a task asks for of what a worker must offer.

    A label and no quota: how many tasks a worker runs at once is up to its threads.
    """
    return {name: amount / _SHARES for name, amount in resources.items()} or None


def result_of(future: Future[Any], what: str) -> Any:
    """Return the result of a future that has come to its end, or the error that it ended with.

    `what` names in errors what it was to do.
    """
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError
    from distributed.scheduler import NoValidWorkerError

    if future.status == "cancelled":
        return ClusterError(f"{what}: the scheduler lost the task")
    try:
        return future.result(timeout=_GATHER_TIMEOUT_S)
    except (FutureCancelledError, TimeoutError) as exc:
        return ClusterError(f"{what}: the result of the task was lost ({type(exc).__name__})")
    except NoValidWorkerError:
        return ClusterError(f"{what}: no worker offers what the task needs", hint=NO_WORKER_HINT)
    except KilledWorker as exc:
        return WorkerDied(f"{what}: every worker that took the task died ({exc.last_worker!r:.100})")
    except Exception as exc:  # noqa: BLE001  (whatever a task raised: it counts as a failed attempt)
        return as_error(what, exc)
