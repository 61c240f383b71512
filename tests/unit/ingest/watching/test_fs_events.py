"""File events: they wake, and do no harm where there are none."""

import threading
from pathlib import Path

import pytest

from ingest.watching.fs_events import watch_events

pytestmark = pytest.mark.timeout(30)


def test_a_file_that_is_written_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.watching.fs_events._AFTER_S", 0.0)
    woken = threading.Event()
    with watch_events(tmp_path, woken.set):
        for number in range(200):  # until the watch is set up
            (tmp_path / f"{number}").write_bytes(b"x")
            if woken.wait(0.1):
                break
    assert woken.is_set()


def test_it_ends_at_once_while_it_still_waits_to_begin(tmp_path: Path) -> None:
    before = threading.active_count()
    with watch_events(tmp_path, lambda: None):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
