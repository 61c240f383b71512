"""What all workers share: errors, keys and plugin."""

import logging
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers import errors
from workers.errors import DumpIngestError
from workers.model import bounded_ns, ceil_div
from workers.plugin import IngestPlugin

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
