"""A lease on something in the store that only one process may write.

An object says who holds the lease and when it was last renewed. Object stores offer no common way to write an
object only if nobody else has written it, so a process takes a lease like this: it writes the lease, waits
longer than a write takes, and reads it back. The process that wrote last has the lease. A process that was
stopped for longer than the lease lasts notices that another process holds it before it writes anything more.

Clocks of hosts differ, and jump. So a process regards a lease as given up only if it has seen the lease
unchanged for as long as it lasts, by a monotonic clock. The time in the lease only shortens the wait: if it
says that the holder was alive just now, that is believed.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import DecodeError, Meta, Struct
from msgspec import json as typed_json

from workers.errors import StoreError
from workers.store.consolidated.cubes import GROUP
from workers.store.objects import ObjectStore

#: How long a lease holds that is not renewed, in seconds, and how often somebody who waits for that looks.
LEASE_S = 60.0
_LOOK_S = 2.0
#: The lease of the process that writes the consolidated view.
VIEW_LEASE = f"{GROUP}/lease"
_READ_BACK_S = 1.0
#: All owners that this process ever was.
_OF_THIS_PROCESS: set[str] = set()


class LeaseHeld(StoreError):
    """Another process holds the lease."""


class LeaseRecord(Struct, frozen=True):
    """What the object in the store says, as JSON."""

    owner: Annotated[str, Meta(pattern=r"\A[^:]*:[0-9]{1,9}:")]
    """Host, process and a unique name, separated by colons."""
    renewed_at: float
    """Seconds since the epoch, by the clock of the owner: a sign of life, which may be wrong."""

    @property
    def host(self) -> str:
        """The host of the owner."""
        return self.owner.split(":", 2)[0]

    @property
    def pid(self) -> int:
        """The process id of the owner."""
        return int(self.owner.split(":", 2)[1])

    @property
    def has_ended(self) -> bool:
        """Whether the owner is known to have ended: it ran on this host, and has gone."""
        if self.host != socket.gethostname():
            return False
        if self.pid == os.getpid():
            # In a container, a process that is started again gets the process id of the one before.
            return self.owner not in _OF_THIS_PROCESS
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


def read_lease(objects: ObjectStore, key: str) -> LeaseRecord | None:
    """Return what a lease says; None if nobody holds it."""
    with suppress(DecodeError, RecursionError, UnicodeDecodeError):
        return typed_json.decode(objects.get(key) or b"", type=LeaseRecord)
    return None  # half written, or not written by this program: it protects nobody


@dataclass(slots=True)
class Lease:
    """The right to write something, held by one process at a time."""

    objects: ObjectStore
    key: str
    what: str
    """What may be written, for messages."""
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    owner: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}")
    _renewed_at: float = -1e18

    def acquire(self) -> None:
        """Take the lease if it is free, or if the process that held it has ended.

        Waits for up to a minute if it may have ended without a trace: on another host, or by a wrong clock.

        Raises:
            LeaseHeld: another process holds it.
            StoreError: the store refused.
        """
        _OF_THIS_PROCESS.add(self.owner)
        self._wait_for_silence()
        self._write()
        if not self.objects.is_local:
            self.sleep(_READ_BACK_S)
        self._refuse_other()

    def keep(self) -> None:
        """Check that the lease is still held, and renew it in time. Call it before each write.

        Raises:
            LeaseHeld: it was lost.
        """
        if self._refuse_other() != self.owner:
            # Whoever held it meanwhile may have ended, but what they wrote is still there.
            raise LeaseHeld(
                f"{self.what}: this process lost its lease: another process took it, or it was removed",
                hint="Run the command again; it goes on from what is stored.",
            )
        if self.is_due:
            self._write()

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew the lease; to be asked during long work."""
        return self.clock() - self._renewed_at > LEASE_S / 4

    def release(self) -> None:
        """Give the lease up, if it is still held."""
        record = read_lease(self.objects, self.key)
        if record is not None and record.owner == self.owner:
            self.objects.delete(self.key)

    def _wait_for_silence(self) -> None:
        """Return when nobody holds the lease, as far as that can be seen.

        Raises:
            LeaseHeld: somebody does.
        """
        first, since = read_lease(self.objects, self.key), self.clock()
        record = first
        while record is not None and record.owner != self.owner and not record.has_ended:
            if record != first or 0 <= self.wall_clock() - record.renewed_at <= LEASE_S:
                raise self._held_by(record)
            if self.clock() - since >= LEASE_S:
                return
            self.sleep(_LOOK_S)
            record = read_lease(self.objects, self.key)

    def _held_by(self, record: LeaseRecord) -> LeaseHeld:
        return LeaseHeld(
            f"{self.what} is being written by process {record.pid} on {record.host}",
            hint="One process is enough: leave it running, or stop it first. If it is dead, its lease ends "
            f"within {LEASE_S:.0f} s.",
        )

    def _refuse_other(self) -> str | None:
        """Return who holds the lease, or held it last; None if nobody does.

        Raises:
            LeaseHeld: another process holds it.
        """
        record = read_lease(self.objects, self.key)
        if record is None:
            return None
        if record.owner == self.owner or record.has_ended:
            return record.owner
        raise self._held_by(record)

    def _write(self) -> None:
        self.objects.put(self.key, typed_json.encode(LeaseRecord(self.owner, self.wall_clock())))
        self._renewed_at = self.clock()
