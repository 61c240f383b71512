"""The service as a whole while the store is away, with a client that runs every task at once."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.clients import TaskClient
from ingest.dispatch.submitter import StepFailed
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.events import DependencyDown
from tests.fake_client import FakeClient
from tests.npy_files import MadeDump
from tests.services import ingest, observed_service
from workers.errors import ClusterError, StoreUnavailable, UsageError
from workers.model import StepKey
from workers.store.backends.wrappers import ObservedObjects

pytestmark = pytest.mark.timeout(30)


def test_a_service_that_tries_for_ever_waits_for_the_store_from_its_first_look_on(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that is started again while the store is away need not be started again and again."""
    ingest(filled, store)
    filled.add(np.zeros(1), rank=0, step=7)
    running, heard = observed_service(filled, store, retry_forever=True)
    with monkeypatch.context() as patch:
        patch.setattr(ObservedObjects, "children", _unavailable)
        running.tick()
    assert [type(event) for event in heard] == [DependencyDown]
    deadline = time.monotonic() + 10
    while running.dump_state is None or running.dump_state.pending or running.submitter.offered_steps:
        assert time.monotonic() < deadline
        running.schedule.scan_soon()
        running.tick()
    assert StepKey(0, 7) in open_store(str(store)).keys


def _unavailable(*_: object) -> None:
    raise StoreUnavailable("away")


def test_a_step_is_refused_once_while_there_is_no_cluster(filled: MadeDump, store: Path) -> None:
    """What is refused needs no worker; it would be planned and kept again with each scan."""
    client = FakeClient()
    policy = StepPolicy(CompletenessPolicy(quiet_s=0, settle_s=0))
    running, heard = observed_service(filled, store, client=client, retry_forever=True, policy=policy)
    running.foreign_dumps = None
    running.policy = replace(running.policy, foreign_ranks={7: UsageError("of another dump")})
    running.tick()
    assert running.submitter.offered_steps
    # Their plans are large, and a cluster may be away for hours.
    client.status = "closed"
    running.submitter.connect = refusing
    filled.add(np.zeros(1), rank=7)
    for _ in range(5):
        running.schedule.scan_soon()
        running.tick()
    assert heard.keys(StepFailed) == [StepKey(7, 0)]
    assert heard.of(DependencyDown)


def refusing() -> TaskClient:
    raise ClusterError("nobody there")
