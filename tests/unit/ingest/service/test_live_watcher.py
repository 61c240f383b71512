"""What a watcher serves about itself, read back."""

import time
from pathlib import Path

import pytest

from ingest.service.live_watcher import DumpDisk, fetch_watcher, parse_watcher
from ingest.steps.watcher import QuietClock
from tests.npy_files import MadeDump
from tests.served_watcher import served_watcher
from workers.errors import DumpIngestError


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
