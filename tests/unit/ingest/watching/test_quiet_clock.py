"""The clocks by which a step has been quiet."""

import os
import time
from pathlib import Path

import pytest

from ingest.steps.watcher import MOST_AHEAD_S, QuietClock, file_system_time

NOW = 1_800_000_000.0


def test_each_clock_may_be_another_one(tmp_path: Path) -> None:
    clock = QuietClock(monotonic=lambda: 5.0)
    assert clock.monotonic() == 5.0
    assert abs(clock.wall() - time.time()) < 60
    assert abs(clock.reached(tmp_path, 0.0) - time.time()) < 60


def test_a_file_system_tells_its_time_and_nothing_in_it_changes(tmp_path: Path) -> None:
    before = tmp_path.stat()
    time.sleep(0.02)
    told = file_system_time(tmp_path)
    (tmp_path / "file").touch()
    assert told is not None
    assert before.st_mtime < told <= (tmp_path / "file").stat().st_mtime
    (tmp_path / "file").unlink()
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    file_system_time(tmp_path)
    assert tmp_path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("wall", "newest_change", "reached"),
    [
        (NOW, NOW - 5, NOW - 5),
        (NOW + 3600, NOW - 5, NOW - 5),  # the host is ahead
        (NOW - 3600, NOW - 5, NOW - 3600),  # the host is behind
        (NOW, NOW + 600, NOW),  # files from the future
        (NOW, NOW - 10 * MOST_AHEAD_S, NOW - MOST_AHEAD_S),  # a dump of last week
    ],
)
def test_a_clock_that_is_not_told_has_reached_the_newest_time_that_it_gave(
    tmp_path: Path, wall: float, newest_change: float, reached: float
) -> None:
    clock = QuietClock(wall=lambda: wall, files=lambda _: None)
    assert clock.reached(tmp_path, newest_change) == reached
