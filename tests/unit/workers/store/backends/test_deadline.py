"""Calls are waited for as long as they make progress."""

import threading
import time
from functools import partial

import pytest

from workers.store.backends import failures
from workers.store.backends.failures import made_progress, supervised

pytestmark = pytest.mark.timeout(60)
call_within = partial(failures.call_within, late=TimeoutError)


def test_what_makes_progress_is_waited_for() -> None:
    def slow() -> str:
        for _ in range(10):
            time.sleep(0.1)
            made_progress()
        return "done"

    assert call_within(0.9, slow) == "done"


def test_what_stops_half_way_is_not() -> None:
    stop = threading.Event()
    made = []

    def stalls() -> None:
        made_progress()
        made.append(1)
        stop.wait()

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        call_within(0.2, stalls)
    stop.set()
    assert made == [1]
    assert time.monotonic() - started >= 0.2


def test_an_abandoned_call_may_come_to_an_end_after_all() -> None:
    stop, ended = threading.Event(), threading.Event()

    def late() -> None:
        stop.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        call_within(0.05, late)
    assert call_within(60, divmod, 7, 2) == (3, 1)  # others do not wait for it
    stop.set()
    assert ended.wait(60)


def test_supervised_work_that_hangs_in_a_call_is_abandoned_and_ends_with_that_call() -> None:
    goes_on, cleaned_up = threading.Event(), threading.Event()
    made: list[str] = []

    def work() -> None:
        try:
            call_within(0.05, goes_on.wait, late=lambda waited_s: OSError(f"silent for {waited_s:g} s"))
            call_within(60, made.append, "what comes after it")
        finally:
            call_within(60, cleaned_up.set)

    with pytest.raises(OSError, match=r"silent for 0.05 s"):
        supervised(work)
    goes_on.set()
    assert cleaned_up.wait(60)
    assert made == []
