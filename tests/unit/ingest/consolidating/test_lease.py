"""One process at a time may write, and whoever is refused hears who does."""

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from ingest.consolidating.consolidator import Consolidator
from ingest.consolidating.lease import LEASE_S, Lease, LeaseHeld
from ingest.reader.cubes.conditions import open_cubes
from tests.cube_stores import once, put
from workers.store.objects import ObjectStore


def test_a_second_consolidator_is_refused_and_says_who_the_first_is(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    with Consolidator(objects), pytest.raises(LeaseHeld, match="is being written by process"):
        once(objects)
    assert once(objects).appended == (1,)


@dataclass
class Clock:
    """A monotonic clock that moves when somebody sleeps, and a wall clock that says what it likes."""

    now: float = 1000.0
    wall: float = 1_800_000_000.0
    slept: Callable[[], None] = lambda: None

    def lease(self, objects: ObjectStore, owner: str = "") -> Lease:
        lease = Lease(
            objects,
            "consolidated/lease",
            "the view",
            clock=lambda: self.now,
            wall_clock=lambda: self.wall,
            sleep=self.sleep,
        )
        if owner:
            lease.owner = owner
        return lease

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds
        self.slept()


def test_a_lease_of_a_dead_process_ends(objects: ObjectStore) -> None:
    """By what is seen of it: for a minute, nobody renews it."""
    clock = Clock()
    clock.lease(objects, "another-host:1:dead").acquire()
    clock.wall += 3600
    mine = clock.lease(objects)
    mine.acquire()
    assert LEASE_S <= clock.now - 1000 < LEASE_S + 10
    mine.keep()


@pytest.mark.parametrize("jump_s", [-86_400.0, -600.0, 600.0, 86_400.0])
def test_a_lease_that_is_renewed_holds_whatever_the_clocks_say(objects: ObjectStore, jump_s: float) -> None:
    clock = Clock()
    alive = clock.lease(objects, "another-host:1:alive")
    alive.acquire()
    mine = clock.lease(objects)
    mine.wall_clock = lambda: clock.wall + jump_s
    clock.slept = lambda: alive.keep() if alive.is_due else None
    with pytest.raises(LeaseHeld, match="process 1 on another-host"):
        mine.acquire()
    alive.keep()


def test_a_lease_of_a_process_of_this_host_ends_with_it(objects: ObjectStore) -> None:
    """Whoever is started again after a crash need not wait a minute."""
    put(objects, 0, 1)
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    before = Lease(objects, "consolidated/lease", "the view")
    before.owner = f"{socket.gethostname()}:{ended.pid}:before"
    before._write()
    assert once(objects).appended == (1,)
    before.owner = f"another-host:{ended.pid}:before"
    before._write()
    with pytest.raises(LeaseHeld, match="on another-host"):
        once(objects)


def test_who_lost_the_lease_writes_nothing_more(objects: ObjectStore) -> None:
    """A process that was stopped for a minute goes on when another one has taken its place."""
    put(objects, 0, 1)
    clock = Clock()
    stopped = Consolidator(objects)
    stopped._lease = clock.lease(objects, "another-host:1:stopped")
    stopped._lease.acquire()
    clock.wall += LEASE_S + 2
    clock.lease(objects).acquire()
    with pytest.raises(LeaseHeld):
        stopped.once()
    assert open_cubes(objects) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"owner": "host:12:x"}',
        b'{"owner": "host", "renewed_at": 1e99}',
        b'{"owner": "host:pid:x", "renewed_at": 1.0}',
        b'{"owner": "host:99999999999999999999:x", "renewed_at": 1.0}',
        b'{"owner": "host:12:x", "renewed_at": "now"}',
    ],
)
def test_what_is_not_a_lease_protects_nobody(objects: ObjectStore, data: bytes) -> None:
    objects.put("consolidated/lease", data)
    lease = Lease(objects, "consolidated/lease", "the view", clock=lambda: 1.0)
    lease.acquire()
    lease.keep()
    lease.release()
    assert objects.get("consolidated/lease") is None
