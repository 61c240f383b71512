"""A run at one moment: what is committed, and what answers about it have read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

import xxhash

from ingest.findings.incidents import Incidents
from ingest.findings.incidents.find import FoundIncidents
from ingest.findings.stored import SERIES, generation_of
from ingest.questions.matrix import rank_values_of
from ingest.reader.damage import Damage
from ingest.reader.dump_store import DumpStore
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_statistics import RankValues
from workers.errors import DumpIngestError, StoreUnavailable, UsageError
from workers.model import MIB, StepKey
from workers.store import commit
from workers.store.announcements import read_announcements
from workers.store.commit import Commit

#: What is kept takes about this many bytes at most, of all statistics together.
_MOST_NBYTES = 32 * MIB
#: What a statistic, and each of its steps, takes besides its name and its arrays.
_ENTRY_NBYTES = 512


class _KnownValues(NamedTuple):
    """A statistic in one step."""

    generation: str
    """Names what the ranks had committed."""
    of_ranks: RankValues


@dataclass(eq=False)
class StatisticsCache:
    """Statistics by name and pattern, kept from one moment to the next; the least recently used go first.

    A statistic is read for all ranks and steps at once, so looking closer costs nothing.
    """

    _by_key: OrderedDict[tuple[str, str], dict[int, _KnownValues]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, moment: Moment, pattern: str, statistic: str) -> dict[int, RankValues]:
        """Return a statistic by step. Reads the steps that are not known in their generation.

        Raises:
            UsageError: no tensor of any step matches.
            DamagedStore: no step can be read.
        """
        key, generations = (pattern, statistic), moment.generations
        with self._lock:
            kept = self._by_key.get(key, {})
            known = {step: of for step, of in kept.items() if generations.get(step) == of.generation}
        if due := generations.keys() - known.keys():
            known |= _read(moment, due, pattern, statistic, is_required=not known)
        with self._lock:
            self._by_key[key] = known
            self._by_key.move_to_end(key)
            while len(self._by_key) > 1 and self._nbytes() > _MOST_NBYTES:
                self._by_key.popitem(last=False)
        return {step: known[step].of_ranks for step in generations if step in known}

    def _nbytes(self) -> int:
        names = sum(_ENTRY_NBYTES + len(pattern) for pattern, _ in self._by_key)
        values = (of for kept in self._by_key.values() for _, of in kept.values())
        return names + sum(_ENTRY_NBYTES + of.ranks.nbytes + of.values.nbytes for of in values)


def _read(
    moment: Moment, steps: Collection[int], pattern: str, statistic: str, *, is_required: bool
) -> dict[int, _KnownValues]:
    """Return a statistic of some steps.

    Raises:
        UsageError: no tensor of these steps matches, and one is required.
    """
    snapshot = moment.snapshot().only(steps=steps)
    try:
        read = ask_of_undamaged(snapshot, lambda readable: rank_values_of(readable, pattern, statistic))
    except UsageError:
        if is_required:
            raise
        return {}
    return {step: _KnownValues(moment.generations[step], values) for step, values in read.items()}


#: Indexes that stay in memory; one of 5000 tensors takes 3 MB.
_TABLES_KEPT = 16
#: Commits that are read again in each turn, although nothing says that they have changed.
_READ_AGAIN = 256


@dataclass(eq=False, repr=False)
class PinnedStore(DumpStore):
    """A store whose answers are all about what was committed when it was opened."""

    known: Mapping[StepKey, Commit] = field(default_factory=dict, kw_only=True)
    """Commits that are not read, if the store lists their steps."""
    is_first: bool = field(default=True, kw_only=True)
    """Whether nothing was read before: then copies of commits do."""

    def reopened(self) -> Self:
        """Return this very store: what it has read is not read again."""
        return self

    def step(self, rank: int, step: int | None) -> Step:
        """Return one committed step of one rank. Takes no request if its rank was listed without it.

        Every view asks each rank for its run files, which most ranks of a large job do not have.

        Raises:
            UsageError: it is not in the store.
            DamagedStore: its commit is damaged.
        """
        key = StepKey(rank, step)
        if rank in self._listings and key not in self._listed_keys:
            if step is None:
                raise UsageError(f"{self.url}: {key} is not in the store")
            raise self._absent(key)
        return super().step(rank, step)

    @cached_property
    def _listed_keys(self) -> frozenset[StepKey]:
        return frozenset(key for keys in self._listings.values() for key in keys)

    def later(self, due: Collection[StepKey]) -> Self:
        """Return the store as it is now. Lists it, and reads the commits that are new.

        Commits that took the place of others are announced until the consolidator has seen them. Commits that
        are neither new, nor announced, nor `due`, are taken from here.

        Raises:
            StoreError: it cannot be read.
        """
        known = {key: opened.commit for key, opened in self._steps.items() if key not in due}
        for key, generations in read_announcements(self.objects).items():
            if key in known and not {*generations} <= {*known[key].record.generations}:
                del known[key]
        return type(self)(self.objects, mesh=self.mesh, known=known, is_first=False)

    def _commits_of(self, keys: Sequence[StepKey]) -> tuple[dict[StepKey, Commit], dict[StepKey, str]]:
        if self.is_first:
            return super()._commits_of(keys)
        # No copies of them: what is due is read to see whether it has changed without an announcement.
        unknown = [key for key in keys if key not in self.known]
        commits, damaged = self._read_commits(unknown)
        return commits | {key: self.known[key] for key in keys if key in self.known}, damaged


@dataclass(eq=False)
class Moment:
    """What is committed at one moment."""

    store: PinnedStore
    token: str
    """Names what is committed: equal tokens, equal answers."""
    read_at: float
    """When the store was listed, in seconds since the epoch."""
    steps: tuple[Step, ...]
    """All committed steps and run files: by step, then rank."""
    damages: tuple[Damage, ...]
    turn: int = 0
    """How many commits were read again so far, see `later`."""
    _tables: OrderedDict[StepKey, Step] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    fields: StatisticsCache = field(default_factory=StatisticsCache)
    """Of the run: those of the moments before are used again."""
    _search_lock: threading.Lock = field(default_factory=threading.Lock)
    _snapshot_lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, store: DumpStore) -> Moment:
        """Read all commits of a store.

        Raises:
            StoreError: it cannot be read.
        """
        return cls._of_pinned(PinnedStore(store.objects, mesh=store.mesh))

    @classmethod
    def _of_pinned(cls, pinned: PinnedStore) -> Moment:
        damages: list[Damage] = []
        steps = tuple(pinned.select(damages=damages))
        names = [f"{step.key} {step.fingerprint} {step.has_tensors}" for step in steps]
        # What the consolidator finds changes answers, too.
        names += [*map(str, damages), *pinned.objects.children(SERIES)]
        token = xxhash.xxh3_64_hexdigest("\n".join(names).encode())
        return cls(pinned, token, time.time(), steps, tuple(damages))

    def later(self) -> Moment:
        """Return the store as it is now; this moment, with a new time, if nothing was committed since.

        Takes a listing of each rank, the commits that are new, and 256 of the others in turn: `gc` may have
        removed their tensors.

        Raises:
            StoreError: it cannot be read, or it is gone: a directory that is not mounted looks empty.
        """
        if commit.read_root(self.store.objects) is None:
            raise StoreUnavailable(f"{self.store.url}: the store is not there any more")
        first = self.turn % max(len(self.steps), 1)
        due = {opened.key for opened in self.steps[first : first + _READ_AGAIN]}
        fresh = Moment._of_pinned(self.store.later(due))
        self.turn = fresh.turn = first + len(due)
        if fresh.token != self.token:
            fresh.fields = self.fields
            return fresh
        self.read_at = fresh.read_at
        return self

    def opened(self, rank: int, step: int | None) -> Step:
        """Return one step, and let go of the index of the one that was not asked for the longest.

        Raises:
            UsageError: it is not in the store.
        """
        chosen = self.store.step(rank, step)
        with self._lock:
            self._tables[chosen.key] = chosen
            self._tables.move_to_end(chosen.key)
            forgotten = self._tables.popitem(last=False)[1] if len(self._tables) > _TABLES_KEPT else None
        if forgotten is not None:
            forgotten.forget_tables()
        return chosen

    def let_go(self) -> None:
        """Let go of the indexes that answers have read, except for those of `opened`."""
        with self._lock:
            kept = set(self._tables)
        for opened in self.steps:
            if opened.key not in kept:
                opened.forget_tables()

    def incidents(
        self,
        rank: int | None = None,
        step: int | None = None,
        *,
        severity: str | None = None,
        incident: str = "",
    ) -> Incidents:
        """Return the incidents. The store is searched once for all viewers, whatever they ask for.

        Raises:
            UsageError: the rank, step, severity or incident does not exist.
            DamagedStore: no step can be read.
        """
        with self._search_lock:
            found = self._found
        return found.chosen(rank, step, severity=severity, incident=incident)

    @cached_property
    def _found(self) -> FoundIncidents:
        return FoundIncidents.of(self.snapshot())

    def snapshot(self) -> Snapshot:
        """Return all steps, partial ones among them. Taken once: it takes as long as reading a statistic."""
        with self._snapshot_lock:
            return self._taken

    @cached_property
    def _taken(self) -> Snapshot:
        return take_snapshot(self.store, include_partial=True, allow_empty=True)

    def statistic(self, pattern: str, statistic: str) -> dict[int, RankValues]:
        """Return a statistic of the tensors that match a glob, by step; see `StatisticsCache`."""
        return self.fields.of(self, pattern, statistic)

    def prepare(self, before: Moment | None) -> None:
        """Search for incidents if viewers look at them, or this is the first moment: then they need not wait.

        Errors are for who asks.
        """
        if before is None or "_found" in before.__dict__:
            with suppress(DumpIngestError):
                self.incidents()

    @cached_property
    def generations(self) -> dict[int, str]:
        """By step: a name for what all ranks together have of it."""
        by_step: dict[int, dict[int, str]] = {}
        for opened in self.steps:
            if opened.key.step is not None:
                by_step.setdefault(opened.key.step, {})[opened.key.rank] = opened.fingerprint
        return {step: generation_of(fingerprints) for step, fingerprints in by_step.items()}

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks with a committed step, in order."""
        return sorted({step.key.rank for step in self.steps if step.key.step is not None})

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the committed steps, in order."""
        return sorted({step.key.step for step in self.steps if step.key.step is not None})

    def steps_of(self, rank: int) -> list[int]:
        """Return the numbers of the committed steps of a rank, in order."""
        return [of.key.step for of in self.steps if of.key.rank == rank and of.key.step is not None]

    def ranks_with(self, step: int | None) -> list[int]:
        """Return the ranks that have committed a step, in order."""
        return [opened.key.rank for opened in self.steps if opened.key.step == step]


def token(store: DumpStore) -> str:
    """Return a word that changes when a step is committed, changed or removed, or found to be damaged.

    It also changes when the consolidator has evaluated a step. Reads all commits; two stores have different
    words, even if they hold the same.

    Raises:
        StoreError: the store cannot be read.
    """
    return Moment.of(store).token
