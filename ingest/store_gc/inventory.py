"""What a store holds: one listing of all of it, and what its commits say. Reads, never writes."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ingest.findings.stored import SERIES, read_series
from workers.errors import StoreDenied, StoreError
from workers.model import StepKey
from workers.store import commit, metadata
from workers.store.announcements import unfinished
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
            self.objects + other.objects,
            self.nbytes + other.nbytes,
            max(self.newest_at, other.newest_at),
        )

    @classmethod
    def of(cls, objects: Iterable[StoredObject]) -> Extent:
        """Return the extent of some objects."""
        return sum((cls(1, stored.nbytes, stored.modified_at) for stored in objects), cls())


@dataclass(frozen=True, slots=True)
class Generation:
    """What lies below one generation of a step."""

    tensors: Extent = field(default_factory=Extent)
    """Payloads of tensors."""
    rest: Extent = field(default_factory=Extent)

    @property
    def whole(self) -> Extent:
        """Payloads and all other objects together."""
        return self.tensors + self.rest


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What the commit of a step says, as far as gc needs it."""

    fingerprint: str
    committed_at: float
    """Seconds since the epoch, by the clock of the worker."""
    is_anomalous: bool
    """Whether it counts NaN, Inf, an overflow, or a finding of severity warning or worse."""
    has_tensors: bool
    pool: frozenset[str] = frozenset()
    """The arrays in the pool that it refers to, by path."""


