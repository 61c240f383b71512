"""Looking at a dump: when, what is new, and when a step is quiet."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ingest.layouts.detect import find_dump
from ingest.planning.inspection import Inspected
from ingest.steps.committed import Committed
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.state import StepState, StepTable
from ingest.steps.watcher import (
    MOST_AHEAD_S,
    DumpState,
    QuietClock,
    Watcher,
    file_system_of,
    file_system_time,
    watch_events,
)
from tests.stores import MadeDump, npy_bytes, tensor_name
from workers.model import StepKey
from workers.store.model import Grid
from workers.store.opening import open_objects, resolve

# Which steps the watcher takes, and when: every clock is moved by hand.


WHOLE = npy_bytes(np.arange(100, dtype="<f4"))
POLICY = StepPolicy(CompletenessPolicy(quiet_s=10, settle_s=1))


@dataclass
class Bench:
    """A watcher whose time stands still unless the test moves it, and an empty store."""

    made: MadeDump
    now: float = 0.0
    policy: StepPolicy = POLICY
    committed: dict[StepKey, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.made.root / "rank_0").mkdir(exist_ok=True)
        # By the clock of the file system everything was written just now.
        clock = QuietClock(monotonic=lambda: self.now, files=lambda _: 0.0)
        self.table = StepTable()
        self.stored = Committed(open_objects(resolve(f"{self.made.root}.zarr")), self.table)
        self.watcher = Watcher(find_dump(self.made.root), Grid(), self.table, clock)

    def scan(self) -> DumpState:
        return self.watcher.scan(self.stored, self.policy)

    def complete(self, limit: int = 100) -> list[StepState]:
        """Return up to `limit` complete steps of the last look."""
        states: list[StepState] = []
        while len(states) < limit and (state := self.watcher.next_complete(self.policy, self.now)):
            states.append(state)
        return states

    def take(self, *, after: float = 0.0) -> dict[StepKey, Inspected]:
        """Look `after` seconds of silence, and commit what is complete."""
        self.now += after
        self.scan()
        taken = {}
        for state in self.complete():
            assert state.inspected is not None
            taken[state.key] = state.inspected
            state.committed = self.committed[state.key] = state.fingerprint
        return taken

    def reason(self, key: StepKey) -> str:
        """Return why a step is not complete."""
        wait = self.table.ensure(key).waiting
        assert wait is not None
        return wait.reason

    def steps(self, *, after: float = 0.0) -> list[int | None]:
        return [key.step for key in self.take(after=after)]


@pytest.fixture
def bench(made: MadeDump) -> Bench:
    return Bench(made)


def test_step_settles_once_a_later_one_has_begun(bench: Bench) -> None:
    bench.made.add(WHOLE, step=0)
    assert bench.steps() == []
    bench.made.add(WHOLE, step=1)
    assert bench.steps(after=0.5) == []
    assert bench.steps(after=0.6) == [0]
    assert bench.steps(after=8) == []
    assert bench.steps(after=2) == [1]
    assert bench.steps(after=100) == []


def test_graphs_that_take_turns_keep_a_step_open(bench: Bench) -> None:
    """Iterations do not finish in order: a directory may be written to after a later one has begun."""
    bench.made.add(WHOLE, step=2, graph="0")
    bench.made.add(WHOLE, step=3, graph="1")
    assert bench.steps() == []
    bench.made.add(WHOLE, step=2, graph="0")
    assert bench.steps(after=0.9) == []
    assert bench.steps(after=5) == []
    bench.made.directory(step=3, graph="0")
    assert bench.steps() == []
    bench.made.add(WHOLE, step=3, graph="0")
    assert bench.steps() == [2]


def test_last_step_is_taken_after_silence(bench: Bench) -> None:
    """Nothing follows the last step, not even at the end of the process."""
    bench.made.add(WHOLE, step=0)
    assert bench.steps() == []
    assert bench.steps(after=9.9) == []
    assert bench.steps(after=0.2) == [0]


@pytest.mark.parametrize("tells_time", [True, False])
def test_a_clock_that_is_ahead_makes_no_step_old(made: MadeDump, *, tells_time: bool) -> None:
    """As on a host whose clock is an hour ahead of that of its file server."""
    made.add(WHOLE, step=0)
    bench = Bench(made)
    files = file_system_time if tells_time else lambda _: None
    bench.watcher.clock = QuietClock(lambda: bench.now, lambda: time.time() + 3600, files)
    assert bench.steps() == []
    assert bench.steps(after=10.1) == [0]


def test_only_the_last_steps_of_a_dump_that_tells_no_time_are_waited_for(made: MadeDump) -> None:
    """All of them at once: a large backlog costs no more than a small one."""
    for step in range(6):
        made.add(WHOLE, step=step)
    bench = Bench(made)
    bench.watcher.clock = QuietClock(lambda: bench.now, files=lambda _: None)
    dump = bench.watcher.dump
    shown = dump.scan({})
    listings = shown.listings
    old = [replace(listing, newest_change=listing.newest_change - 3600) for listing in listings[:3]]
    scan = replace(shown, listings=(*old, *listings[3:]))
    seen: Any = SimpleNamespace(root=made.root, scan=lambda *_: scan, describe=dump.describe)
    bench.watcher.dump = seen
    assert bench.steps() == [0, 1, 2]
    assert bench.steps(after=1.1) == [3, 4]
    assert bench.steps(after=9.0) == [5]


def test_file_that_stays_short_is_quarantined_after_silence(bench: Bench) -> None:
    """Its writer died: the rest of the step must not wait for ever."""
    bench.made.add(WHOLE[:200], tensor_name(slot=3), step=0)
    bench.take()
    taken = bench.take(after=10)
    (inspected,) = taken.values()
    (inspection,) = inspected.inspections.values()
    assert inspection.headers == ()
    assert "announces" in inspection.problem


def test_empty_file_that_its_writer_has_closed_does_not_wait(bench: Bench) -> None:
    """On a full disk MindSpore leaves read-only files of 0 bytes: nothing more will come."""
    bench.made.add(b"", step=0).chmod(0o400)
    bench.made.add(WHOLE, step=1)
    bench.take()
    assert bench.steps(after=1.1) == [0]


def test_name_that_stands_elsewhere_is_waited_for(bench: Bench) -> None:
    """The row of mapping.csv is written after the file it names."""
    bench.made.add(WHOLE, "123.npy", step=0)
    bench.made.add(WHOLE, step=1)
    bench.take()
    assert bench.steps(after=2) == []
    bench.made.add(f"123.npy,{tensor_name('ReLU.long')}\n".encode(), "mapping.csv", step=0)
    bench.take()
    taken = bench.take(after=1.1)
    named = taken[StepKey(0, 0)].description.named
    assert [file.name.op_name for file in named.values() if file.name] == ["long"]


@pytest.mark.parametrize(("order", "first"), [("oldest", 0), ("newest", 2)])
def test_backlog_is_taken_in_the_chosen_order(order: str, first: int, bench: Bench) -> None:
    for step in range(3):
        bench.made.add(WHOLE, step=step)
    bench.policy = replace(POLICY, order="newest" if order == "newest" else "oldest")
    bench.scan()
    bench.now += 20
    bench.scan()
    assert [state.key.step for state in bench.complete(limit=1)] == [first]


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return what makes a directory or file unreadable; as root nothing is, so the refusal is made up."""

    def refuse(path: Path) -> None:
        for function in ("open", "scandir"):
            real = getattr(os, function)

            def refusing(name: object, *args: object, real: Callable[..., object] = real) -> object:
                if str(name) == str(path):
                    raise PermissionError(13, "Permission denied")
                return real(name, *args)

            monkeypatch.setattr(os, function, refusing)

    return refuse


