"""One line for each event that is worth one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from ingest.dispatch.submitter import StepCommitted
from ingest.dump_retention.policy import ReadBackFailed, SourceDeleted
from ingest.layouts.base import Problem
from ingest.reporting.logs import ServiceLog
from ingest.steps.events import (
    CommitKept,
    CommitReverted,
    KeepReason,
    RecheckFailed,
    SourceKept,
    StepDamaged,
)
from tests.metric_values import listing, look
from tests.npy_files import MadeDump
from tests.pipeline import plan_all, run
from workers.errors import DamagedStore
from workers.events import Event
from workers.model import StepKey
from workers.store.model import CommitSummary
from workers.tasks.model import StepPlan

KEY = StepKey(3, 7)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """What was logged in this test."""
    with structlog.testing.capture_logs() as logged:
        yield logged


@pytest.fixture
def committed(made: MadeDump, store: Path) -> tuple[StepPlan, CommitSummary]:
    made.add(np.arange(5, dtype="<f4"))
    (plan,) = plan_all(made.root, store)
    return plan, run(plan)


def names(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line["log_level"]) for line in lines]


def test_a_healthy_commit_is_information_and_an_abnormal_one_a_warning(
    committed: tuple[StepPlan, CommitSummary], lines: list[Any]
) -> None:
    plan, summary = committed
    log = ServiceLog()
    log.observe(StepCommitted(plan, summary, 1.23456))
    log.observe(StepCommitted(plan, replace(summary, status="partial"), 1.0))
    log.observe(StepCommitted(replace(plan, without_tensors="the disk is full"), summary, 1.0))
    assert names(lines) == [("step_committed", level) for level in ("info", "warning", "warning")]
    assert (lines[0]["rank"], lines[0]["step"], lines[0]["seconds"]) == (0, 0, 1.235)
    assert lines[2]["without_tensors"] == "the disk is full"


@pytest.mark.parametrize(
    ("event", "name", "level"),
    [
        (SourceDeleted(KEY, 2, 200, 0.1), "source_deleted", "info"),
        (SourceKept(KEY, KeepReason.NEWEST, 2, "of the newest"), "source_kept", "info"),
        (SourceKept(KEY, KeepReason.NOT_STORED, 2, "a.npy"), "source_kept", "warning"),
        (ReadBackFailed(KEY, DamagedStore("a shard is missing"), 1.0), "read_back_failed", "error"),
        (CommitKept(KEY, 4), "commit_kept", "warning"),
        (CommitReverted(KEY), "commit_went_back", "warning"),
        (RecheckFailed(KEY, DamagedStore("x")), "recheck_failed", "error"),
        (StepDamaged(KEY, "a shard is missing", "run.zarr"), "step_damaged", "warning"),
    ],
)
def test_what_happens_to_a_dump_is_logged(event: Event, name: str, level: str, lines: list[Any]) -> None:
    ServiceLog().observe(event)
    assert names(lines) == [(name, level)]
    assert (lines[0]["rank"], lines[0]["step"]) == (3, 7)


def test_what_cannot_be_read_is_logged_once_and_again_every_ten_minutes(lines: list[Any]) -> None:
    now = [0.0]
    log = ServiceLog(lambda: now[0])
    denied = Problem("rank_1", "permission denied", "grant it", denied=True)
    misnamed = Problem("rank-2", "is not a rank", misnamed=True)
    links = tuple(Problem(f"rank_0/{number}", "is a symbolic link") for number in range(30))
    seen = replace(look([listing(0, 1)], []), problems=(denied, misnamed))
    for at in (0.0, 300.0, 601.0):
        now[0] = at
        log.observe(seen)
    once = [("cannot_read", "error"), ("not_ingested", "warning")]
    assert names(lines) == once * 2
    assert (lines[0]["path"], lines[0]["reason"], lines[0]["hint"]) == (
        "rank_1",
        "permission denied",
        "grant it",
    )
    log.observe(look([listing(0, 1)], []))
    log.observe(seen)  # it is back
    assert names(lines) == once * 3
    log.observe(replace(seen, problems=links))
    assert len(lines) == 6 + 20 + 1
    assert (lines[-1]["event"], lines[-1]["problems"]) == ("problems_not_logged", 10)
