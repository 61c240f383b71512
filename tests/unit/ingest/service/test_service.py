"""The service as a whole: its runs, its looks, and what it tells."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from prometheus_client import CollectorRegistry

from ingest.api import open_store
from ingest.dispatch.clients import TaskClient
from ingest.dispatch.submitter import DispatchLimits, StepCommitted, StepFailed
from ingest.dump_retention.policy import RetentionPolicy
from ingest.metrics import serve
from ingest.reader.step import file_rows
from ingest.service.live_watcher import PATH, DumpDisk, fetch_steps, fetch_watcher, parse_watcher
from ingest.service.one_shot import LiveSteps, finish, ingest_once
from ingest.service.service import ScanSchedule, Service
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.events import DependencyDown
from ingest.steps.watcher import QuietClock
from tests.servers.process import free_port
from tests.services import FakeClient, Heard, Run, ingest, make_service, observed_service, served_watcher
from tests.stores import MadeDump, tensor_name
from tests.wrapped_objects import WrappedObjects
from workers.errors import ClusterError, DumpError, DumpIngestError, StoreDenied, StoreUnavailable, UsageError
from workers.model import StepKey
from workers.store.backends.wrappers import ObservedObjects
from workers.store.opening import open_objects, resolve
from workers.tasks import run
from workers.tasks.convert import convert
from workers.tasks.model import Receipt, ShardJob

# The service as a whole while the store is away, with a client that runs every task at once.


pytestmark = pytest.mark.timeout(30)


def test_a_service_that_tries_for_ever_waits_for_the_store_from_its_first_look_on(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that is started again while the store is away need not be started again and again."""
    ingest(filled, store)
    filled.add(np.zeros(1), rank=0, step=7)
    running, heard = observed_service(filled, store, retry_forever=True)
    with monkeypatch.context() as patch:
        patch.setattr(ObservedObjects, "children", _unavailable)
        running.tick()
    assert [type(event) for event in heard] == [DependencyDown]
    deadline = time.monotonic() + 10
    while running.dump_state is None or running.dump_state.pending or running.submitter.offered_steps:
        assert time.monotonic() < deadline
        running.schedule.scan_soon()
        running.tick()
    assert StepKey(0, 7) in open_store(str(store)).keys


def _unavailable(*_: object) -> None:
    raise StoreUnavailable("away")


def test_a_step_is_refused_once_while_there_is_no_cluster(filled: MadeDump, store: Path) -> None:
    """What is refused needs no worker; it would be planned and kept again with each scan."""
    client = FakeClient()
    policy = StepPolicy(CompletenessPolicy(quiet_s=0, settle_s=0))
    running, heard = observed_service(filled, store, client=client, retry_forever=True, policy=policy)
    running.foreign_dumps = None
    running.policy = replace(running.policy, foreign_ranks={7: UsageError("of another dump")})
    running.tick()
    assert running.submitter.offered_steps
    # Their plans are large, and a cluster may be away for hours.
    client.status = "closed"
    running.submitter.connect = refusing
    filled.add(np.zeros(1), rank=7)
    for _ in range(5):
        running.schedule.scan_soon()
        running.tick()
    assert heard.keys(StepFailed) == [StepKey(7, 0)]
    assert heard.of(DependencyDown)


def refusing() -> TaskClient:
    raise ClusterError("nobody there")


# One run over a dump: what it takes, what it waits for, and that it comes to its end.


