"""Complete steps go to the workers as long as there is room, and not before cluster and store answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from ingest.dispatch.submitter import DispatchLimits
from ingest.service.service import Service
from ingest.steps.events import DependencyDown
from tests.fake_client import FakeClient
from tests.npy_files import MadeDump, tensor_name
from tests.services import Heard, make_service
from workers.errors import ClusterError
from workers.model import StepKey

STEPS = 40


@pytest.fixture
def steps(made: MadeDump) -> MadeDump:
    """A backlog of small steps."""
    for step in range(STEPS):
        made.add(np.full(10, step, "<f4"), tensor_name(time=step + 1), step=step)
    return made


def looked(made: MadeDump, store: Path, **options: Any) -> Service:
    """Return a service that looked once, and whose tasks wait."""
    service = make_service(made.root, store, **{"client": FakeClient(), **options})
    service.scan()
    return service


def test_steps_are_offered_in_batches_so_that_workers_do_not_wait_for_the_last(
    steps: MadeDump, store: Path
) -> None:
    service = looked(steps, store)
    offered = []
    while service.offering.offer(service.current_policy):
        offered.append(service.submitter.offered_steps)
    assert all(later - earlier <= 16 for earlier, later in zip([0, *offered], offered, strict=False))
    assert service.submitter.offered_steps == STEPS


@pytest.mark.parametrize(
    ("bound", "expected"), [("MAX_STEPS_UNDER_WAY", 5), ("MAX_ROWS_UNDER_WAY", 5), ("bytes", 1)]
)
def test_what_is_under_way_is_bounded(
    bound: str, expected: int, steps: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = DispatchLimits(10**9)
    if bound == "bytes":
        limits = DispatchLimits(1)
    else:
        monkeypatch.setattr(f"ingest.service.offering.{bound}", 5)
    service = looked(steps, store, limits=limits)
    while service.offering.offer(service.current_policy):
        pass
    assert service.submitter.offered_steps == expected


def test_nothing_is_offered_while_the_cluster_does_not_answer(steps: MadeDump, store: Path) -> None:
    heard = Heard()
    service = looked(steps, store, retry_forever=True, observers=[heard.append])

    def refuse() -> Client:
        raise ClusterError("no scheduler")

    service.submitter.connect = refuse
    service.offering.offer(service.current_policy)
    assert service.submitter.offered_steps == 0
    assert len(heard.of(DependencyDown)) == 1
    assert service.table.ensure(StepKey(0, 0)).is_pending
    assert not store.exists()
