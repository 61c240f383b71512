"""The steps of a running watcher, asked for over the network."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from ingest.metrics import serve
from ingest.service.live_watcher import PATH, fetch_steps
from ingest.service.one_shot import LiveSteps
from tests.npy_files import MadeDump
from tests.servers.process import free_port
from tests.services import make_service
from workers.errors import DumpIngestError, UsageError

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def served() -> Iterator[tuple[int, LiveSteps]]:
    """A page that is served, and its port."""
    live, port = LiveSteps(lambda: 1.8e9), free_port()
    stop = serve(CollectorRegistry(), f"127.0.0.1:{port}", {PATH: live.page})
    yield port, live
    stop()


def test_the_page_shows_the_table_as_it_is_when_it_is_asked_for(
    served: tuple[int, LiveSteps], made: MadeDump, store: Path
) -> None:
    port, live = served
    made.add(np.ones(3), rank=3, step=40)
    service = make_service(made.root, store)
    live.attach(service)
    service.tick()
    (row,) = fetch_steps(f"http://127.0.0.1:{port}/metrics")
    assert (row.rank, row.step, row.phase) == (3, 40, "ready")
    service.schedule.scan_soon()
    service.tick()
    (row,) = fetch_steps(f"http://127.0.0.1:{port}")
    assert (row.rank, row.step, row.phase) == (3, 40, "committed")


def test_nobody_and_somebody_else_are_told_apart() -> None:
    with pytest.raises(
        DumpIngestError, match=r"no watcher answers at http://127\.0\.0\.1:1/steps: .*refused"
    ):
        fetch_steps("http://127.0.0.1:1")
    port = free_port()
    stop = serve(CollectorRegistry(), f"127.0.0.1:{port}")  # a consolidator
    with pytest.raises(DumpIngestError, match="is not served by a watcher"):
        fetch_steps(f"http://127.0.0.1:{port}")
    stop()
    with pytest.raises(UsageError, match="is not the address of a watcher"):
        fetch_steps("host")