@pytest.mark.parametrize("what", ["file", "step", "rank"])
def test_one_shot_run_ends_although_something_is_denied(
    what: str, filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore leaves directories as 0700 and files as 0400: this is what another user sees."""
    path = filled.add(np.zeros(1), rank=1, step=1)
    denied = {"file": path, "step": path.parent, "rank": filled.root / "rank_1"}[what]
    for name in ("open", "scandir"):
        monkeypatch.setattr(os, name, _refusing(denied, getattr(os, name)))
    report = ingest(filled, store)
    assert report.failures.keys() == {StepKey(1, None if what == "rank" else 1)}
    (error,) = report.failures.values()
    assert "setfacl" in error.hint
    assert StepKey(0, 1) in {summary.key for summary in report.commits}


def _refusing(path: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(name: object, *args: object) -> object:
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return real(name, *args)

    return refusing


@pytest.fixture
def broken_puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DumpIngestError]]:
    """Errors that the next writes of shards raise, first to last."""
    errors: list[DumpIngestError] = []
    put = ObservedObjects.put

    def flaky(self: ObservedObjects, key: str, data: Any) -> None:
        if errors and "/c/" in key:
            raise errors.pop(0)
        put(self, key, data)

    monkeypatch.setattr(ObservedObjects, "put", flaky)
    yield errors
    assert not errors


def test_store_that_refuses_ends_a_one_shot_run(
    filled: MadeDump, store: Path, broken_puts: list[DumpIngestError]
) -> None:
    """Thousands of steps would fail one by one for the same reason."""
    broken_puts.append(StoreDenied("no"))
    report = ingest(filled, store)
    assert isinstance(report.stopped_by, StoreDenied)
    assert len(report.commits) < 5


def test_stopped_service_leaves_whole_steps_only(filled: MadeDump, store: Path) -> None:
    running, _ = observed_service(filled, store)
    stop = threading.Event()
    stop.set()
    ingest_once(running, stop)
    running.watch(stop, drain_s=1)
    assert not store.exists()
    assert not running.submitter.offered_steps


class Away(WrappedObjects):
    """A store that cannot be listed a few times."""

    times = 2

    def children(self, prefix: str = "") -> list[str]:
        self.times -= 1
        if self.times >= 0:
            raise StoreUnavailable("away")
        return super().children(prefix)


def test_what_a_job_has_left_is_taken_although_the_store_is_away_when_the_job_ends(
    filled: MadeDump, store: Path
) -> None:
    objects = Away(open_objects(resolve(str(store))))
    service = make_service(filled.root, objects, retry_forever=True)
    finish(service, service.clock() + 20)
    assert objects.times < 0
    assert len(open_store(str(store)).keys) == 5


@pytest.fixture
def without_one(filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A watcher that has taken everything but one step, which failed; it and the run files are left alone."""

    def failing(job: ShardJob) -> Receipt:
        if job.key == StepKey(1, 1):
            raise DumpError("not this time")
        return convert(job)

    service, heard = observed_service(filled, store, retry_forever=True)
    with monkeypatch.context() as patched:
        patched.setattr(run, "convert", failing)
        while len(heard.of(StepCommitted)) < 4 or not heard.of(StepFailed):
            service.tick()
    assert sorted(state.key.order for state in service.table if state.pause) == [
        StepKey(0, None).order,
        StepKey(1, 1).order,
    ]
    return service


def test_run_files_that_changed_since_their_commit_are_taken_when_the_job_ends(
    without_one: Service, filled: MadeDump, store: Path
) -> None:
    """They change as long as the job runs, so they are left alone for a while; now is the last chance."""
    (filled.root / "rank_0" / "last.json").write_text("{}")
    until = without_one.clock() + 20
    finish(without_one, until)
    assert without_one.clock() < until
    rows = file_rows(open_store(str(store)).step(0, None), problems=False)
    assert "rank_0/last.json" in {row["source"] for row in rows}


# What one run came to, from what happened and what the last look showed.


KEYS = [StepKey(0, step) for step in range(4)]


def test_steps_that_were_deleted_from_the_dump_were_not_removed_from_the_store(
    made: MadeDump, store: Path
) -> None:
    """`gc` removes; what is deleted here is in the store."""
    for step in range(3):
        made.add(np.full(10, float(step), "<f4"), step=step)
    Run(made.root, store, RetentionPolicy(keep_last=9)).ingest()
    report = Run(made.root, store).ingest()
    assert {event.key for event in report.deleted} == set(KEYS[:2])
    assert report.unchanged == KEYS[:3]
    assert report.removed == []


# Complete steps go to the workers as long as there is room, and not before cluster and store answer.


STEPS = 40


@pytest.fixture
def steps(made: MadeDump) -> MadeDump:
    """A backlog of small steps."""
    for step in range(STEPS):
        made.add(np.full(10, step, "<f4"), tensor_name(time=step + 1), step=step)
    return made


def looked(made: MadeDump, store: Path, **options: Any) -> Service:
    """Return a service that looked once, and whose tasks wait."""
    service = make_service(made.root, store, **{"client": FakeClient(), **options})
    service.scan()
    return service


def test_steps_are_offered_in_batches_so_that_workers_do_not_wait_for_the_last(
    steps: MadeDump, store: Path
) -> None:
    service = looked(steps, store)
    offered = []
    while service.offering.offer(service.current_policy):
        offered.append(service.submitter.offered_steps)
    assert all(later - earlier <= 16 for earlier, later in zip([0, *offered], offered, strict=False))
    assert service.submitter.offered_steps == STEPS


@pytest.mark.parametrize(
    ("bound", "expected"), [("MAX_STEPS_UNDER_WAY", 5), ("MAX_ROWS_UNDER_WAY", 5), ("bytes", 1)]
)
def test_what_is_under_way_is_bounded(
    bound: str, expected: int, steps: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = DispatchLimits(10**9)
    if bound == "bytes":
        limits = DispatchLimits(1)
    else:
        monkeypatch.setattr(f"ingest.service.offering.{bound}", 5)
    service = looked(steps, store, limits=limits)
    while service.offering.offer(service.current_policy):
        pass
    assert service.submitter.offered_steps == expected


def test_nothing_is_offered_while_the_cluster_does_not_answer(steps: MadeDump, store: Path) -> None:
    heard = Heard()
    service = looked(steps, store, retry_forever=True, observers=[heard.append])

    def refuse() -> Client:
        raise ClusterError("no scheduler")

    service.submitter.connect = refuse
    service.offering.offer(service.current_policy)
    assert service.submitter.offered_steps == 0
    assert len(heard.of(DependencyDown)) == 1
    assert service.table.ensure(StepKey(0, 0)).is_pending
    assert not store.exists()


# When the dump is looked at, and that nothing but looking is not all that is done.


def test_a_change_makes_a_look_due_before_the_poll_but_not_before_the_rest_is_over() -> None:
    now = [10.0]
    schedule = ScanSchedule(poll_s=60.0, clock=lambda: now[0])
    schedule.record_scan(9.0, failed=False)
    assert (schedule.rests_until, schedule.next_at) == (19.0, 70.0)
    schedule.note_change()
    assert schedule.next_at == 19.0


@pytest.mark.parametrize(
    ("hears_all", "is_calm", "pause_s"), [(True, True, 60), (True, False, 1), (False, True, 1)]
)
def test_looks_are_rare_where_every_change_is_heard_of_and_nothing_is_left_to_do(
    *, hears_all: bool, is_calm: bool, pause_s: int
) -> None:
    schedule = ScanSchedule(poll_s=1.0, clock=lambda: 10.0)
    if hears_all:
        schedule.hears_all.set()
    schedule.record_scan(10.0, failed=False, is_calm=is_calm)
    assert schedule.next_at == 10 + pause_s
    schedule.note_change()
    assert schedule.is_due


# The steps of a running watcher, asked for over the network.


@pytest.fixture
def served() -> Iterator[tuple[int, LiveSteps]]:
    """A page that is served, and its port."""
    live, port = LiveSteps(lambda: 1.8e9), free_port()
    stop = serve(CollectorRegistry(), f"127.0.0.1:{port}", {PATH: live.page})
    yield port, live
    stop()


def test_the_page_shows_the_table_as_it_is_when_it_is_asked_for(
    served: tuple[int, LiveSteps], made: MadeDump, store: Path
) -> None:
    port, live = served
    made.add(np.ones(3), rank=3, step=40)
    service = make_service(made.root, store)
    live.attach(service)
    service.tick()
    (row,) = fetch_steps(f"http://127.0.0.1:{port}/metrics")
    assert (row.rank, row.step, row.phase) == (3, 40, "ready")
    service.schedule.scan_soon()
    service.tick()
    (row,) = fetch_steps(f"http://127.0.0.1:{port}")
    assert (row.rank, row.step, row.phase) == (3, 40, "committed")


def test_nobody_and_somebody_else_are_told_apart() -> None:
    with pytest.raises(
        DumpIngestError, match=r"no watcher answers at http://127\.0\.0\.1:1/steps: .*refused"
    ):
        fetch_steps("http://127.0.0.1:1")
    port = free_port()
    stop = serve(CollectorRegistry(), f"127.0.0.1:{port}")  # a consolidator
    with pytest.raises(DumpIngestError, match="is not served by a watcher"):
        fetch_steps(f"http://127.0.0.1:{port}")
    stop()
    with pytest.raises(UsageError, match="is not the address of a watcher"):
        fetch_steps("host")


# What a watcher serves about itself, read back.


def test_lag_backlog_disk_and_open_steps_are_those_of_the_watcher(filled: MadeDump, store: Path) -> None:
    just_written = QuietClock(files=lambda _: time.time())
    with served_watcher(filled.root, store, quiet_clock=just_written) as (url, service):
        service.tick()
        before = fetch_watcher(url, 10)
    with served_watcher(filled.root, store) as (url, service):
        for _ in range(2):
            service.schedule.scan_soon()
            service.tick()
        after = fetch_watcher(url, 10)
    assert (before.problem, before.store) == ("", str(store))
    assert [rank.rank for rank in before.ranks] == ["0", "1"]
    assert all(rank.pending_steps == 2 and rank.pending_bytes > 0 for rank in before.ranks)
    assert all(rank.lag_s >= 0 and rank.committed_step == -1 for rank in before.ranks)
    assert {(row.rank, row.step, row.phase) for row in before.steps if row.step is not None} == {
        (rank, step, "waiting") for rank in range(2) for step in range(2)
    }
    assert before.disk == DumpDisk(100, 1000, under_pressure=False)
    assert [row for row in after.steps if row.step is not None] == []
    assert after.settled >= 4
    assert [(rank.pending_steps, rank.lag_s, rank.committed_step) for rank in after.ranks] == [(0, 0, 1)] * 2


@pytest.mark.parametrize("text", ["<html>", "dump_ingest_watcher_pending_steps NaN NaN NaN"])
def test_what_are_not_metrics_is_named(text: str) -> None:
    with pytest.raises(DumpIngestError, match="is not served by a watcher"):
        parse_watcher("http://host:1", text, [])


def test_ranks_are_in_order_and_numbers_that_are_not_finite_are_refused() -> None:
    metric = 'dump_ingest_watcher_pending_steps{{rank="{}"}} {}'
    many = "\n".join(metric.format(rank, 1) for rank in ("other", "10", "9")) + "\n"
    assert [rank.rank for rank in parse_watcher("u", many, []).ranks] == ["9", "10", "other"]
    assert parse_watcher("u", many, []).disk is None
    with pytest.raises(DumpIngestError):
        parse_watcher("u", metric.format(0, "+Inf") + "\n", [])
