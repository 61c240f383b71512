"""What a store holds: one listing of all of it, and what its commits say. Reads, never writes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from ingest.findings.stored import SERIES, read_series
from workers.errors import StoreDenied, StoreError
from workers.model import StepKey
from workers.store import commit, metadata
from workers.store.commit import unfinished
from workers.store.model import WORSE_THAN_INFO, rank_named, step_named
from workers.store.objects import ObjectStore, StoredObject, UnfinishedUpload
from workers.store.packed import pool
from workers.store.record import LEAF

#: Ranks that are listed at once.
_RANKS_AT_ONCE = 4
#: Commits that are held at once.
_COMMITS_AT_ONCE = 256
#: What a writer into a directory leaves behind when it is killed.
_TEMPORARY = re.compile(r"(?:.*/)?\.[^/]+\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True, slots=True)
class Extent:
    """A number of objects, their size, and when the newest of them was written."""

    objects: int = 0
    nbytes: int = 0
    newest_at: float = 0.0
    """Seconds since the epoch, by the clock of the store."""

    def __add__(self, other: Extent) -> Extent:
        return Extent(
            self.objects + other.objects, self.nbytes + other.nbytes, max(self.newest_at, other.newest_at)
        )

    @classmethod
    def of(cls, objects: Iterable[StoredObject]) -> Extent:
        """Return the extent of some objects."""
        return sum((cls(1, stored.nbytes, stored.modified_at) for stored in objects), cls())


@dataclass(slots=True)
class Generation:
    """What lies below one generation of a step."""

    tensors: Extent = field(default_factory=Extent)
    """Payloads of tensors."""
    rest: Extent = field(default_factory=Extent)

    @property
    def whole(self) -> Extent:
        """Payloads and all other objects together."""
        return self.tensors + self.rest


@dataclass(slots=True)
class StepInventory:
    """What the store holds of one step of a rank, or of its run files; and what its commit says."""

    key: StepKey
    generations: dict[str, Generation] = field(default_factory=dict)
    record: Extent = field(default_factory=Extent)
    """The object that holds the commit."""
    fingerprint: str = ""
    """The generation that the commit points to; "" if the step is not committed, or its commit is damaged."""
    committed_at: float = 0.0
    """Seconds since the epoch, by the clock of the worker."""
    is_anomalous: bool = False
    """Whether it counts NaN, Inf, an overflow, or a finding of severity warning or worse."""
    has_tensors: bool = False
    pool: frozenset[str] = frozenset()
    """The arrays in the pool that it refers to, by path."""
    damage: str = ""
    """What is wrong with the commit."""

    @property
    def number(self) -> int:
        """The number of the step; one below zero for run files."""
        return self.key.order[0]

    @property
    def uncommitted(self) -> dict[str, Generation]:
        """The generations that no commit points to."""
        return {name: held for name, held in self.generations.items() if name != self.fingerprint}


@dataclass(slots=True)
class Inventory:
    """What a whole store holds."""

    url: str
    total: Extent = field(default_factory=Extent)
    steps: tuple[StepInventory, ...] = ()
    temporaries: dict[str, Extent] = field(default_factory=dict)
    """What killed writers left behind, by object key."""
    anomalous_steps: frozenset[int] = frozenset()
    """Steps in which rules over several steps or ranks found something of severity warning or worse."""
    evaluated_steps: frozenset[int] = frozenset()
    """Steps for which such rules were evaluated."""
    uploads: tuple[UnfinishedUpload, ...] = ()
    """Uploads in parts that are under way, or that killed writers left."""
    uploads_unknown: str = ""
    """Why nothing is known of such uploads; "" if it is."""
    pools: dict[int, dict[str, Extent]] = field(default_factory=dict)
    """By step: the arrays in its pool, by path."""
    unfinished_changes: dict[str, Extent] = field(default_factory=dict)
    """What announces changes of commits that have begun and not ended, by object key."""


def take_inventory(objects: ObjectStore, *, anomalies: bool = False) -> Inventory:
    """List a store and read its commits.

    Memory: about 500 bytes for each object of a rank, for `_RANKS_AT_ONCE` ranks at once; a few hundred bytes
    for each step.

    Args:
        objects: the store.
        anomalies: also read what rules over several steps or ranks found.

    Raises:
        StoreError: the store refused.
    """
    inventory = Inventory(objects.address.url)
    steps: dict[StepKey, StepInventory] = {}
    names = objects.children()
    pools = objects.children(pool.POOL) if pool.POOL in names else []
    others = sorted((name for name in names if name != pool.POOL), key=lambda name: rank_named(name) is None)
    names = [*others, *(f"{pool.POOL}/{name}" for name in pools)]
    with ThreadPoolExecutor(_RANKS_AT_ONCE, thread_name_prefix="dump-ingest-list") as threads:
        inventory.total = sum(threads.map(partial(_list, objects, inventory, steps), names), Extent())
    inventory.steps = tuple(sorted(steps.values(), key=lambda step: step.key.order))
    _read_commits(objects, [step for step in inventory.steps if step.record.objects])
    if anomalies:
        inventory.anomalous_steps, inventory.evaluated_steps = _findings_of_series(objects)
    try:
        inventory.uploads = tuple(objects.unfinished_uploads())
    except StoreDenied as exc:
        permissions = "s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts"
        inventory.uploads_unknown = f"{exc.message}; it takes {permissions}"
    except StoreError as exc:  # what speaks the protocol of S3 does not always have this request
        inventory.uploads_unknown = exc.message
    return inventory


def generations_in(listed: Mapping[str, StoredObject]) -> dict[str, list[str]]:
    """Return the keys of each generation in a listing of a step."""
    keys_by_generation: dict[str, list[str]] = {}
    for key in listed:
        name, slash, _ = key.partition("/")
        if slash and pool.GENERATION.fullmatch(name):  # any other name is not ours: it is never touched
            keys_by_generation.setdefault(name, []).append(key)
    return keys_by_generation


def is_temporary(key: str) -> bool:
    """Return whether a writer into a directory uses this key before it renames the object."""
    return _TEMPORARY.fullmatch(key) is not None


def is_of_tensors(key: str) -> bool:
    """Return whether an object, given by its key in a step, belongs to payloads of tensors."""
    return metadata.is_of_tensors(key.partition("/")[2])


def _list(
    objects: ObjectStore, inventory: Inventory, steps: dict[StepKey, StepInventory], name: str
) -> Extent:
    """Enter one directory, which no other thread lists, into an inventory; return its extent."""
    listed = objects.listed(name)
    total = Extent.of(listed.values())
    temporaries = _enter_temporaries(inventory, name, listed)
    if rank_named(name) is not None:
        steps |= {step.key: step for step in _steps_in(objects, name, listed)}
    elif name.startswith(f"{pool.POOL}/"):
        _enter_pooled(inventory, name, {path: listed[path] for path in listed.keys() - temporaries.keys()})
    else:
        for path in unfinished([f"{name}/{path}" for path in listed]):
            inventory.unfinished_changes[path] = Extent.of([listed[path.removeprefix(f"{name}/")]])
    return total


def _enter_temporaries(
    inventory: Inventory, name: str, listed: Mapping[str, StoredObject]
) -> dict[str, StoredObject]:
    """Enter the temporary objects of a directory, and return them."""
    temporaries = {path: stored for path, stored in listed.items() if is_temporary(path or name)}
    for path, stored in temporaries.items():
        inventory.temporaries[f"{name}/{path}" if path else name] = Extent.of([stored])
    return temporaries


def _enter_pooled(inventory: Inventory, name: str, listed: Mapping[str, StoredObject]) -> None:
    """Enter the arrays in the pool of a step."""
    for path, stored in listed.items():
        array = "/".join([name, *path.split("/")[:2]])
        if (number := pool.step_of(array)) is not None:
            arrays = inventory.pools.setdefault(number, {})
            array = sys.intern(array)
            arrays[array] = arrays.get(array, Extent()) + Extent.of([stored])


def _steps_in(objects: ObjectStore, name: str, listed: Mapping[str, StoredObject]) -> Iterator[StepInventory]:
    """Yield what the listing of the group of a rank shows of its steps, and of its run files."""
    rank = rank_named(name) or 0
    below = _directories(objects, rank, listed)
    for path, stored in listed.items():
        step, _, path_in_step = path.partition("/")
        if path_in_step and _is_step(step):
            below.setdefault(step, {})[path_in_step] = stored
    for step, own in below.items():
        record = Extent.of(filter(None, [own.get(LEAF)]))
        yield StepInventory(StepKey(rank, step_named(step)), _measure(own), record)


def _directories(
    objects: ObjectStore, rank: int, listed: Mapping[str, StoredObject]
) -> dict[str, dict[str, StoredObject]]:
    """Return the directories of steps, in a local store, each without objects.

    One that a killed writer, or a killed gc, left empty is in no listing of objects.
    """
    keys = commit.list_keys(objects, [rank]) if objects.is_local and listed else []
    return {step: {} for key in keys if (step := key.path.rpartition("/")[2]) not in listed}


def _is_step(name: str) -> bool:
    return name == "run" or step_named(name) is not None


def _measure(listed: Mapping[str, StoredObject]) -> dict[str, Generation]:
    """Return the generations in the listing of a step."""
    return {
        name: Generation(
            Extent.of(listed[key] for key in keys if is_of_tensors(key) and not is_temporary(key)),
            # Temporary objects are counted elsewhere, but show that somebody was at work.
            Extent(newest_at=max((listed[key].modified_at for key in keys if is_temporary(key)), default=0.0))
            + Extent.of(listed[key] for key in keys if not is_of_tensors(key) and not is_temporary(key)),
        )
        for name, keys in generations_in(listed).items()
    }


def _read_commits(objects: ObjectStore, steps: list[StepInventory]) -> None:
    """Enter what the commits of these steps say, or what is wrong with them."""
    for start in range(0, len(steps), _COMMITS_AT_ONCE):
        some = steps[start : start + _COMMITS_AT_ONCE]
        commits, damaged = commit.read_many(objects, [step.key for step in some])
        for step in some:
            step.damage = damaged.get(step.key, "")
            if committed := commits.get(step.key):
                step.fingerprint = committed.fingerprint
                step.committed_at = committed.record.committed_at_s
                step.is_anomalous = committed.summary.is_anomalous
                step.has_tensors = committed.without_tensors is None
                step.pool = frozenset(map(sys.intern, committed.record.pool))


def _findings_of_series(objects: ObjectStore) -> tuple[frozenset[int], frozenset[int]]:
    """Return the steps in which rules over several steps or ranks found something bad, and all they saw.

    What they found in a step may be damaged. Then it may have been bad, and counts as bad.
    """
    damages: list[str] = []
    series = read_series(objects, None, damages)
    unknown = {int(damage.removeprefix(f"{SERIES}/").partition(".")[0]) for damage in damages}
    anomalous = {
        step
        for step, stored in series.items()
        if any(finding.severity in WORSE_THAN_INFO for finding in stored.findings)
    }
    return frozenset(anomalous | unknown), frozenset(series.keys() | unknown)
