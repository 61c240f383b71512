"""Steps become Dask tasks, and stay under way until they are committed, whatever dies meanwhile.

Only a window of bytes is in flight; more is submitted as tasks finish. A task that fails is submitted again
under a new key (an old key would return its old error), with a growing pause. The scheduler keeps nothing:
when it restarts, futures come back as cancelled and are submitted again.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
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
    UsageError,
)
from workers.model import CommitSummary, Receipt, StepKey, StepPlan

if TYPE_CHECKING:
    from distributed import Client, Future

#: The job number under which the publishing of a step stands among its tasks.
_PUBLISH = -1
#: How long to wait for the small result of a task that has finished, in seconds.
_GATHER_TIMEOUT_S = 30
#: Errors for which another attempt cannot help before somebody has done something.
_FINAL = (AccessDenied, DamagedStore, StoreDenied, StoreFormatError, UsageError)


@dataclass(frozen=True, slots=True)
class Limits:
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


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step is visible."""

    plan: StepPlan
    summary: CommitSummary
    seconds: float
    """Since it was offered."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step was given up for now. Nothing of it is visible."""

    plan: StepPlan
    error: DumpIngestError


@dataclass(frozen=True, slots=True)
class StepStale:
    """The source of a step changed while it was read; it must be planned again."""

    plan: StepPlan
    reason: str


@dataclass(frozen=True, slots=True)
class TaskRetried:
    """A task failed and will be submitted again."""

    plan: StepPlan
    error: DumpIngestError
    attempt: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class JobConverted:
    """One task of a step has written its shards."""

    plan: StepPlan
    receipt: Receipt


Outcome: TypeAlias = StepCommitted | StepFailed | StepStale | TaskRetried | JobConverted


@dataclass(slots=True)
class _Step:
    plan: StepPlan
    offered_at: float
    receipts: dict[int, Receipt] = field(default_factory=dict)
    futures: dict[int, Future[Any]] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Finished:
    key: StepKey
    number: int
    future: Future[Any]