@dataclass(frozen=True, slots=True)
class StepInventory:
    """What the store holds of one step of a rank, or of its run files; committed or not."""

    key: StepKey
    generations: Mapping[str, Generation]
    record: Extent = field(default_factory=Extent)
    """The object that holds the commit."""
    commit: CommitFacts | None = None
    """None if the step is not committed, or its commit is damaged."""
    damage: str = ""
    """What is wrong with the commit."""

    @property
    def fingerprint(self) -> str:
        """The generation that the commit points to; "" without a commit."""
        return self.commit.fingerprint if self.commit else ""

    @property
    def uncommitted(self) -> dict[str, Generation]:
        """The generations that no commit points to."""
        return {name: held for name, held in self.generations.items() if name != self.fingerprint}


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a whole store holds."""

    url: str
    total: Extent
    steps: tuple[StepInventory, ...]
    temporaries: Mapping[str, Extent]
    """What killed writers left behind, by object key."""
    anomalous_steps: frozenset[int] = frozenset()
    """Steps in which rules over several steps or ranks found something of severity warning or worse."""
    evaluated_steps: frozenset[int] = frozenset()
    """Steps for which such rules were evaluated."""
    uploads: tuple[UnfinishedUpload, ...] = ()
    """Uploads in parts that are under way, or that killed writers left."""
    uploads_unknown: str = ""
    """Why nothing is known of such uploads; "" if it is."""
    pools: Mapping[int, Mapping[str, Extent]] = field(default_factory=dict)
    """By step: the arrays in its pool, by path."""
    unfinished_changes: Mapping[str, Extent] = field(default_factory=dict)
    """What announces changes of commits that have begun and not ended, by object key."""


@dataclass(slots=True)
class _Listing:
    """What listings of directories of the store show."""

    total: Extent
    temporaries: dict[str, Extent]
    generations: dict[StepKey, dict[str, Generation]] = field(default_factory=dict)
    records: dict[StepKey, Extent] = field(default_factory=dict)
    pools: dict[int, dict[str, Extent]] = field(default_factory=dict)
    unfinished_changes: dict[str, Extent] = field(default_factory=dict)

    def add(self, other: _Listing) -> None:
        """Add the listing of another directory."""
        self.total += other.total
        self.generations |= other.generations
        self.records |= other.records
        self.temporaries |= other.temporaries
        self.pools |= other.pools
        self.unfinished_changes |= other.unfinished_changes


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
    listing = _list_store(objects)
    commits, damages = _read_commits(objects, listing.records)
    steps = [
        StepInventory(
            key, generations, listing.records.get(key, Extent()), commits.get(key), damages.get(key, "")
        )
        for key, generations in listing.generations.items()
    ]
    anomalous, evaluated = _findings_of_series(objects) if anomalies else (frozenset(), frozenset())
    uploads: tuple[UnfinishedUpload, ...] = ()
    unknown = ""
    try:
        uploads = tuple(objects.unfinished_uploads())
    except StoreDenied as exc:
        unknown = f"{exc.message}; it takes s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts"
    except StoreError as exc:  # what speaks the protocol of S3 does not always have this request
        unknown = exc.message
    return Inventory(
        objects.address.url,
        listing.total,
        tuple(sorted(steps, key=lambda step: step.key.order)),
        listing.temporaries,
        anomalous,
        evaluated,
        uploads,
        unknown,
        listing.pools,
        listing.unfinished_changes,
    )


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


def _list_store(objects: ObjectStore) -> _Listing:
    """List the directories of all ranks, and everything else below the root."""
    names = objects.children()
    ranks = {name: rank for name in names if (rank := rank_named(name)) is not None}
    others = sorted({*names} - {*ranks, pool.POOL})
    pools = objects.children(pool.POOL) if pool.POOL in names else []
    whole = _Listing(Extent(), {})
    with ThreadPoolExecutor(_RANKS_AT_ONCE, thread_name_prefix="dump-ingest-list") as threads:
        for listing in itertools.chain(
            threads.map(lambda rank: _list_rank(objects, rank), ranks.values()),
            threads.map(lambda name: _list_other(objects, name), others),
            threads.map(lambda name: _list_pool(objects, f"{pool.POOL}/{name}"), pools),
        ):
            whole.add(listing)
    return whole


def _list_rank(objects: ObjectStore, rank: int) -> _Listing:
    name = f"rank_{rank}"
    listed = objects.listed(name)
    listing = _Listing(Extent.of(listed.values()), _temporaries_in(name, listed))
    if objects.is_local:
        # A directory that a killed writer, or a killed gc, left empty is in no listing of objects.
        keys = commit.list_keys(objects, [rank]) if listed else []
        listing.generations.update((key, {}) for key in keys if key.path.rpartition("/")[2] not in listed)
    for key, below in _by_step(rank, listed).items():
        listing.generations[key] = {
            generation: _measure(members, below) for generation, members in generations_in(below).items()
        }
        if LEAF in below:
            listing.records[key] = Extent.of([below[LEAF]])
    return listing


def _list_other(objects: ObjectStore, name: str) -> _Listing:
    listed = objects.listed(name)
    begun = unfinished([f"{name}/{key}" for key in listed])
    return _Listing(
        Extent.of(listed.values()),
        _temporaries_in(name, listed),
        unfinished_changes={path: Extent.of([listed[path.removeprefix(f"{name}/")]]) for path in begun},
    )


def _list_pool(objects: ObjectStore, name: str) -> _Listing:
    """List the pool of one step."""
    listed = objects.listed(name)
    listing = _Listing(Extent.of(listed.values()), _temporaries_in(name, listed))
    for key, stored in listed.items():
        digest, _, below = key.partition("/")
        path = f"{name}/{digest}/{below.partition('/')[0]}"
        step = pool.step_of(path)
        if step is not None and not is_temporary(key):
            arrays = listing.pools.setdefault(step, {})
            path = sys.intern(path)
            arrays[path] = arrays.get(path, Extent()) + Extent.of([stored])
    return listing


def _temporaries_in(name: str, listed: Mapping[str, StoredObject]) -> dict[str, Extent]:
    """Return the temporary objects in a listing, by their keys in the store."""
    return {
        f"{name}/{key}" if key else name: Extent.of([stored])
        for key, stored in listed.items()
        if is_temporary(key or name)
    }


def _measure(keys: Sequence[str], listed: Mapping[str, StoredObject]) -> Generation:
    tensors, rest = Extent(), Extent()
    for key in keys:
        stored = listed[key]
        if is_temporary(key):
            rest += Extent(newest_at=stored.modified_at)  # counted elsewhere, but somebody was at work
        elif is_of_tensors(key):
            tensors += Extent(1, stored.nbytes, stored.modified_at)
        else:
            rest += Extent(1, stored.nbytes, stored.modified_at)
    return Generation(tensors, rest)


def _by_step(rank: int, listed: Mapping[str, StoredObject]) -> dict[StepKey, dict[str, StoredObject]]:
    """Split the listing of a rank by step; run files are in it, too."""
    below: dict[StepKey, dict[str, StoredObject]] = {}
    for path, stored in listed.items():
        name, slash, key = path.partition("/")
        if not slash:
            continue
        if name == "run":
            below.setdefault(StepKey(rank, None), {})[key] = stored
        elif (step := step_named(name)) is not None:
            below.setdefault(StepKey(rank, step), {})[key] = stored
    return below


def _read_commits(
    objects: ObjectStore, keys: Iterable[StepKey]
) -> tuple[dict[StepKey, CommitFacts], dict[StepKey, str]]:
    """Read the commits of these steps; return the problems of those that are damaged, too."""
    facts: dict[StepKey, CommitFacts] = {}
    damages: dict[StepKey, str] = {}
    ordered = sorted(keys, key=lambda key: key.order)
    for start in range(0, len(ordered), _COMMITS_AT_ONCE):
        commits, damaged = commit.read_many(objects, ordered[start : start + _COMMITS_AT_ONCE])
        facts |= {
            key: CommitFacts(
                committed.fingerprint,
                committed.record.committed_at_s,
                committed.summary.is_anomalous,
                committed.without_tensors is None,
                frozenset(map(sys.intern, committed.record.pool)),
            )
            for key, committed in commits.items()
        }
        damages |= damaged
    return facts, damages


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
