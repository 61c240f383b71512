"""Who asks a command to stop, and whether somebody waits for its end."""

import threading

from ingest.service.stopping import StopRequest, is_interrupted


def test_only_ctrl_c_means_that_somebody_waits() -> None:
    stop = StopRequest()
    stop.set()
    assert not is_interrupted(stop)  # SIGTERM
    stop.is_interrupt = True
    assert is_interrupted(stop)


def test_an_event_of_a_caller_is_no_interrupt() -> None:
    event = threading.Event()
    event.set()
    assert not is_interrupted(event)
