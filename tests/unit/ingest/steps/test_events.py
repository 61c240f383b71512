"""Commits that others made are of interest if they count something."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ingest.api import open_store
from ingest.steps.events import AnomalousCommitRead
from workers.events import Event
from workers.model import StepKey


def test_a_commit_with_nan_is_an_event_and_a_clean_one_is_none(nan_log: Path) -> None:
    store = open_store(nan_log)
    event = AnomalousCommitRead.of(store.step(1, 2).commit.record)
    assert isinstance(event, Event)
    assert event.key == StepKey(1, 2)
    assert event.summary.anomalous_tensors == 5
    assert event.committed_at > 1_700_000_000
    assert AnomalousCommitRead.of(store.step(0, 2).commit.record) is None


@pytest.mark.parametrize(
    "counts",
    [{"overflows": 1}, {"disagreements": 1}, {"anomalous_tensors": 1}, {"findings": {"vanished": 1}}],
)
def test_each_count_alone_is_of_interest(nan_log: Path, counts: dict[str, Any]) -> None:
    record = open_store(nan_log).step(0, 2).commit.record
    changed = structs.replace(record, summary=replace(record.summary, **counts))
    event = AnomalousCommitRead.of(changed)
    assert event is not None
    assert event.summary == changed.summary
