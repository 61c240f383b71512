"""A commit that this process does not see."""

from pathlib import Path

import pytest

from tests.npy_files import MadeDump
from tests.services import ingest
from workers.errors import StoreError

pytestmark = pytest.mark.timeout(30)


def test_commit_that_is_not_seen_here_is_a_failure(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers with a directory of their own under the same name would swallow the dump."""
    monkeypatch.setattr("ingest.steps.committed.Committed.read", lambda *_: {})
    report = ingest(filled, store)
    assert isinstance(report.stopped_by, StoreError)
