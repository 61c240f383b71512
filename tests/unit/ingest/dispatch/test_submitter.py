"""The submitter against a client whose tasks finish when the test says so."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from distributed import Client, KilledWorker
from distributed.scheduler import WorkerState

from ingest.dispatch.submitter import (
    DispatchLimits,
    JobConverted,
    Outcome,
    StepCommitted,
    StepFailed,
    StepStale,
    Submitter,
    TaskRetried,
)
from ingest.steps.state import StepTable
from tests.services import FakeClient
from tests.stores import SMALL_GRID, MadeDump, plan_all, tensor_name
from workers.errors import (
    AccessDenied,
    ClusterError,
    DumpIngestError,
    PoisonedFile,
    SourceChanged,
    StoreDenied,
    StoreFormatError,
    StoreUnavailable,
)
from workers.tasks.convert import convert, convert_here
from workers.tasks.model import Receipt, ShardJob, StepPlan


class Bench:
    """A submitter, its clients and its clock."""

    def __init__(self, window: int = 10**9, attempts: int = 3) -> None:
        self.now = 0.0
        self.clients = [FakeClient()]
        self.refused = 0
        limits = DispatchLimits(window, max_attempts=attempts, first_pause_s=1, longest_pause_s=4)
        self.table = StepTable()
        self.submitter = Submitter(self.connect, limits, self.table, clock=lambda: self.now)

    def connect(self) -> Client:
        if self.client.status != "running":
            if self.refused:
                self.refused -= 1
                raise ClusterError("nobody there")
            self.clients.append(FakeClient())
        return cast("Client", self.clients[-1])

    @property
    def client(self) -> FakeClient:
        return self.clients[-1]

    def poll(self) -> list[Outcome]:
        return self.submitter.poll(0)

    def finish(self) -> list[Outcome]:
        """Run everything to its end."""
        outcomes: list[Outcome] = []
        for _ in range(200):
            outcomes += self.poll()
            if not self.submitter.offered_steps:
                return outcomes
            self.now += 10
            for future in self.client.pending:
                future.run()
        raise AssertionError("never done")


@pytest.fixture
def plan(made: MadeDump, store: Path) -> StepPlan:
    """A step of several jobs of about 500 bytes."""
    for slot in range(8):
        made.add(np.full(80, slot, "<f4"), tensor_name(slot=slot))
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    assert len(plan.jobs) >= 4
    return plan


def kinds(outcomes: list[Outcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


@pytest.mark.parametrize("window", [1, 1200, 2500])
def test_bytes_in_flight_are_bounded(window: int, plan: StepPlan) -> None:
    """However much is offered, workers and scheduler hold only a window of it."""
    bench = Bench(window)
    bench.submitter.offer(plan)
    while bench.submitter.offered_steps:
        bench.poll()
        pending = bench.client.pending
        assert sum(future.nbytes for future in pending) <= window or len(pending) == 1
        if pending:
            pending[0].run()


def test_failed_task_is_tried_again_later_under_a_new_key(plan: StepPlan) -> None:
    bench = Bench()
    bench.submitter.offer(plan)
    bench.poll()
    first = bench.client.pending[0]
    first.fail(StoreUnavailable("busy"))
    (outcome,) = bench.poll()
    assert isinstance(outcome, TaskRetried)
    assert (outcome.attempt, outcome.pause_s) == (1, 1)
    bench.now = 0.9
    bench.poll()
    assert len(bench.client.futures) == len(plan.jobs)
    bench.now = 1.1
    bench.poll()
    assert bench.client.futures[-1].arguments == first.arguments
    assert kinds(bench.finish())[-1] is StepCommitted


def test_what_waits_for_the_store_is_tried_at_once_when_it_is_back(plan: StepPlan) -> None:
    """And what waits for another reason goes on waiting."""
    bench = Bench()
    bench.submitter.offer(plan)
    bench.poll()
    first, second, *_ = bench.client.pending
    first.fail(StoreUnavailable("away"))
    second.fail(RuntimeError("who knows"))
    assert kinds(bench.poll()) == [TaskRetried] * 2
    bench.submitter.retry_now(StoreUnavailable)
    bench.poll()
    assert len(bench.client.futures) == len(plan.jobs) + 1
    assert bench.client.futures[-1].arguments == first.arguments
    assert kinds(bench.finish())[-1] is StepCommitted


@pytest.mark.parametrize("error", [AccessDenied, StoreDenied, StoreFormatError])
def test_error_that_time_does_not_heal_is_final(error: type[DumpIngestError], plan: StepPlan) -> None:
    bench = Bench()
    bench.submitter.offer(plan)
    bench.poll()
    bench.client.pending[0].fail(error("no"))
    (outcome,) = bench.poll()
    assert isinstance(outcome, StepFailed)
    assert isinstance(outcome.error, error)
    assert not bench.submitter.offered_steps


@pytest.mark.parametrize("refused", [0, 1, 2])
@pytest.mark.parametrize("dies_after", [1, 2, 5])
def test_client_that_is_lost_while_tasks_are_submitted(dies_after: int, refused: int, plan: StepPlan) -> None:
    """No task may be submitted twice, or its bytes would count as in flight for ever."""
    bench = Bench()
    bench.client.dies_after = dies_after
    bench.submitter.offer(plan)
    bench.refused = refused
    for _ in range(refused):
        with pytest.raises(ClusterError):
            bench.poll()
    bench.poll()
    jobs = [job.number for future in bench.client.futures for job in future.jobs]
    assert sorted(jobs) == [job.number for job in plan.jobs]
    assert kinds(bench.finish())[-1] is StepCommitted
    assert bench.submitter._window.has_room(10**9)


@pytest.fixture
def small_plans(made: MadeDump, store: Path) -> list[StepPlan]:
    """Twenty steps of one job each."""
    for step in range(20):
        made.add(np.full(10, step, "<f4"), step=step)
    plans = plan_all(made.root, store)
    assert [len(plan.jobs) for plan in plans] == [1] * 20
    return plans


def offered(bench: Bench, plans: list[StepPlan]) -> Bench:
    for plan in plans:
        bench.submitter.offer(plan)
    bench.poll()
    return bench


def test_small_steps_share_a_task_that_commits_them(small_plans: list[StepPlan]) -> None:
    """Two round trips through the scheduler cost more than such a step."""
    bench = offered(Bench(), small_plans)
    assert [len(future.jobs) for future in bench.client.pending] == [16, 4]
    outcomes = bench.finish()
    assert kinds(outcomes) == [JobConverted, StepCommitted] * 20
    assert bench.submitter._window.has_room(10**9)


def test_step_that_fails_fails_alone(small_plans: list[StepPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is tried again alone: it may have been the one that brought the worker down."""
    errors = {
        3: StoreUnavailable("busy"),
        5: SourceChanged("grew"),
        7: ValueError("odd"),
        9: StoreDenied("no"),
    }

    def flaky(job: ShardJob) -> Receipt:
        if job.key.step in errors:
            raise errors[job.key.step]
        return convert(job)

    bench = offered(Bench(), small_plans[:10])
    with monkeypatch.context() as patch:
        patch.setattr("workers.tasks.run.convert", flaky)
        bench.client.pending[0].run()
    outcomes = bench.poll()
    assert {outcome.plan.key.step: type(outcome) for outcome in outcomes} == {
        **dict.fromkeys(range(10), StepCommitted),
        3: TaskRetried,
        5: StepStale,
        7: TaskRetried,
        9: StepFailed,
    }
    bench.now = 10
    bench.poll()
    assert [[job.key.step for job in future.jobs] for future in bench.client.pending] == [[3], [7]]
    assert kinds(bench.finish()) == [JobConverted, StepCommitted] * 2


