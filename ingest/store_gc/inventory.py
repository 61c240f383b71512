"""What there is in a store: one listing of all of it, and what its commits say. Reads, never writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ingest.findings.stored import read_series
from workers.model import StepKey
from workers.store import commit, metadata
from workers.store.commit import Commit
from workers.store.model import WORSE_THAN_INFO
from workers.store.objects import ObjectStore, StoredObject
from workers.store.record import LEAF

#: Ranks that are listed at once.
_RANKS_AT_ONCE = 4
#: Commits that are held at once.
_COMMITS_AT_ONCE = 256
#: What a writer into a directory leaves behind when it is killed.
_TEMPORARY = re.compile(r"(?:.*/)?\.[^/]+\.[0-9a-f]{32}\.tmp")
#: Names of generations; what has another name below a step is not ours, and is never touched.
_GENERATION = re.compile(r"[0-9a-f]{32}")
_RANK = re.compile(r"rank_(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Extent:
    """So many objects, and when the newest of them was written."""

    objects: int = 0
    nbytes: int = 0
    newest: float = 0.0

    def __add__(self, other: Extent) -> Extent:
        return Extent(
            self.objects + other.objects, self.nbytes + other.nbytes, max(self.newest, other.newest)
        )

    @classmethod
    def of(cls, listed: Iterable[StoredObject]) -> Extent:
        """Return the extent of some objects."""
        total = cls()
        for one in listed:
            total += cls(1, one.nbytes, one.modified_at)
        return total


@dataclass(frozen=True, slots=True)
class Generation:
    """What lies below one generation of a step."""

    tensors: Extent = field(default_factory=Extent)
    """Payloads of tensors."""
    rest: Extent = field(default_factory=Extent)

    @property
    def whole(self) -> Extent:
        """All of it."""
        return self.tensors + self.rest


@dataclass(frozen=True, slots=True)
class Facts:
    """What the commit of a step says, as far as it matters here."""

    fingerprint: str
    committed_at: float
    """Seconds since the epoch, by the clock of the worker."""
    anomalous: bool
    """Whether it counts NaN, Inf, an overflow, or a finding of severity warning or worse."""
    has_tensors: bool


@dataclass(frozen=True, slots=True)
class Leaf:
    """A step of a rank, or its run files: committed or not."""

    key: StepKey
    generations: Mapping[str, Generation]
    record: Extent = field(default_factory=Extent)
    """The commit itself."""
    facts: Facts | None = None
    """None for no commit, or a damaged one."""
    damaged: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that there is."""

    url: str
    total: Extent
    leaves: tuple[Leaf, ...]
    temporaries: Mapping[str, Extent]
    """What killed writers left: by key."""
    anomalous_steps: frozenset[int] = frozenset()
    """Steps for which rules over several steps or ranks found something of severity warning or worse."""
    evaluated_steps: frozenset[int] = frozenset()
    """Steps for which such rules were evaluated."""


@dataclass(slots=True)
class _Rank:
    total: Extent
    generations: dict[StepKey, dict[str, Generation]]
    records: dict[StepKey, Extent]
    temporaries: dict[str, Extent]


def take_inventory(objects: ObjectStore, *, anomalies: bool = False) -> Inventory:
    """List a store.

    Memory: some 500 bytes for each object of a rank, of `_RANKS_AT_ONCE` ranks; some hundred for each step.

    Args:
        objects: the store.
        anomalies: read what rules over several steps or ranks found, too.

    Raises:
        StoreError: the store refused.
    """
    names = objects.children()
    ranks = [name for name in names if _RANK.fullmatch(name)]
    with ThreadPoolExecutor(_RANKS_AT_ONCE, thread_name_prefix="dump-ingest-list") as threads:
        parts = list(threads.map(lambda name: _rank(objects, name), ranks))
        others = list(threads.map(objects.listed, names_of_others := sorted({*names} - {*ranks})))
    temporaries = {key: one for part in parts for key, one in part.temporaries.items()}
    total = sum((part.total for part in parts), Extent())
    for name, listed in zip(names_of_others, others, strict=True):
        total += Extent.of(listed.values())
        found = {f"{name}/{key}" if key else name: one for key, one in listed.items()}
        temporaries |= {key: Extent.of([one]) for key, one in found.items() if _TEMPORARY.fullmatch(key)}
    facts: dict[StepKey, Facts] = {}
    damaged: dict[StepKey, str] = {}
    committed = sorted((key for part in parts for key in part.records), key=lambda key: key.order)
    for start in range(0, len(committed), _COMMITS_AT_ONCE):
        found_commits, wrong = commit.read_many(objects, committed[start : start + _COMMITS_AT_ONCE])
        facts |= {key: facts_of(one) for key, one in found_commits.items()}
        damaged |= wrong
    leaves = [
        Leaf(key, generations, part.records.get(key, Extent()), facts.get(key), damaged.get(key, ""))
        for part in parts
        for key, generations in part.generations.items()
    ]
    series = read_series(objects, None, []) if anomalies else {}
    return Inventory(
        objects.address.url,
        total,
        tuple(sorted(leaves, key=lambda leaf: leaf.key.order)),
        temporaries,
        frozenset(
            step for step, one in series.items() if any(f.severity in WORSE_THAN_INFO for f in one.findings)
        ),
        frozenset(series),
    )