@pytest.mark.parametrize("what", ["file", "directory", "rank"])
def test_step_of_another_user_is_denied_as_a_whole(
    what: str, bench: Bench, deny: Callable[[Path], None]
) -> None:
    """Half a step would look like a whole one; and it must be said, not waited for."""
    path = bench.made.add(WHOLE, step=0)
    bench.made.add(WHOLE, step=0)
    deny({"file": path, "directory": path.parent, "rank": bench.made.root / "rank_0"}[what])
    bench.take()
    assert bench.steps(after=20) == []
    key = StepKey(0, None if what == "rank" else 0)
    (problem,) = bench.table.ensure(key).denied
    assert problem.denied
    assert "setfacl" in problem.hint
    assert problem in bench.scan().problems


@pytest.mark.parametrize(("order", "first"), [("oldest", 0), ("newest", 2)])
def test_first_look_lists_a_beginning_and_the_next_one_the_rest(order: Any, first: int, bench: Bench) -> None:
    """The rest was there all the time: it does not have to be quiet for longer than the beginning."""
    for step in range(3):
        bench.made.add(WHOLE, step=step)
    bench.policy = replace(POLICY, order=order)
    bench.watcher.clock = QuietClock(monotonic=lambda: bench.now, files=lambda _: time.time() + 3600)
    view = bench.watcher.scan(bench.stored, bench.policy, first_files=1)
    rest = frozenset(StepKey(0, step) for step in range(3) if step != first)
    assert list(view.present) == [StepKey(0, first)]
    assert view.postponed == view.unlisted == rest
    assert [state.key.step for state in bench.complete()] == [first]
    view = bench.scan()
    assert view.there == rest | {StepKey(0, first)}
    assert not view.postponed
    assert {state.key for state in bench.complete()} == rest | {StepKey(0, first)}


# File events: they wake, and do no harm where there are none.


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


# The clocks by which a step has been quiet.


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
