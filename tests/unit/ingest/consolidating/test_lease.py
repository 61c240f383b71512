"""One process at a time may write, and whoever is refused hears who does."""

import socket
import subprocess

import pytest

from ingest.consolidating.consolidator import Consolidator
from ingest.consolidating.lease import Lease, LeaseHeld
from tests.cube_stores import once, put
from workers.store.objects import ObjectStore


def test_a_second_consolidator_is_refused_and_says_who_the_first_is(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    with Consolidator(objects), pytest.raises(LeaseHeld, match="is being written by process"):
        once(objects)
    assert once(objects).appended == (1,)


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
