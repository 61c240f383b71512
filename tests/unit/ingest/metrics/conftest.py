"""A registry, and the totals of a real step."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.stores import DumpLibrary, ingest_directly
from workers.model import StepKey
from workers.store.model import CommitSummary


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def summary(dumps: DumpLibrary, tmp_path: Path) -> CommitSummary:
    """The totals of a real step with NaN, for which no rules were evaluated."""
    summaries = ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr")
    summary = next(summary for summary in summaries if summary.key == StepKey(1, 2))
    return replace(summary, rules="", findings={}, severities={})
