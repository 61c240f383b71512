"""A terminal shows in its last line what a watcher does, and the log above it."""

import io
import logging
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ingest.dispatch.submitter import StepCommitted
from ingest.reporting.logs import StatusLine
from tests.npy_files import MadeDump
from tests.pipeline import plan_all, run


@pytest.fixture
def committed(made: MadeDump, store: Path) -> StepCommitted:
    made.add(np.arange(5, dtype="<f4"))
    (plan,) = plan_all(made.root, store)
    return StepCommitted(plan, run(plan), 1.0)


def test_line_counts_commits_and_what_waits(committed: StepCommitted) -> None:
    now = [10.0]
    status = StatusLine(lambda: 7, lambda: 2, clock=lambda: now[0])
    assert status.text_within() == "watching: 0 committed, 7 not yet, 2 tasks"
    status.observe(committed)
    status.observe(replace(committed, summary=replace(committed.summary, findings={"nan": 1})))
    now[0] = 25.0
    assert status.text_within() == (
        "watching: 2 committed (1 with findings), 7 not yet, 2 tasks, last: rank 0 step 0, 15 s ago"
    )


def test_log_stands_above_the_line_and_goes_on_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    console = Console(file=terminal, force_terminal=True, width=80)
    with StatusLine(lambda: 3, lambda: 0).shown(console):
        logging.getLogger().error("a line of the log")
        assert handler.stream is not terminal
    assert handler.stream is terminal
    assert sys.stderr is terminal
    drawn = terminal.getvalue()
    assert "a line of the log\n" in drawn.replace("\r", "")
    assert "0 committed, 3 not yet" in drawn
