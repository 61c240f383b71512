"""Carries out a plan: reads each step again before it is touched, and hides it before its objects go.

If the process is killed at any moment, the store holds whole steps, and remains that no commit points to.
See docs/design/008-retention.md for why that needs no lock.

`gc --recompress` encodes the tensors of old steps again, so that they take less room.

How gc ended last is a record in the store, for metrics and for `doctor`:

    gc/zarr.json    a group without members; its attributes say when gc last ended well, and when and why not

`gc` is a process that nobody scrapes: it runs for a minute at night. So it leaves its outcome where it works.
A run that cannot write to the store leaves no record, and is seen by its exit code alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from os import PathLike
from typing import Any, TypeAlias

import msgspec

from ingest.reader.catalog import Catalog, open_catalog
from ingest.store_gc.plan import (
    DAY_S,
    Extent,
    GcAction,
    GcPlan,
    GcPolicy,
    duration,
    generations_in,
    is_of_tensors,
    is_temporary,
    make_plan,
    take_inventory,
)
from workers.errors import DamagedStore, DumpIngestError, StoreDenied, StoreError, UsageError
from workers.events import Event, Observer
from workers.model import StepKey
from workers.store import commit, metadata
from workers.store.commit import (
    REMOVED,
    Commit,
    Tombstone,
    announce,
    end_of,
    ensure_tombstones,
    path_of,
    write_tombstone,
)
from workers.store.objects import ObjectStore, StoredObject
from workers.store.packed import pool
from workers.store.packed.recompressing import Recompressed, is_dense, recompress
from workers.store.record import LEAF, WithoutTensors

#: Steps that are worked on at once.
THREADS = 8


@dataclass(frozen=True, slots=True)
class GcDone(Event):
    """One action of a plan was carried out, or left alone."""

    action: GcAction
    objects: int = 0
    nbytes: int = 0
    left: str = ""
    """Why it was left alone; "" if it is gone, also if it was gone before."""


@dataclass(slots=True)
class GcReport:
    """The outcome of carrying out a plan."""

    done: list[GcDone] = field(default_factory=list)
    stopped: bool = False
    """Whether it was stopped before its end."""
    broken: list[StepKey] = field(default_factory=list)
    """Steps that somebody committed from remains while these were removed: ingest them again."""

    @property
    def objects(self) -> int:
        """How many objects were removed."""
        return sum(done.objects for done in self.done)

    @property
    def nbytes(self) -> int:
        """How many bytes were removed."""
        return sum(done.nbytes for done in self.done)

    @property
    def left(self) -> list[GcDone]:
        """The actions that were left alone."""
        return [done for done in self.done if done.left]


class _LeftAlone(Exception):
    """What was to go must stay, for the reason that this says."""


@dataclass(slots=True, eq=False)
class Execution:
    """Carries out one plan. Memory: the listings of `threads` steps."""

    objects: ObjectStore
    plan: GcPlan
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    observe: Observer = lambda _: None
    """Called with a `GcDone` for each action."""
    threads: int = THREADS
    _started: tuple[float, float] = (0.0, 0.0)
    """When the execution began: by the clock of the store, and by the monotonic clock."""
    _with_tombstones: set[int] = field(default_factory=set)
    """Ranks that already have a group for tombstones."""
    _users: dict[int | None, dict[str, str]] = field(default_factory=dict)
    """By step whose pool is cleared: who refers to it, as of just before the first array."""

    def run(self, stop: threading.Event | None = None) -> GcReport:
        """Carry out the plan, until `stop` is set. Safe to run again, and next to another one.

        Raises:
            UsageError: the plan is for another store, or the clocks of host and store differ.
            StoreError: the store refused. What was removed stays removed.
        """
        self._refuse_other_store()
        report = GcReport()
        if not self.plan.actions:
            return report
        self._compare_clocks()
        stop = stop or threading.Event()
        with ThreadPoolExecutor(self.threads, thread_name_prefix="dump-ingest-gc") as threads:
            try:
                # What is in a pool goes when the commits that refer to it are gone.
                for is_of_pool in (False, True):
                    for outcomes in threads.map(
                        lambda actions: [] if stop.is_set() else [*map(self._carry_out, actions)],
                        self._by_step(is_of_pool=is_of_pool),
                    ):
                        report.done += outcomes
                        for done in outcomes:
                            self.observe(done)
            except BaseException:
                stop.set()
                raise
        report.stopped = stop.is_set()
        report.broken = self._broken(done.action for done in report.done if done.objects)
        return report

    def _refuse_other_store(self) -> None:
        if self.plan.store != self.objects.address.url:
            raise UsageError(
                f"the plan was made for {self.plan.store}, not for {self.objects.address.url}",
                hint="Name the store of the plan, or make a plan for this store.",
            )

    def _by_step(self, *, is_of_pool: bool) -> list[list[GcAction]]:
        """Return the actions grouped by step: those on one step are carried out one after the other."""
        by_step: dict[object, list[GcAction]] = {}
        for action in self.plan.actions:
            if (action.what == "pool") == is_of_pool:
                beside = pool.step_of(action.path) if is_of_pool else (action.path, action.upload)
                by_step.setdefault(action.key or beside, []).append(action)
        return list(by_step.values())

    def _carry_out(self, action: GcAction) -> GcDone:
        of_step = {
            "step": self._remove_step,
            "tensors": self._remove_tensors,
            "remains": self._remove_remains,
        }
        beside = {
            "pool": self._remove_pooled,
            "temporary": self._remove_temporary,
            "upload": self._abort_upload,
            "announcement": self._end_change,
        }
        try:
            gone = of_step[action.what](action, action.key) if action.key else beside[action.what](action)
        except _LeftAlone as exc:
            return GcDone(action, left=str(exc))
        except DamagedStore as exc:
            return GcDone(action, left=exc.message)
        return GcDone(action, gone.objects, gone.nbytes)

    def _remove_step(self, action: GcAction, key: StepKey) -> Extent:
        listed = self.objects.listed(key.path)
        committed = self._committed(action, key, listed)
        if committed is None:
            return Extent()  # somebody else was quicker
        # So that nobody takes it out of its dump again.
        if key.rank not in self._with_tombstones:
            ensure_tombstones(self.objects, key.rank)
            self._with_tombstones.add(key.rank)
        committed_ms = round(committed.record.committed_at_s * 1000)
        tombstone = Tombstone(key.rank, key.step or 0, committed.fingerprint, committed_ms)
        write_tombstone(self.objects, tombstone, removed_at=_iso(self._now()), why=action.why)
        announce(self.objects, key, REMOVED)
        try:
            # The last look, as close to the deletion as possible.
            if self._committed(action, key, listed) is None:
                return Extent()
        except _LeftAlone:
            self.objects.delete(path_of(key, REMOVED))
            raise
        self.objects.delete(f"{key.path}/{LEAF}")
        doomed = [*itertools.chain.from_iterable(generations_in(listed).values())]
        doomed += [name for name in listed if "/" not in name and is_temporary(name)]
        return self._delete(key, listed, doomed) + Extent.of([listed[LEAF]])

    def _remove_tensors(self, action: GcAction, key: StepKey) -> Extent:
        listed = self.objects.listed(key.path)
        committed = self._committed(action, key, listed)
        if committed is None:
            return Extent()
        doomed = [name for name in generations_in(listed).get(action.generation, []) if is_of_tensors(name)]
        if committed.without_tensors is None:
            commit.drop_tensors(self.objects, committed, WithoutTensors(_iso(self._now()), "gc", action.why))
            # A power cut must neither bring back nor spoil the commit whose payloads are deleted next.
            self.objects.flush(f"{key.path}/{LEAF}")
        else:
            self._refuse_young(listed[name] for name in doomed)
        return self._delete(key, listed, doomed)

    def _remove_remains(self, action: GcAction, key: StepKey) -> Extent:
        committed = commit.read(self.objects, key) if action.generation else None
        if committed is not None and committed.fingerprint == action.generation:
            raise _LeftAlone("it was committed meanwhile")
        listed = self.objects.listed(key.path) if action.generation else {}
        doomed = generations_in(listed).get(action.generation, [])
        self._refuse_young(listed[name] for name in (*doomed, LEAF) if name in listed)
        return self._delete(key, listed, doomed)

    def _remove_pooled(self, action: GcAction) -> Extent:
        step = pool.step_of(action.path)
        if step not in self._users:
            self._users[step] = self._read_users(step)
        if reason := self._users[step].get(action.path) or self._users[step].get(""):
            raise _LeftAlone(reason)
        # After the commits were read: whoever finds an old array writes it again, before committing.
        listed = self.objects.listed(action.path)
        self._refuse_young(listed.values(), max(self.plan.policy.grace_s, pool.GRACE_S))
        # First, what says that the array is whole.
        for name in sorted(listed, key=lambda name: name != pool.NODE):
            self.objects.delete(f"{action.path}/{name}")
        self.objects.prune(action.path.rpartition("/")[0])
        return Extent.of(listed.values())

    def _read_users(self, step: int | None) -> dict[str, str]:
        keys = [StepKey(rank, step) for rank in commit.list_ranks(self.objects)]
        commits, damaged = commit.read_many(self.objects, keys)
        users = {
            path: f"{key} refers to it" for key, current in commits.items() for path in current.record.pool
        }
        for key in damaged:
            users[""] = f"the commit of {key} is damaged and may refer to it"
        return users

    def _remove_temporary(self, action: GcAction) -> Extent:
        listed = self.objects.listed(action.path)
        if "" not in listed:
            return Extent()
        self._refuse_young(listed.values())
        self.objects.delete(action.path)
        return Extent.of([listed[""]])

    def _abort_upload(self, action: GcAction) -> Extent:
        grace_s = self.plan.policy.grace_s
        for upload in self.objects.unfinished_uploads(action.path.rpartition("/")[0]):
            if (upload.key, upload.upload_id) == (action.path, action.upload):
                if self.clock() - upload.written_at <= grace_s:
                    raise _LeftAlone(f"a part was written within {duration(grace_s)}")
                try:
                    self.objects.abort_upload(upload)
                except StoreDenied as exc:
                    raise _LeftAlone(f"{exc.message}; it takes s3:AbortMultipartUpload") from exc
                return Extent(0, upload.nbytes)
        return Extent()  # completed, or ended by somebody else

    def _end_change(self, action: GcAction) -> Extent:
        """Announce the end of a change: the consolidator reads the commit, and deletes both announcements.

        A writer that was not killed, and goes on after the grace period, announces the end once more.
        """
        listed = self.objects.listed(action.path)
        self._refuse_young(listed.values())
        if "" in listed:  # it has not ended
            self.objects.put(end_of(action.path), b"")
        return Extent()

    def _committed(self, action: GcAction, key: StepKey, listed: Mapping[str, StoredObject]) -> Commit | None:
        """Return the commit of a step as it is now; None if it is gone.

        Raises:
            _LeftAlone: the step must not be touched.
            DamagedStore: its commit is damaged.
        """
        committed = commit.read(self.objects, key)
        if committed is None:
            return None
        if LEAF not in listed:
            raise _LeftAlone("it was committed meanwhile, or is behind a symbolic link")
        if committed.fingerprint != action.generation:
            raise _LeftAlone("it was committed again since the plan was made")
        others = generations_in(listed)
        others.pop(action.generation, None)
        try:
            self._refuse_young(listed[name] for members in others.values() for name in members)
        except _LeftAlone as exc:
            raise _LeftAlone(f"it has another generation, and {exc}") from exc
        return committed

    def _refuse_young(self, stored: Iterable[StoredObject], grace_s: float | None = None) -> None:
        extent = Extent.of(stored)
        grace_s = self.plan.policy.grace_s if grace_s is None else grace_s
        if extent.objects and self._now() - extent.newest_at <= grace_s:
            raise _LeftAlone(f"something was written there within {duration(grace_s)}")

    def _delete(self, key: StepKey, listed: Mapping[str, StoredObject], names: list[str]) -> Extent:
        """Delete objects that were listed, and none that came since."""
        self.objects.delete_many([f"{key.path}/{name}" for name in names])
        self.objects.prune(key.path)
        return Extent.of(listed[name] for name in names)

    def _broken(self, removed: Iterable[GcAction]) -> list[StepKey]:
        actions = list(removed)
        remains = {act.key: act.generation for act in actions if act.key and act.what == "remains"}
        commits, _ = commit.read_many(self.objects, list(remains))
        broken = {key for key, committed in commits.items() if committed.fingerprint == remains[key]}
        broken |= self._without_pool({action.path for action in actions if action.what == "pool"})
        return sorted(broken, key=lambda key: key.order)

    def _without_pool(self, gone: set[str]) -> set[StepKey]:
        ranks = commit.list_ranks(self.objects) if gone else []
        steps = {pool.step_of(path) for path in gone}
        users, _ = commit.read_many(self.objects, [StepKey(rank, step) for step in steps for rank in ranks])
        return {key for key, committed in users.items() if gone & committed.record.pool.keys()}

    def _now(self) -> float:
        """Return the time by the clock of the store, since the start by a clock that does not jump."""
        by_store, by_monotonic = self._started
        return by_store + self.monotonic() - by_monotonic

    def _compare_clocks(self) -> None:
        """Refuse if the clock of this host is far from that of the store, whose times decide what is old.

        So was the plan, if it was made later than now: what it takes for old may be new.
        """
        probe = f".gc.{uuid.uuid4().hex}.tmp"
        self.objects.put(probe, b"")
        written = self.objects.listed(probe).get("")
        here = self.clock()
        self._started = here if written is None else written.modified_at, self.monotonic()
        self.objects.delete(probe)
        skew_s = here - self._started[0]
        if abs(skew_s) > pool.MAX_SKEW_S:
            which = "ahead of" if skew_s > 0 else "behind"
            raise UsageError(
                f"the clock of this host is {abs(skew_s):.0f} s {which} the clock of the store: what is new "
                "cannot be told from what is old",
                hint="Nothing was removed. Set the clocks so that they are at most "
                f"{pool.MAX_SKEW_S:.0f} s apart, and run gc again.",
            )
        try:
            ahead_s = datetime.fromisoformat(self.plan.made_at).timestamp() - self._started[0]
        except ValueError as exc:
            raise UsageError(f"the plan does not say when it was made: {exc}") from exc
        if ahead_s > pool.MAX_SKEW_S:
            raise UsageError(
                f"the plan was made at {self.plan.made_at}, which is {ahead_s:.0f} s from "
                "now by the clock of the store: what it takes for old may be new",
                hint="Make the plan again, on a host whose clock is right. Nothing was removed.",
            )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


Store: TypeAlias = Catalog | str | PathLike[str]


def plan_gc(store: Store, policy: GcPolicy | None = None) -> GcPlan:
    """Plan what `gc` removes from a store, as `dump-ingest gc` prints it. Changes nothing.

    Args:
        store: an opened store, a directory or any fsspec URL.
        policy: what to remove and what to keep. The default removes remains of crashes and previous
            generations after a day.

    Raises:
        UsageError: the store does not exist.
        StoreError: the store refused.
    """
    policy = policy or GcPolicy()
    needs_anomalies = policy.keep_anomalous or policy.tensors_around_anomalies is not None
    inventory = take_inventory(opened(store).objects, anomalies=needs_anomalies)
    return make_plan(inventory, policy, time.time())


def apply_gc(store: Store, plan: GcPlan, *, stop: threading.Event | None = None) -> GcReport:
    """Carry out a plan, as `dump-ingest gc --apply` does.

    Each step is read again before it goes. A step that was committed again since, or that somebody is
    writing, is left alone.

    Args:
        store: an opened store, a directory or any fsspec URL.
        plan: from `plan_gc`.
        stop: ends the work early when it is set.

    Raises:
        UsageError: the store does not exist, the plan is for another store, or the clocks of this host and
            of the store differ.
        StoreError: the store refused. What was removed stays removed; another call removes the rest.
    """
    return Execution(opened(store).objects, plan).run(stop)


def opened(store: Store) -> Catalog:
    """Return the store, opened if it is not."""
    return store if isinstance(store, Catalog) else open_catalog(store)


#: Steps that are worked on at once, at most: as many as there are processors.
_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class RecompressPlan:
    """The steps whose tensors would be encoded again. Making it changes nothing."""

    keys: tuple[StepKey, ...]
    nbytes: int
    """Stored bytes of their tensors now, without those in the pool."""


@dataclass(slots=True)
class RecompressReport:
    """What became of the steps."""

    done: list[Recompressed] = field(default_factory=list)
    stopped: bool = False
    """Whether it was stopped before its end."""

    @property
    def steps(self) -> int:
        """How many steps have other bytes now."""
        return sum(not step.left for step in self.done)

    @property
    def saved_nbytes(self) -> int:
        """How many bytes they save, as soon as gc has removed their previous generations."""
        return sum(step.before_nbytes - step.after_nbytes for step in self.done)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, a row for each step."""
        return {
            "steps": self.steps,
            "saved_nbytes": self.saved_nbytes,
            "stopped": self.stopped,
            "done": [
                {name: value for name, value in asdict(step).items() if name != "key"} | asdict(step.key)
                for step in self.done
            ],
        }


