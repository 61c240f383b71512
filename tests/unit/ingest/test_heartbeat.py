"""When this process last made progress."""

import time

import pytest

from ingest import heartbeat


def test_the_time_of_the_last_beat_stands_still_without_beats() -> None:
    heartbeat.beat()
    first = heartbeat.last_beat()
    assert abs(first - time.time()) < 60
    time.sleep(0.5)
    assert heartbeat.last_beat() == pytest.approx(first, abs=0.4)
    heartbeat.beat()
    assert heartbeat.last_beat() >= first + 0.4
