"""How gc ended last: a record in the store, for metrics and for `doctor`.

    gc/zarr.json    a group without members; its attributes say when gc last ended well, and when and why not

`gc` is a process that nobody scrapes: it runs for a minute at night. So it leaves its outcome where it works.
A run that cannot write to the store leaves no record, and is seen by its exit code alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from workers.errors import DumpIngestError, StoreError
from workers.events import Event, Observer
from workers.store import metadata
from workers.store.objects import ObjectStore

KEY = "gc/zarr.json"
#: How often the record is read.
_EVERY_S = 60.0


class GcRuns(msgspec.Struct, frozen=True):
    """When gc last ended well, and when it last failed; Unix times by the clock of its host."""

    succeeded_at: float = 0.0
    """0 for never."""
    failed_at: float = 0.0
    """0 for never."""
    reason: str = ""
    """Why it failed last."""

    @property
    def is_failing(self) -> bool:
        """Whether the last run failed."""
        return self.failed_at > self.succeeded_at


@dataclass(frozen=True, slots=True)
class GcRunsRead(Event):
    """The record was read."""

    runs: GcRuns


def read_last_runs(objects: ObjectStore) -> GcRuns | None:
    """Read how gc ended last; None if it never ran on this store, or the record is damaged.

    Raises:
        StoreError: the store refused.
    """
    data = objects.get(KEY)
    if data is None:
        return None
    try:
        return msgspec.json.decode(metadata.own_attributes(data), type=GcRuns)
    except (ValueError, RecursionError):
        return None  # it says nothing that the next run will not say again


def record_run(objects: ObjectStore, reason: str = "", *, clock: Callable[[], float] = time.time) -> None:
    """Record that gc has ended.

    Args:
        objects: the store.
        reason: why it failed; "" if it did not.
        clock: returns Unix time.

    Raises:
        StoreError: the store refused.
    """
    before = read_last_runs(objects) or GcRuns()
    now = clock()
    runs = (
        msgspec.structs.replace(before, failed_at=now, reason=reason[:1000])
        if reason
        else msgspec.structs.replace(before, succeeded_at=now)
    )
    attributes = {metadata.ATTRIBUTE: msgspec.to_builtins(runs)}
    objects.put(KEY, metadata.encode(metadata.group(attributes)))


@contextlib.contextmanager
def recorded(objects: ObjectStore) -> Iterator[None]:
    """Record how the block ends: well, or with which error."""
    try:
        yield
    except DumpIngestError as exc:
        # A store that refuses the record, too, must not hide why gc failed.
        with contextlib.suppress(StoreError):
            record_run(objects, exc.message)
        raise
    record_run(objects)


@dataclass(slots=True)
class GcWatch:
    """Reads the record of a store once a minute; an observer that each event of a consolidator wakes."""

    objects: ObjectStore
    notify: Observer
    clock: Callable[[], float] = time.monotonic
    _next_at: float = field(default=float("-inf"))

    def observe(self, _: Event) -> None:
        """Read the record if it is time to, and report it. A store that refuses is asked again later."""
        if self.clock() < self._next_at:
            return
        self._next_at = self.clock() + _EVERY_S
        with contextlib.suppress(StoreError):  # the round that follows reports it
            self.notify(GcRunsRead(read_last_runs(self.objects) or GcRuns()))