def facts_of(found: Commit) -> Facts:
    """Return what matters here of a commit."""
    return Facts(
        found.fingerprint,
        committed_at(found).timestamp(),
        found.summary.is_anomalous,
        found.without_tensors is None,
    )


def committed_at(found: Commit) -> datetime:
    """Return when a step was committed."""
    said = datetime.fromisoformat(found.record.committed_at)
    return said if said.tzinfo else said.replace(tzinfo=UTC)


def generations_in(listed: Mapping[str, StoredObject]) -> dict[str, list[str]]:
    """Return the keys of each generation, out of a listing of a step."""
    found: dict[str, list[str]] = {}
    for key in listed:
        name, slash, _ = key.partition("/")
        if slash and _GENERATION.fullmatch(name):
            found.setdefault(name, []).append(key)
    return found


def is_temporary(key: str) -> bool:
    """Whether a key is one that a writer into a directory uses before it renames the object."""
    return _TEMPORARY.fullmatch(key) is not None


def _rank(objects: ObjectStore, name: str) -> _Rank:
    listed = objects.listed(name)
    part = _Rank(Extent.of(listed.values()), {}, {}, {})
    rank = int(name.removeprefix("rank_"))
    if objects.is_local:
        # A directory that a killed writer, or a killed gc, left empty is in no listing of objects.
        keys = commit.list_keys(objects, [rank]) if listed else []
        part.generations.update((key, {}) for key in keys if key.path.rpartition("/")[2] not in listed)
    for leaf, entries in _by_leaf(rank, listed).items():
        below = generations_in(entries)
        part.generations[leaf] = {one: _generation(keys, entries) for one, keys in below.items()}
        if LEAF in entries:
            part.records[leaf] = Extent.of([entries[LEAF]])
    part.temporaries = {f"{name}/{key}": Extent.of([one]) for key, one in listed.items() if is_temporary(key)}
    return part


def _generation(keys: Sequence[str], entries: Mapping[str, StoredObject]) -> Generation:
    tensors, rest = Extent(), Extent()
    for key in keys:
        one = entries[key]
        if is_temporary(key):
            rest += Extent(newest=one.modified_at)  # counted apart, but somebody was at work
        elif is_of_tensors(key):
            tensors += Extent(1, one.nbytes, one.modified_at)
        else:
            rest += Extent(1, one.nbytes, one.modified_at)
    return Generation(tensors, rest)


def is_of_tensors(key: str) -> bool:
    """Whether an object, by its key in a step, belongs to payloads of tensors."""
    return metadata.is_of_tensors(key.partition("/")[2])


def _by_leaf(rank: int, listed: Mapping[str, StoredObject]) -> dict[StepKey, dict[str, StoredObject]]:
    found: dict[StepKey, dict[str, StoredObject]] = {}
    for key, one in listed.items():
        name, slash, rest = key.partition("/")
        if not slash:
            continue
        if name == "run":
            found.setdefault(StepKey(rank, None), {})[rest] = one
        elif name.startswith("step_") and name[5:].isdecimal() and str(int(name[5:])) == name[5:]:
            found.setdefault(StepKey(rank, int(name[5:])), {})[rest] = one
    return found
