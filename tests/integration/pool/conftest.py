"""A run whose ranks share tensors."""

from pathlib import Path

import pytest

from tests.pools import RANKS, PooledRun, replicas, small_pools


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PooledRun:
    """A run of three ranks, of which step 0 is consolidated."""
    small_pools(monkeypatch)
    made = PooledRun(tmp_path)
    made.begin(RANKS, replicas(0))
    return made
