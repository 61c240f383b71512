"""Carries a plan out: looks at each step again before it touches it, and makes it invisible before it goes.

Killed at any moment, the store holds whole steps and remains that no commit points to. See
docs/design/008-retention.md for why that needs no lock.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from ingest.store_gc.inventory import Extent, committed_at, generations_in, is_of_tensors, is_temporary
from ingest.store_gc.plan import GcAction, GcPlan
from ingest.store_gc.policy import duration
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store import commit, removed
from workers.store.commit import CHANGED, REMOVED, Commit
from workers.store.objects import ObjectStore, StoredObject
from workers.store.record import LEAF, WithoutTensors
from workers.store.removed import Tombstone

#: Steps that are worked on at once.
THREADS = 8
#: By how much the clocks of this host and of the store may differ.
_SKEW_S = 600.0


@dataclass(frozen=True, slots=True)
class GcDone:
    """What became of one thing in a plan."""

    action: GcAction
    objects: int = 0
    nbytes: int = 0
    left: str = ""
    """Why it was left alone; "" where it went, or was gone already."""


@dataclass(slots=True)
class GcReport:
    """What carrying out a plan came to."""

    done: list[GcDone] = field(default_factory=list)
    stopped: bool = False
    """Whether it was told to stop before its end."""
    broken: list[StepKey] = field(default_factory=list)
    """Steps that were committed from remains while these were removed: ingest them again."""

    @property
    def objects(self) -> int:
        """How many objects were removed."""
        return sum(one.objects for one in self.done)

    @property
    def nbytes(self) -> int:
        """How many bytes were removed."""
        return sum(one.nbytes for one in self.done)

    @property
    def left(self) -> list[GcDone]:
        """What was left alone."""
        return [one for one in self.done if one.left]


Observer: TypeAlias = Callable[[GcDone], None]


@dataclass(slots=True, eq=False)
class Execution:
    """Carries one plan out. Memory: what the listings of `threads` steps take."""

    objects: ObjectStore
    plan: GcPlan
    clock: Callable[[], float] = time.time
    observe: Observer = lambda _: None
    threads: int = THREADS
    _with_tombstones: set[int] = field(default_factory=set)
    """Ranks that have a group for them."""

    def run(self, stop: threading.Event | None = None) -> GcReport:
        """Carry it out, until `stop` is set. Safe to run again, and at the same time as another one.

        Raises:
            UsageError: the plan is for another store, or the clocks of host and store differ.
            StoreError: the store refused; what was done so far is done.
        """
        if self.plan.store != self.objects.address.url:
            raise UsageError(
                f"the plan is for {self.plan.store}, not for {self.objects.address.url}",
                hint="Make one for this store.",
            )
        report = GcReport()
        if not self.plan.actions:
            return report
        self._compare_clocks()
        stop = stop or threading.Event()
        with ThreadPoolExecutor(self.threads, thread_name_prefix="dump-ingest-gc") as threads:
            try:
                for done in threads.map(
                    lambda one: [] if stop.is_set() else list(self._each(one)), self._by_step()
                ):
                    report.done += done
                    for one in done:
                        self.observe(one)
            except BaseException:
                stop.set()
                raise
        report.stopped = stop.is_set()
        report.broken = self._broken(report.done)
        return report

    def _by_step(self) -> list[list[GcAction]]:
        """Return the actions, those on one step together: they are done one after the other."""
        together: dict[StepKey | str, list[GcAction]] = {}
        for one in self.plan.actions:
            together.setdefault(one.key or one.path, []).append(one)
        return list(together.values())

    def _each(self, actions: Iterable[GcAction]) -> Iterator[GcDone]:
        do = {
            "step": self._remove_step,
            "tensors": self._remove_tensors,
            "remains": self._remove_remains,
            "temporary": self._remove_temporary,
        }
        for one in actions:
            try:
                yield do[one.what](one)
            except DamagedStore as exc:
                yield GcDone(one, left=exc.message)

    def _remove_step(self, one: GcAction) -> GcDone:
        key = _key(one)
        listed = self.objects.listed(key.path)
        found = commit.read(self.objects, key)
        if found is None:
            return GcDone(one)  # somebody else was quicker
        if reason := self._stands(one, found, listed):
            return GcDone(one, left=reason)
        at = committed_at(found)
        tombstone = Tombstone(key.rank, key.step or 0, found.fingerprint, round(at.timestamp() * 1000))
        if key.rank not in self._with_tombstones:
            removed.ensure_group(self.objects, key.rank)
            self._with_tombstones.add(key.rank)
        removed.write(self.objects, tombstone, removed_at=_iso(self.clock()), why=one.why)
        announcement = f"{CHANGED}/{key.rank}.{key.step}.{REMOVED}"
        self.objects.put(announcement, b"")
        # The last look: it is as close to the deletion as it can be.
        found = commit.read(self.objects, key)
        if found is None:
            return GcDone(one)
        if reason := self._stands(one, found, listed):
            self.objects.delete(announcement)
            return GcDone(one, left=reason)
        self.objects.delete(f"{key.path}/{LEAF}")
        doomed = [name for names in generations_in(listed).values() for name in names]
        doomed += [name for name in listed if "/" not in name and is_temporary(name)]
        return self._delete(one, listed, doomed, also=(LEAF,))

    def _remove_tensors(self, one: GcAction) -> GcDone:
        key = _key(one)
        listed = self.objects.listed(key.path)
        found = commit.read(self.objects, key)
        if found is None:
            return GcDone(one)
        if reason := self._stands(one, found, listed):
            return GcDone(one, left=reason)
        doomed = [name for name in generations_in(listed).get(one.generation, []) if is_of_tensors(name)]
        if found.without_tensors is None:
            commit.drop_tensors(self.objects, found, WithoutTensors(_iso(self.clock()), "gc", one.why))
            # A power cut must not bring back, or spoil, the commit of what is deleted next.
            self.objects.flush(f"{key.path}/{LEAF}")
        elif reason := self._too_young({name: listed[name] for name in doomed}):
            return GcDone(one, left=reason)
        return self._delete(one, listed, doomed)

    def _remove_remains(self, one: GcAction) -> GcDone:
        key = _key(one)
        if not one.generation:
            self.objects.prune(key.path)
            return GcDone(one)
        found = commit.read(self.objects, key)
        if found is not None and found.fingerprint == one.generation:
            return GcDone(one, left="it was committed meanwhile")
        listed = self.objects.listed(key.path)
        doomed = generations_in(listed).get(one.generation, [])
        recent = {name: listed[name] for name in (*doomed, LEAF) if name in listed}
        if reason := self._too_young(recent):
            return GcDone(one, left=reason)
        return self._delete(one, listed, doomed)

    def _remove_temporary(self, one: GcAction) -> GcDone:
        listed = self.objects.listed(one.path)
        if "" not in listed:
            return GcDone(one)
        if reason := self._too_young(listed):
            return GcDone(one, left=reason)
        self.objects.delete(one.path)
        return GcDone(one, 1, listed[""].nbytes)

    def _stands(self, one: GcAction, found: Commit, listed: Mapping[str, StoredObject]) -> str:
        """Return why a step is not to be touched; "" if it may be."""
        if LEAF not in listed:
            return "it was committed meanwhile, or lies behind a symbolic link"
        if found.fingerprint != one.generation:
            return "it was committed again since the plan was made"
        for name, keys in generations_in(listed).items():
            if name != one.generation and (reason := self._too_young({key: listed[key] for key in keys})):
                return f"another generation is there: {reason}"
        return ""

    def _too_young(self, listed: Mapping[str, StoredObject]) -> str:
        extent = Extent.of(listed.values())
        if extent.objects and self.clock() - extent.newest <= self.plan.policy.grace_s:
            return f"something was written there within {duration(self.plan.policy.grace_s)}"
        return ""

    def _delete(
        self,
        one: GcAction,
        listed: Mapping[str, StoredObject],
        names: list[str],
        *,
        also: tuple[str, ...] = (),
    ) -> GcDone:
        """Delete what was listed, and nothing that came since."""
        key = _key(one)
        self.objects.delete_many([f"{key.path}/{name}" for name in names])
        self.objects.prune(key.path)
        gone = Extent.of(listed[name] for name in (*names, *also) if name in listed)
        return GcDone(one, gone.objects, gone.nbytes)

    def _broken(self, done: Iterable[GcDone]) -> list[StepKey]:
        """Return the steps that were committed from what was removed; see the windows in the design."""
        remains = {
            _key(one.action): one.action.generation
            for one in done
            if one.action.what == "remains" and one.objects
        }
        commits, _ = commit.read_many(self.objects, list(remains))
        return [key for key, found in commits.items() if found.fingerprint == remains[key]]

    def _compare_clocks(self) -> None:
        """Refuse if the clock of this host is far from that of the store, whose times decide what is old."""
        probe = f".gc.{uuid.uuid4().hex}.tmp"
        self.objects.put(probe, b"")
        written = self.objects.listed(probe).get("")
        skew_s = 0.0 if written is None else self.clock() - written.modified_at
        self.objects.delete(probe)
        if abs(skew_s) > _SKEW_S:
            which = "ahead of" if skew_s > 0 else "behind"
            raise UsageError(
                f"the clock of this host is {abs(skew_s):.0f} s {which} that of the store",
                hint="Set the clock: what is new could not be told from what is old. Nothing was removed.",
            )


def _key(one: GcAction) -> StepKey:
    if one.rank is None:
        raise UsageError(f"{one.what}: names no rank")
    return StepKey(one.rank, one.step)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
