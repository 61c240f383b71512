"""A severity that nothing has is refused at once, wherever somebody chooses by it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import ingest
from tests.replicas import Replicas
from workers.errors import UsageError


@pytest.mark.parametrize(
    "ask",
    [
        lambda url: ingest.wait(url, severity="crit"),
        lambda url: ingest.should_stop(url, severity="crit"),
        lambda _: ingest.anomalies(Replicas().store, severity="crit"),
        lambda _: ingest.incidents(Replicas().store, severity=""),
    ],
)
def test_a_mistake_is_told_at_once(ask: Callable[[str], object], tmp_path: Path) -> None:
    """Even before the store exists; otherwise a job would never be told to stop."""
    with pytest.raises(UsageError, match="is not a severity") as told:
        ask(str(tmp_path / "later.zarr"))
    assert "info, warning, critical" in told.value.hint
