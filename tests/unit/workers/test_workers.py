"""What all workers share: errors, keys, plugin and scheduler."""

import logging
import pickle
import subprocess
import sys
import time

import pytest
from distributed import Client, LocalCluster, Scheduler
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.cluster import DaskCluster
from workers import errors
from workers.errors import DumpIngestError
from workers.model import bounded_ns, ceil_div
from workers.plugin import IngestPlugin
from workers.scheduler import dask_setup

# What all workers share: errors, keys and plugin.


# Errors cross process boundaries whole.


def tree(cls: type[DumpIngestError]) -> list[type[DumpIngestError]]:
    return [cls, *(below for sub in cls.__subclasses__() for below in tree(sub))]


@pytest.mark.parametrize("cls", tree(DumpIngestError))
def test_error_survives_pickling(cls: type[DumpIngestError]) -> None:
    """Dask sends what a task raised by pickle; a lost hint or type changes what happens next."""
    copy = pickle.loads(pickle.dumps(cls("what happened", hint="what to do")))  # noqa: S301
    assert type(copy) is cls
    assert (str(copy), copy.message, copy.hint) == (
        "what happened\nwhat to do",
        "what happened",
        "what to do",
    )


@pytest.mark.parametrize("cls", [errors.UnreadableFile, errors.PoisonedFile])
def test_the_file_to_blame_survives_pickling(cls: type[errors.FileError]) -> None:
    """By it, the step is planned again without reading that file."""
    copy = pickle.loads(pickle.dumps(cls("what happened", path="rank_0/a.npy")))  # noqa: S301
    assert (type(copy), copy.path, copy.hint) == (cls, "rank_0/a.npy", cls.hint)


def test_other_exceptions_become_errors_that_name_the_step() -> None:
    known = errors.StoreDenied("no")
    assert errors.as_error("rank 0 step 1", known) is known
    assert type(errors.as_error("rank 0 step 1", MemoryError())) is errors.WorkerDied
    other = errors.as_error("rank 0 step 1", ValueError("x" * 1000))
    assert other.message.startswith("rank 0 step 1: ValueError: xxx")
    assert len(other.message) == 500


# Names of steps, small pickles and exact arithmetic.


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**15))
def test_quotient_is_rounded_up_exactly(dividend: int, divisor: int) -> None:
    """Also beyond 2**53, where floats are no longer exact."""
    quotient = ceil_div(dividend, divisor)
    assert (quotient - 1) * divisor < dividend <= quotient * divisor


@pytest.mark.parametrize(
    ("time_ns", "kept"),
    [(0, 0), (-1, -1), (10**19, 2**63 - 1), (-(10**19), -(2**63)), (2**63 - 1, 2**63 - 1)],
)
def test_times_fit_into_64_bits(time_ns: int, kept: int) -> None:
    assert bounded_ns(time_ns) == kept


# What the plugin changes in a worker.


@pytest.mark.parametrize(("message", "records"), [("ConnectionPool is closed", 0), ("something else", 1)])
def test_the_error_of_a_heartbeat_that_the_end_overtook_is_not_logged(
    message: str, records: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    IngestPlugin().setup(None)  # type: ignore[arg-type]
    # Starting workers of one's own silences it for the process.
    monkeypatch.setattr(logging.getLogger("tornado.application"), "level", logging.ERROR)
    logging.getLogger("tornado.application").error("Exception in callback", exc_info=RuntimeError(message))
    assert len(caplog.records) == records


def test_a_process_that_only_registers_the_plugin_loads_no_codecs() -> None:
    """Its start would take half a second longer."""
    code = "import sys, workers.plugin; print([n for n in ('numcodecs', 's3fs', 'zarr') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# A scheduler that runs for weeks.


@pytest.mark.dask
@pytest.mark.timeout(60)
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


@pytest.mark.dask
@pytest.mark.timeout(60)
def test_a_scheduler_that_preloads_it_keeps_few_messages(cluster: DaskCluster) -> None:
    def kept(dask_scheduler: Scheduler) -> tuple[str, set[int | None]]:
        streams = [*dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values()]
        name = type(dask_scheduler.extensions["spans"]).__name__
        return name, {stream.recent_message_log.maxlen for stream in streams}

    with Client(cluster.address, set_as_default=False) as client:
        assert client.run_on_scheduler(kept) == ("_NoSpans", {10})
