"""The service as a whole while the store is away, with a client that runs every task at once."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.outcomes import StepCommitted, StepFailed
from ingest.service.service import Service
from ingest.steps.events import DependencyDown, StoreRecovered
from tests.npy_files import MadeDump
from tests.services import ingest, observed_service
from workers.errors import (
    StoreUnavailable,
)
from workers.model import StepKey
from workers.store.backends.observed import ObservedObjects

pytestmark = pytest.mark.timeout(30)


def test_store_that_is_away_is_waited_for_by_a_patient_service(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, found = observed_service(filled, store, retry_forever=True)
    running.tick()
    with monkeypatch.context() as patch:
        for name in ("get", "get_many", "children"):
            patch.setattr(ObservedObjects, name, _unavailable)
        filled.add(np.zeros(1), rank=0, step=7)
        running.schedule.look_soon()
        running.tick()
    assert any(isinstance(happening, DependencyDown) for happening in found)
    deadline = time.monotonic() + 10
    while (
        running.submitter.busy or running.view is None or running.view.pending
    ) and time.monotonic() < deadline:
        running.schedule.look_soon()
        running.tick()
    assert StepKey(0, 7) in open_store(str(store)).keys


def test_what_failed_for_want_of_the_store_is_tried_as_soon_as_it_is_back(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the pause of a step that failed, which is a minute."""
    running, found = observed_service(filled, store, retry_forever=True)
    running.dependencies.probe.pause_s = 0.01
    with monkeypatch.context() as patch:
        patch.setattr(ObservedObjects, "put_many", _unavailable)
        patch.setattr("ingest.service.build.commit.read_root", _unavailable)
        _tick_until(running, lambda: sum(isinstance(one, StepFailed) for one in found) == 5)
        for _ in range(5):
            running.tick()
        assert not any(isinstance(one, StepCommitted | StoreRecovered) for one in found)
    _tick_until(running, lambda: sum(isinstance(one, StepCommitted) for one in found) == 5)
    assert sum(isinstance(one, StoreRecovered) for one in found) == 1


def _tick_until(running: Service, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not ready():
        assert time.monotonic() < deadline
        running.tick()


def test_a_patient_service_waits_for_the_store_from_its_first_look_on(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that is started again while the store is away need not be started again and again."""
    ingest(filled, store)
    filled.add(np.zeros(1), rank=0, step=7)
    running, found = observed_service(filled, store, retry_forever=True)
    with monkeypatch.context() as patch:
        patch.setattr(ObservedObjects, "children", _unavailable)
        running.tick()
    assert [type(happening) for happening in found] == [DependencyDown]
    deadline = time.monotonic() + 10
    while running.view is None or running.view.pending or running.submitter.busy:
        assert time.monotonic() < deadline
        running.schedule.look_soon()
        running.tick()
    assert StepKey(0, 7) in open_store(str(store)).keys


def _unavailable(*_: object) -> None:
    raise StoreUnavailable("away")
