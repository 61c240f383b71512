"""The two clocks by which a step has been quiet."""

import time

from ingest.watching.quiet_clock import QuietClock


def test_each_clock_may_be_another_one() -> None:
    clock = QuietClock(monotonic=lambda: 5.0)
    assert clock.monotonic() == 5.0
    assert abs(clock.wall() - time.time()) < 60
