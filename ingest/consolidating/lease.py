"""A lease on something in the store that only one process may write.

An object says who holds it and when that was last renewed. Object stores offer no common way to write only
if nobody else has, so a lease is taken in two steps: write, wait longer than a write takes, read back; the
last one to write has it. A process that was stopped for longer than the lease lasts finds, when it goes on,
that it is held by another one, before it writes the next thing.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.errors import StoreError
from workers.store.objects import ObjectStore

#: How long a lease holds that is not renewed. Clocks of hosts may differ by some of it.
LEASE_S = 60.0
_READ_BACK_S = 1.0
#: All owners that this process ever was.
_OF_THIS_PROCESS: set[str] = set()


class LeaseHeld(StoreError):
    """Somebody else has the lease."""


@dataclass(slots=True)
class Lease:
    """The right to write something, held by one process at a time."""

    objects: ObjectStore
    key: str
    what: str
    """What it is about, for messages."""
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    owner: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}")
    _renewed_at: float = -1e18

    def acquire(self) -> None:
        """Take the lease, of nobody or of a process that has ended.

        Raises:
            LeaseHeld: somebody else has it.
            StoreError: the store refused.
        """
        _OF_THIS_PROCESS.add(self.owner)
        self._refuse_other()
        self._write()
        if not self.objects.is_local:
            self.sleep(_READ_BACK_S)
        self._refuse_other()

    def keep(self) -> None:
        """See that it is still held, and renew it in time. Call it before each thing that is written.

        Raises:
            LeaseHeld: it was lost.
        """
        if self._refuse_other() != self.owner:
            # Whoever had it meanwhile may have ended: what they wrote is there nevertheless.
            raise LeaseHeld(f"{self.what} was given to another process, or removed", hint="Try again.")
        if self._is_due:
            self._write()

    def keep_in_time(self) -> None:
        """Do what `keep` does, if it is time to renew the lease. Call it while something goes on for long.

        Raises:
            LeaseHeld: it was lost.
        """
        if self._is_due:
            self.keep()

    @property
    def _is_due(self) -> bool:
        return self.clock() - self._renewed_at > LEASE_S / 4

    def release(self) -> None:
        """Let go of it, where it is still held."""
        found = self._read()
        if found is not None and found[0] == self.owner:
            self.objects.delete(self.key)

    def _refuse_other(self) -> str | None:
        """Return who has it, or had it last; None where nobody does."""
        found = self._read()
        if found is None:
            return None
        owner, renewed_at = found
        age_s = self.clock() - renewed_at
        if owner == self.owner or abs(age_s) > LEASE_S or _has_ended(owner):
            return owner
        host, pid, _ = owner.split(":", 2)
        raise LeaseHeld(
            f"{self.what} is being written by process {pid} on {host} (seen {max(age_s, 0):.0f} s ago)",
            hint=f"One is enough. If that one is dead, its lease ends within {LEASE_S:.0f} s.",
        )

    def _read(self) -> tuple[str, float] | None:
        data = self.objects.get(self.key)
        try:
            record = json.loads(data) if data is not None else None
            if record is None:
                return None
            host, pid, name = str(record["owner"]).split(":", 2)
            return f"{host}:{int(pid)}:{name}", float(record["renewed_at"])
        except (ValueError, KeyError, TypeError):
            return None  # half written, or by somebody else: it protects nobody

    def _write(self) -> None:
        now = self.clock()
        self.objects.put(self.key, json.dumps({"owner": self.owner, "renewed_at": now}).encode())
        self._renewed_at = now


def _has_ended(owner: str) -> bool:
    """Whether a process is known to have ended: it was of this host, and is there no more."""
    host, pid, _ = owner.split(":", 2)
    if host != socket.gethostname():
        return False
    if int(pid) == os.getpid():
        # In a container, whoever is started again has the number that the one before had.
        return owner not in _OF_THIS_PROCESS
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
