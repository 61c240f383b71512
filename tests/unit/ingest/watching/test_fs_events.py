"""File events: they wake, and do no harm where there are none."""

import threading
from pathlib import Path

import pytest

from ingest.steps.watcher import file_system_of, watch_events

pytestmark = pytest.mark.timeout(30)


def test_a_file_that_is_written_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.steps.watcher._AFTER_S", 0.0)
    woken, hears_all = threading.Event(), threading.Event()
    with watch_events(tmp_path, woken.set, hears_all):
        for number in range(200):  # until the watch is set up
            (tmp_path / f"{number}").write_bytes(b"x")
            if woken.wait(0.1):
                break
    assert woken.is_set()
    assert not hears_all.is_set()  # any more


def test_it_ends_at_once_while_it_still_waits_to_begin(tmp_path: Path) -> None:
    before = threading.active_count()
    with watch_events(tmp_path, lambda: None, threading.Event()):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


_MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:30 / /data rw shared:2 - nfs4 server:/export rw
23 22 0:31 / /data/with\040space rw - tmpfs tmpfs rw
a line of another form
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/dump", "ext4"), ("/data/dump", "nfs4"), ("/data/with space/dump", "tmpfs"), ("/database", "ext4")],
)
def test_the_file_system_of_a_path_is_that_of_the_mount_above_it(path: str, expected: str) -> None:
    assert file_system_of(Path(path), _MOUNTS) == expected
    assert not file_system_of(Path(path), "")