@dataclass(slots=True)
class Submitter:
    """Drives steps through Dask. Single-threaded: all methods are called by one thread."""

    connect: Callable[[], Client]
    """Returns a connected client; called for the first task, and again when a client is lost."""
    limits: Limits
    clock: Callable[[], float] = time.monotonic
    _steps: dict[StepKey, _Step] = field(default_factory=dict)
    _waiting: list[tuple[float, StepKey, int]] = field(default_factory=list)
    """Tasks to submit: not before when, of which step, which job."""
    _inflight_nbytes: int = 0
    _client: Client | None = None
    _finished: queue.SimpleQueue[_Finished] = field(default_factory=queue.SimpleQueue)

    @property
    def offered_nbytes(self) -> int:
        """Source bytes of all steps that are under way."""
        return sum(step.plan.nbytes for step in self._steps.values())

    @property
    def busy(self) -> frozenset[StepKey]:
        """The steps that are under way."""
        return frozenset(self._steps)

    def prepare(self) -> None:
        """Connect now, rather than with the first task.

        Raises:
            ClusterError: there is no scheduler, or it has no workers.
        """
        self._connected()

    def offer(self, plan: StepPlan) -> None:
        """Take on a step; it stays under way until an outcome says that it is committed, failed or stale."""
        step = _Step(plan, self.clock())
        self._steps[plan.key] = step
        numbers = [job.number for job in plan.jobs] or [_PUBLISH]
        self._waiting += [(0.0, plan.key, number) for number in numbers]

    def drive(self, timeout_s: float) -> list[Outcome]:
        """Submit what fits, wait up to `timeout_s` for a task to finish, and say what came of it.

        Raises:
            ClusterError: there is no scheduler. Everything stays under way; call again later.
        """
        if self._steps:
            self._connected()
        self._submit_waiting()
        outcomes: list[Outcome] = []
        for finished in self._drain(timeout_s):
            outcomes += self._settle(finished)
        self._submit_waiting()
        return outcomes

    def cancel(self) -> None:
        """Drop everything that is under way; nothing of it becomes visible."""
        for step in self._steps.values():
            for future in step.futures.values():
                future.cancel()
        self._steps.clear()
        self._waiting.clear()
        self._inflight_nbytes = 0

    def _connected(self) -> Client:
        """Return a client that works. What was in flight with a lost one is submitted again.

        Raises:
            ClusterError: there is no scheduler.
        """
        if self._client is None or self._client.status in ("closing", "closed"):
            for key, step in self._steps.items():
                self._waiting += [(0.0, key, number) for number in step.futures]
                step.futures.clear()
            self._inflight_nbytes = 0
            self._client = self.connect()
        return self._client

    def _drain(self, timeout_s: float) -> Iterator[_Finished]:
        try:
            yield self._finished.get(timeout=timeout_s)
            while True:
                yield self._finished.get_nowait()
        except queue.Empty:
            return

    def _submit_waiting(self) -> None:
        now = self.clock()
        full = False
        ahead, self._waiting = deque(self._waiting), []
        try:
            while ahead:
                due, key, number = ahead[0]
                if (step := self._steps.get(key)) is not None:
                    nbytes = self._nbytes(step, number)
                    full = full or not self._fits(nbytes)
                    if full or due > now:
                        self._waiting.append((due, key, number))
                    else:
                        self._submit(step, number)
                        self._inflight_nbytes += nbytes
                ahead.popleft()
        finally:
            # Where the cluster was lost meanwhile: what has been submitted must not be submitted twice.
            self._waiting += ahead

    def _fits(self, nbytes: int) -> bool:
        return not self._inflight_nbytes or self._inflight_nbytes + nbytes <= self.limits.inflight_nbytes

    def _nbytes(self, step: _Step, number: int) -> int:
        # At least one, so that empty tasks are bounded too.
        return 1 if number == _PUBLISH else max(step.plan.jobs[number].nbytes, 1)

    def _submit(self, step: _Step, number: int) -> None:
        from workers import tasks

        client, plan = self._connected(), step.plan
        attempt = step.attempts[number] = step.attempts.get(number, 0) + 1
        # Digits in front: Dask takes alphabetic parts of a key for part of the name of the task.
        place = f"{plan.key.rank}-{plan.key.step}-{number}-{attempt}-{time.time_ns()}"
        suffix = f"0{plan.fingerprint[:15]}-{place}"
        if number == _PUBLISH:
            packed = tasks.pack_publish(plan, [step.receipts[job.number] for job in plan.jobs])
            self._watch(
                step, number, client.submit(tasks.run_publish, packed, key=f"publish-{suffix}", pure=False)
            )
        else:
            packed = tasks.pack_convert(plan.jobs[number])
            self._watch(
                step, number, client.submit(tasks.run_convert, packed, key=f"convert-{suffix}", pure=False)
            )

    def _watch(self, step: _Step, number: int, future: Future[Any]) -> None:
        step.futures[number] = future
        future.add_done_callback(partial(self._on_done, step.plan.key, number))

    def _on_done(self, key: StepKey, number: int, future: Future[Any]) -> None:
        # Called in a thread of the client: only the queue is touched.
        self._finished.put(_Finished(key, number, future))

    def _settle(self, finished: _Finished) -> list[Outcome]:
        step = self._steps.get(finished.key)
        number = finished.number
        if step is None or step.futures.get(number) is not finished.future:
            return []  # of a step or a client that was given up
        del step.futures[number]
        self._inflight_nbytes -= self._nbytes(step, number)
        result = _result_of(finished.future, step.plan)
        if isinstance(result, DumpIngestError):
            return [self._fail(step, number, result)]
        if isinstance(result, CommitSummary):
            del self._steps[finished.key]
            return [StepCommitted(step.plan, result, self.clock() - step.offered_at)]
        step.receipts[number] = result
        if len(step.receipts) == len(step.plan.jobs):
            self._waiting.insert(0, (0.0, step.plan.key, _PUBLISH))
        return [JobConverted(step.plan, result)]

    def _fail(self, step: _Step, number: int, error: DumpIngestError) -> Outcome:
        attempt = step.attempts[number]
        if isinstance(error, SourceChanged):
            self._drop(step)
            return StepStale(step.plan, error.message)
        if isinstance(error, (*_FINAL, DumpError)) or attempt >= self.limits.max_attempts:
            self._drop(step)
            return StepFailed(step.plan, error)
        pause_s = self.limits.pause_s(attempt)
        self._waiting.append((self.clock() + pause_s, step.plan.key, number))
        return TaskRetried(step.plan, error, attempt, pause_s)

    def _drop(self, step: _Step) -> None:
        del self._steps[step.plan.key]
        for number, future in step.futures.items():
            self._inflight_nbytes -= self._nbytes(step, number)
            future.cancel()


def _result_of(future: Future[Any], plan: StepPlan) -> Receipt | CommitSummary | DumpIngestError:
    """Return what a task that has come to its end brought, or why it brought nothing."""
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    if future.status == "cancelled":
        return ClusterError(f"{plan.key}: the scheduler lost the task")
    try:
        result: Receipt | CommitSummary = future.result(timeout=_GATHER_TIMEOUT_S)
    except DumpIngestError as exc:
        return exc
    except (FutureCancelledError, TimeoutError) as exc:
        return ClusterError(f"{plan.key}: the result of the task was lost ({type(exc).__name__})")
    except KilledWorker as exc:
        return ClusterError(f"{plan.key}: every worker that took the task died ({exc.last_worker!r:.100})")
    except Exception as exc:  # noqa: BLE001  (whatever a task raised: it counts as a failed attempt)
        return DumpIngestError(f"{plan.key}: {type(exc).__name__}: {exc}"[:500])
    return result
