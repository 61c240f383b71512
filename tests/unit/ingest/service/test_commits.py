"""Commits as this process sees them: not there at all, gone back, or made by another watcher."""

import threading
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.service.one_shot import ingest_once
from ingest.service.service import Service
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.events import CommitReverted
from tests.npy_files import MadeDump, tensor_name
from tests.services import ingest, observed_service
from workers.errors import (
    StoreError,
)
from workers.model import StepKey

pytestmark = pytest.mark.timeout(30)


def test_commit_that_is_not_seen_here_is_a_failure(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers with a directory of their own under the same name would swallow the dump."""
    monkeypatch.setattr("ingest.steps.committed.Committed.read", lambda *_: {})
    report = ingest(filled, store)
    assert isinstance(report.stopped_by, StoreError)


def look_again(running: Service) -> None:
    """Take what is there by now."""
    running.schedule.scan_soon()
    ingest_once(running, threading.Event())


def test_a_step_that_went_back_is_taken_again(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was long given up reaches the store when a newer generation is there."""
    monkeypatch.setattr("ingest.service.service._RECHECK_S", 0.0)
    running, heard = observed_service(filled, store, policy=StepPolicy(CompletenessPolicy(0.1, 0.1)))
    look_again(running)
    leaf = store / "rank_0" / "step_1" / "zarr.json"
    old = leaf.read_bytes()
    filled.add(np.ones(3), tensor_name(slot=7), rank=0, step=1)
    look_again(running)
    new = leaf.read_bytes()
    leaf.write_bytes(old)
    look_again(running)
    assert [event.key for event in heard.of(CommitReverted)] == [StepKey(0, 1)]
    assert [tensor.slot for tensor in open_store(str(store)).step(0, 1).tensors()] == [0, 7]
    assert leaf.read_bytes() != new  # it was committed once more, and names the old one before it
    look_again(running)
    assert len(heard.of(CommitReverted)) == 1
