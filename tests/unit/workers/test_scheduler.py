"""A scheduler that runs for weeks."""

import time

import pytest
from distributed import Client, LocalCluster, Scheduler

from tests.servers.cluster import DaskCluster
from workers.scheduler import dask_setup

pytestmark = [pytest.mark.dask, pytest.mark.timeout(60)]


def test_no_span_is_kept_and_workers_go_on() -> None:
    """A heartbeat of a worker carries what it measured for spans; an error there would end it."""
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        scheduler: Scheduler = local.scheduler
        client.submit(sum, [1], key="before").result()
        dask_setup(scheduler)
        for number in range(3):
            assert client.submit(sum, [number], key=f"task-{number}").result() == number
        (state,) = scheduler.workers.values()
        (worker,) = local.workers.values()
        before = state.last_seen
        time.sleep(2)
        assert state.last_seen > before
        assert worker.status.name == "running"
        assert not hasattr(scheduler.extensions["spans"], "spans")


def test_a_scheduler_that_preloads_it_keeps_few_messages(cluster: DaskCluster) -> None:
    def kept(dask_scheduler: Scheduler) -> tuple[str, set[int | None]]:
        streams = [*dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values()]
        name = type(dask_scheduler.extensions["spans"]).__name__
        return name, {stream.recent_message_log.maxlen for stream in streams}

    with Client(cluster.address, set_as_default=False) as client:
        assert client.run_on_scheduler(kept) == ("_NoSpans", {10})