def plan_recompress(
    store: Catalog | str | PathLike[str],
    *,
    older_than_s: float = 7 * DAY_S,
    ranks: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> RecompressPlan:
    """Plan which steps `recompress_store` takes: those with tensors that it has not taken before.

    Args:
        store: an opened store, a directory or any fsspec URL.
        older_than_s: only steps that were committed longer ago than this, in seconds.
        ranks: only these ranks; all if None.
        steps: only these steps; all if None.

    Raises:
        UsageError: the store does not exist, or has no such rank or step.
        StoreError: the store refused.
    """
    catalog = opened(store)
    keys = [key for key in catalog.listed(ranks, steps) if key.step is not None]
    if not keys and (ranks or steps):
        raise UsageError(
            "the store has none of these ranks and steps", hint="`dump-ingest ls STORE` lists what it has."
        )
    before = time.time() - older_than_s
    commits, _ = commit.read_many(catalog.objects, keys)
    cold = {
        key: sum(nbytes for path, nbytes in made.record.stored.items() if metadata.is_of_tensors(path))
        for key, made in commits.items()
        if made.record.committed_at_s < before and not is_dense(made) and made.without_tensors is None
    }
    return RecompressPlan(tuple(key for key, nbytes in cold.items() if nbytes), sum(cold.values()))


def recompress_store(
    store: Catalog | str | PathLike[str],
    plan: RecompressPlan,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[Recompressed], None] = lambda _: None,
) -> RecompressReport:
    """Encode the tensors of the steps of a plan again; what `dump-ingest gc --recompress --apply` does.

    Safe to kill, to run again, and next to everything else: each step changes with one write. Its previous
    generation goes with a later `gc`, after the grace period.

    Args:
        store: an opened store, a directory or any fsspec URL.
        plan: from `plan_recompress`.
        stop: ends the work early when it is set.
        progress: is called with each step when it is done.

    Raises:
        UsageError: the store does not exist.
        StoreError: the store refused. What was done stays.
    """
    objects, report = opened(store).objects, RecompressReport()
    stop = stop or threading.Event()
    threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
    with ThreadPoolExecutor(threads, thread_name_prefix="dump-ingest-recompress") as pool:
        try:
            for step in pool.map(lambda key: None if stop.is_set() else recompress(objects, key), plan.keys):
                if step is not None:
                    report.done.append(step)
                    progress(step)
        except BaseException:
            stop.set()
            raise
    report.stopped = stop.is_set()
    return report


KEY = "gc/zarr.json"
#: How often the record is read.
_EVERY_S = 60.0


class GcRuns(msgspec.Struct, frozen=True):
    """When gc last ended well, and when it last failed; Unix times by the clock of its host."""

    succeeded_at: float = 0.0
    """0 for never."""
    failed_at: float = 0.0
    reason: str = ""

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