def test_steps_of_which_a_worker_died_are_done_apart_until_they_are_committed(
    small_plans: list[StepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bad file is in one of them: from then on no worker dies, and the others are committed."""
    bench = offered(Bench(), small_plans[:3])
    bench.client.pending[0].fail(_killed())
    assert kinds(bench.poll()) == [TaskRetried] * 3
    monkeypatch.setattr("workers.tasks.run.convert_in_subprocess", _poisoned_in(small_plans[1]))
    bench.now = 10
    bench.poll()
    assert [future.function.__name__ for future in bench.client.pending] == ["run_steps_isolated"] * 3
    outcomes = bench.finish()
    assert kinds(outcomes) == [JobConverted, StepCommitted, StepFailed, JobConverted, StepCommitted]
    (failed,) = (outcome for outcome in outcomes if isinstance(outcome, StepFailed))
    assert isinstance(failed.error, PoisonedFile)

    bench.submitter.offer(small_plans[1])
    bench.submitter.offer(small_plans[2])
    bench.poll()
    names = [future.function.__name__ for future in bench.client.pending]
    assert names == ["run_steps_isolated", "run_steps"]


def _killed() -> KilledWorker:
    return KilledWorker("ingest-1", cast("WorkerState", "tcp://127.0.0.1:1"), 3)


def _poisoned_in(poisoned: StepPlan) -> Callable[[ShardJob], Receipt]:
    def converts(job: ShardJob) -> Receipt:
        if job.key == poisoned.key:
            raise PoisonedFile("died", path=poisoned.entries[0].source.path)
        return convert_here(job)

    return converts
