"""What Prometheus gets of watchers and consolidators."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from ingest.consolidating.consolidator import CommitsListed, StepsConsolidated
from ingest.dispatch.submitter import StepCommitted
from ingest.layouts.base import Problem
from ingest.metrics import ConsolidatorMetrics, Scrapes, WatcherMetrics, serve, server
from ingest.metrics.observers import MAX_PLACES, MAX_RULES
from ingest.metrics.server import MAX_RANKS, OTHER, CommitsBehind, ProcessMetrics, RankLabels, Stragglers
from ingest.steps.watcher import DumpState
from tests.metric_values import NOW, listing, look, series, value
from tests.servers.process import free_port, http_get, scrape
from tests.stores import DumpLibrary, plan_all
from workers.errors import REASONS, UsageError
from workers.host.heartbeat import beat
from workers.model import StepKey
from workers.store.model import CommitSummary
from workers.store.objects import STORE_OPS
from workers.tasks.model import StepPlan

# What a watcher exports: all of it from the beginning, and a bounded number of series.


def test_problems_are_told_by_what_keeps_something_from_being_ingested(registry: CollectorRegistry) -> None:
    metrics = WatcherMetrics(registry, lambda: NOW)
    problems = (
        Problem("rank_1", "permission denied", denied=True),
        Problem("rank-2", "is not how a dump names the directory of a rank", misnamed=True),
        Problem("rank_0/link", "is a symbolic link"),
        Problem("rank_0/other", "is a symbolic link"),
    )
    metrics.observe(replace(look([listing(0, 1)], []), problems=problems))
    counts = {"denied": 1, "name": 1, "other": 2}
    for kind, count in counts.items():
        assert value(registry, "dump_ingest_watcher_problems", kind=kind) == count
    metrics.observe(look([listing(0, 1)], []))
    assert value(registry, "dump_ingest_watcher_problems", kind="denied") == 0


@pytest.fixture
def plan(dumps: DumpLibrary, summary: CommitSummary, tmp_path: Path) -> StepPlan:
    plans = plan_all(dumps["nan-log-2rank"] / "dump", tmp_path / "other.zarr")
    return next(plan for plan in plans if plan.key == summary.key)


def test_every_counter_without_a_rank_is_there_before_there_is_a_dump(registry: CollectorRegistry) -> None:
    """An alert on an increase does not see the first one otherwise."""
    WatcherMetrics(registry, rules=[("nan", "critical")])
    for reason in REASONS:
        for name in ("step_failures", "task_retries", "troubles"):
            assert value(registry, f"dump_ingest_watcher_{name}_total", reason=reason) == 0
    assert value(registry, "dump_ingest_findings_total", rule="nan", severity="critical") == 0
    assert value(registry, "dump_ingest_watcher_quarantined_files_total") == 0
    assert value(registry, "dump_ingest_rule_failures_total") == 0
    for op in STORE_OPS:
        labels = {"op": op, "reason": "store_denied"}
        assert value(registry, "dump_ingest_store_request_errors_total", **labels) == 0


def test_ten_thousand_ranks_of_a_hundred_thousand_tensors_make_a_bounded_number_of_series(
    registry: CollectorRegistry, summary: CommitSummary, dumps: DumpLibrary, tmp_path: Path
) -> None:
    metrics = WatcherMetrics(registry, lambda: NOW)
    plan = replace(plan_all(dumps["dtypes-1rank"] / "dump", tmp_path)[0], entries=())
    step = listing(0, 5)
    steps = [replace(step, key=StepKey(rank, 5), newest_change=NOW - rank) for rank in range(10_000)]
    metrics.observe(look(steps, steps))
    for rank in range(10_000):
        key = StepKey(rank, 5)
        worst = replace(summary, key=key, tensors=100_000, nan_tensors=100_000, pos_inf_tensors=100_000)
        metrics.observe(StepCommitted(plan, worst, 1.0))
    metrics.observe(look(steps, steps[:5000]))
    count = series(registry)
    print(f"{count} series for 10,000 ranks")
    assert count <= 15 * (MAX_RANKS + 1) + MAX_RULES + 1 + 2 * (MAX_PLACES + MAX_RULES + 1) + 250
    # What the others have together is told of the worst of them, and summed up.
    assert value(registry, "dump_ingest_watcher_pending_steps", rank=OTHER) == 5000 - MAX_RANKS
    oldest = value(registry, "dump_ingest_watcher_oldest_pending_timestamp_seconds", rank=OTHER)
    assert oldest == NOW - 4999
    assert value(registry, "dump_ingest_watcher_ranks") == 10_000
    # A finding has its rank for as long as there are few of them.
    labels = {"rank": "500", "rule": "nan", "severity": "critical"}
    assert value(registry, "dump_ingest_last_finding_step", **labels) == 5


def test_rules_have_a_bounded_number_of_series(registry: CollectorRegistry) -> None:
    rules = [(f"rule-{number}", "warning") for number in range(MAX_RULES + 50)]
    WatcherMetrics(registry, lambda: NOW, rules=rules)
    samples = (sample for family in registry.collect() for sample in family.samples)
    told = {each.labels["rule"] for each in samples if each.name == "dump_ingest_findings_total"}
    assert told == {*(name for name, _ in rules[:MAX_RULES]), OTHER}


# How far ranks are behind: by what they wrote last, and by what they committed.


def behind(*written: tuple[int, int, float]) -> dict[int, int]:
    """Return how far each rank is behind, from rank, step and time of each step that was written."""
    stragglers = Stragglers()
    listings = [listing(rank, step, newest=NOW + at) for rank, step, at in written]
    stragglers.record_listings(listings)
    return stragglers.steps_behind({found.key for found in listings})


def test_a_rank_is_behind_by_the_steps_that_others_have_written_since() -> None:
    others = [(rank, step, 10.0 * step) for rank in (0, 1) for step in (1, 2, 3)]
    assert behind(*others, (2, 1, 10.0)) == {0: 0, 1: 0, 2: 2}


def test_a_rank_that_repeats_steps_is_not_behind_those_of_its_former_life() -> None:
    former = [(0, step, 10.0 * step) for step in (1, 2, 3)] + [(1, 1, 10.0)]
    again = [(0, 1, 100.0), (1, 1, 101.0)]
    assert behind(*former[1:3], *again)[1] == 0


def test_a_rank_falls_behind_while_others_commit_and_not_by_a_restart() -> None:
    behind = CommitsBehind()
    assert behind.after({0: 101, 1: 100}) == {
        0: 0,
        1: 1,
    }  # as a job leaves its ranks that is killed in a dump
    assert behind.after({0: 105, 1: 100}) == {0: 0, 1: 2}
    assert behind.after({0: 105, 1: 100}) == {0: 0, 1: 2}
    assert behind.after({0: 110, 1: 110}) == {0: 0, 1: 0}


def test_ranks_that_number_their_steps_differently_are_not_behind() -> None:
    behind = CommitsBehind()
    behind.after({0: 0, 1: 1000})
    for step in range(1, 5):
        assert behind.after({0: step, 1: 999 + step})[0] == 0
        assert behind.after({0: step, 1: 1000 + step})[0] == 1  # until it commits, too
    assert behind.after({0: 4, 1: 1005})[0] == 2


# What tells a process and its run from others, and a bounded number of labels for any number of ranks.


def test_clock_store_and_expected_ranks(registry: CollectorRegistry) -> None:
    metrics = ProcessMetrics(registry, lambda: NOW, "s3://bucket/run.zarr")
    assert value(registry, "dump_ingest_time_seconds") == NOW
    assert value(registry, "dump_ingest_store_info", store="s3://bucket/run.zarr") == 1
    assert value(registry, "dump_ingest_expected_ranks") == 0
    metrics.observe(DumpState({}, {}, (), expected_ranks=64))
    assert value(registry, "dump_ingest_expected_ranks") == 64
    metrics.observe(DumpState({}, {}, ()))
    assert value(registry, "dump_ingest_expected_ranks") == 64


@pytest.mark.parametrize("given", [0, 8])
def test_what_the_settings_say_counts_more_than_a_rank_table(given: int, registry: CollectorRegistry) -> None:
    metrics = ProcessMetrics(registry, lambda: NOW, expected_ranks=given)
    metrics.observe(DumpState({}, {}, (), expected_ranks=64))
    assert value(registry, "dump_ingest_expected_ranks") == given


def test_ranks_beyond_the_limit_share_a_label() -> None:
    labels = RankLabels(limit=2)
    assert [labels.of(rank) for rank in (7, 3, 5, 7, 9)] == ["7", "3", OTHER, "7", OTHER]
    assert list(labels) == [7, 3, 5, 9]


# What a consolidator exports.


def test_shows_how_far_ranks_and_view_are(registry: CollectorRegistry) -> None:
    now = [NOW]
    metrics = ConsolidatorMetrics(registry, lambda: now[0])
    name = "dump_ingest_consolidator_"
    assert value(registry, f"{name}newest_step") == -1
    assert value(registry, f"{name}oldest_waiting_timestamp_seconds") == NOW
    metrics.lease(held=True)
    metrics.observe(CommitsListed({0: 3, 1: 3, 2: 1}, (1, 2, 3), -1))
    now[0] += 5
    metrics.observe(StepsConsolidated(appended=(1,), waiting=(2, 3)))
    now[0] += 60
    metrics.observe(CommitsListed({0: 4, 1: 4, 2: 1}, (2, 3, 4), 1))
    assert value(registry, f"{name}lease_held") == 1
    assert value(registry, f"{name}newest_step") == 1
    assert value(registry, f"{name}steps_behind") == 3
    assert value(registry, f"{name}oldest_waiting_timestamp_seconds") == NOW
    assert value(registry, f"{name}last_round_timestamp_seconds") == NOW + 5
    assert value(registry, f"{name}committed_step", rank="2") == 1
    assert value(registry, f"{name}fastest_rank_step") == 4
    assert value(registry, f"{name}slowest_rank_step") == 1
    assert value(registry, f"{name}round_duration_seconds_sum") == 5
    metrics.observe(StepsConsolidated(rewritten=(1,), damaged=("rank_0/4: no JSON",)))
    assert value(registry, f"{name}damaged_commits") == 1
    assert value(registry, f"{name}steps_behind") == 0
    assert value(registry, f"{name}rewritten_steps_total") == 1


# Serving metrics, and scrapes: a process that ends has its last metrics scraped, if anybody scrapes.


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scrapes(clock: Clock) -> Scrapes:
    """Of a process that is scraped every ten seconds."""
    made = Scrapes(clock)
    for _ in range(3):
        clock.time += 10
        made.record(clock())
    return made


@contextmanager
def waiting(scrapes: Scrapes, *, has_news: bool = False) -> Iterator[threading.Thread]:
    """Wait in a thread."""
    thread = threading.Thread(target=scrapes.wait_for_last, args=(3600.0,), kwargs={"has_news": has_news})
    thread.start()
    yield thread
    thread.join(30)
    assert not thread.is_alive()


def test_what_nobody_scrapes_is_not_waited_for(clock: Clock) -> None:
    Scrapes(clock).wait_for_last(3600, has_news=True)


def test_news_wait_for_the_next_scrape(scrapes: Scrapes, clock: Clock) -> None:
    clock.time += 1
    scrapes.observe(StepsConsolidated(appended=(7,)))
    with waiting(scrapes) as thread:
        thread.join(0.05)
        assert thread.is_alive()
        scrapes.record(clock() - 0.5)  # its answer was made before
        thread.join(0.05)
        assert thread.is_alive()
        clock.time += 9
        scrapes.record(clock())
    scrapes.wait_for_last(3600)


def test_two_servers_that_scrape_do_not_make_it_impatient(scrapes: Scrapes, clock: Clock) -> None:
    clock.time += 1
    scrapes.record(clock())
    clock.time += 8
    with waiting(scrapes, has_news=True) as thread:
        thread.join(0.05)
        assert thread.is_alive()
        clock.time += 1
        scrapes.record(clock())


def test_a_probe_is_not_a_scrape(registry: CollectorRegistry) -> None:
    """Whether it is one, a header tells; it counts when its answer was sent."""
    Counter("things", "Things.", registry=registry)
    scrapes, port = Scrapes(), free_port()
    stop = serve(registry, f"127.0.0.1:{port}", scrapes=scrapes)
    try:
        http_get(port, "/metrics")
        scrapes.wait_for_last(3600, has_news=True)
        for _ in range(2):
            assert "things_total 0.0" in scrape(port)
        with waiting(scrapes, has_news=True):
            scrape(port)
    finally:
        stop()


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "256.0.0.1:9108"])
def test_an_address_that_cannot_be_served_is_refused(registry: CollectorRegistry, address: str) -> None:
    with pytest.raises(UsageError, match="cannot serve"):
        serve(registry, address)


def test_says_whether_the_process_is_ready(registry: CollectorRegistry) -> None:
    reason = [""]
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}", unready=lambda: reason[0])
    try:
        assert http_get(port, "/ready") == (200, b"ready\n")
        reason[0] = "nothing of the dump can be read"
        assert http_get(port, "/ready") == (503, b"nothing of the dump can be read\n")
    finally:
        stop()


def test_says_whether_the_process_hangs(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}")
    try:
        beat()
        assert http_get(port, "/live") == (200, b"live\n")
        last = time.time() - server.STALE_S - 60
        monkeypatch.setattr(server, "last_beat", lambda: last)
        status, reason = http_get(port, "/live")
        assert status == 503
        assert reason.startswith(b"hangs: it has made no progress for 66")
    finally:
        stop()


@pytest.mark.parametrize("path", ["/health", "/healthz", "/reday"])
def test_a_probe_of_a_path_that_does_not_exist_fails(registry: CollectorRegistry, path: str) -> None:
    """The metrics as an answer would make such a probe succeed for ever."""
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}", {"/steps": bytes})
    try:
        assert http_get(port, path) == (404, b"served here: /live, /metrics, /ready, /steps\n")
        assert http_get(port, "/")[1].startswith(b"# HELP")
    finally:
        stop()
