"""The runs that a page shows, one store or the stores below a URL, and what the list of them says of each.

A run at one moment is what is committed then, and what answers about it have read.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, islice
from multiprocessing.pool import ThreadPool
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Self

import xxhash

from ingest.findings.incidents import FoundIncidents, Incidents
from ingest.findings.stored import SERIES, SeriesDocument, generation_of, read_series
from ingest.page.watchers import Refreshed
from ingest.questions.matrix import rank_values_of
from ingest.reader.catalog import Damage
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.require import require_store
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_statistics import RankValues
from workers.errors import DumpIngestError, StoreMissing, StoreUnavailable, UsageError
from workers.model import MIB, StepKey
from workers.store import commit
from workers.store.commit import Commit, read_announcements
from workers.store.model import SEVERITIES
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve

#: What is kept takes about this many bytes at most, of all statistics together.
_MOST_NBYTES = 32 * MIB
#: What a statistic, and each of its steps, takes besides its name and its arrays.
_ENTRY_NBYTES = 512


class _KnownValues(NamedTuple):
    generation: str
    of_ranks: RankValues


@dataclass(eq=False)
class _StatisticsCache:
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
    steps: tuple[Step, ...]
    """All committed steps and run files: by step, then rank."""
    damages: tuple[Damage, ...]
    turn: int = 0
    """How many commits were read again so far, see `later`."""
    _tables: OrderedDict[StepKey, Step] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    fields: _StatisticsCache = field(default_factory=_StatisticsCache)
    _search_lock: threading.Lock = field(default_factory=threading.Lock)
    _snapshot_lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, store: DumpStore) -> Moment:
        """Read all commits of a store.

        Raises:
            StoreError: it cannot be read.
        """
        pinned = store if isinstance(store, PinnedStore) else PinnedStore(store.objects, mesh=store.mesh)
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
        fresh = Moment.of(self.store.later(due))
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
        return FoundIncidents(self.snapshot())

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
        """Search for incidents ahead of viewers who look at them, or if this is the first moment.

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


class FiredRule(NamedTuple):
    """A rule that found something in a step."""

    severity: int
    """Its place in `SEVERITIES`: the higher the worse."""
    rule: str
    findings: int
    step: int
    """0 for run files."""
    rank: int | None
    """None for a rule over several ranks."""


def rules_fired_in(opened: Step, *, or_not_finite: bool = False) -> Iterator[FiredRule]:
    """Yield the rules that found something in a step; if none was evaluated, also what is not finite."""
    summary, step, rank = opened.commit.summary, opened.key.step or 0, opened.key.rank
    for rule, count in summary.findings.items():
        severity = SEVERITIES.index(summary.severities.get(rule, "info"))
        yield FiredRule(severity, rule, count, step, rank)
    if or_not_finite and not summary.rules and summary.anomalous_tensors:
        yield FiredRule(SEVERITIES.index("critical"), "NaN or Inf", summary.anomalous_tensors, step, rank)


#: The most commits that are read of a run: those of its newest steps, at least one step.
MAX_COMMITS = 256


@dataclass(frozen=True, slots=True)
class Overview:
    """A run, as far as it can be told from its listings and its newest commits."""

    ranks: tuple[int, ...] = ()
    steps: int = 0
    examined_steps: int = 0
    """How many of them, the newest ones, were looked at."""
    last_step: int | None = None
    committed_at: str | None = None
    severity: str | None = None
    """The highest of the rules that fired in the steps that were looked at; of these are the next three."""
    rules: tuple[str, ...] = ()
    rule_steps: tuple[int, ...] = ()
    rule_ranks: tuple[int, ...] = ()
    """Empty for rules over several ranks."""
    damaged: int = 0
    """How many of the commits, and of the findings beside them, are damaged."""
    problem: str | None = None

    @classmethod
    def of(cls, store: DumpStore) -> Overview:
        """Look at a run: list each rank, and read the commits of the newest steps, 256 or those of one step.

        Raises:
            StoreError: the store cannot be read.
        """
        listed = store.listed()
        keys = _newest_keys(listed)
        damages: list[Damage] = []
        steps = store.committed(keys, damages)
        numbers = {opened.key.step for opened in steps if opened.key.step is not None}
        unread: list[str] = []
        series = read_series(store.objects, numbers, unread).values()
        fired = [each for opened in steps for each in rules_fired_in(opened, or_not_finite=True)]
        fired += chain.from_iterable(map(_fired_in_series, series))
        return cls(
            ranks=tuple(sorted({key.rank for key in listed})),
            steps=len({key.step for key in listed}),
            examined_steps=len({key.step for key in keys}),
            last_step=max(numbers, default=None),
            committed_at=max((opened.commit.record.committed_at for opened in steps), default=None),
            damaged=len(damages) + len(unread),
            **_worst_of(fired),
        )


def _fired_in_series(document: SeriesDocument) -> Iterator[FiredRule]:
    for found in document.findings:
        yield FiredRule(SEVERITIES.index(found.severity), found.rule, 1, found.step, found.rank)


def _worst_of(fired: Sequence[FiredRule]) -> dict[str, Any]:
    highest = max((each.severity for each in fired), default=-1)
    worst = [each for each in fired if each.severity == highest]
    counts = Counter[str]()
    for each in worst:
        counts[each.rule] += each.findings
    return {
        "severity": SEVERITIES[highest] if worst else None,
        "rules": tuple(rule for rule, _ in counts.most_common()),
        "rule_steps": tuple(sorted({each.step for each in worst})),
        "rule_ranks": tuple(sorted({each.rank for each in worst if each.rank is not None})),
    }


def _newest_keys(listed: Sequence[StepKey]) -> list[StepKey]:
    counts = Counter(key.step for key in listed)
    newest = sorted(counts, key=lambda step: -(step or 0))
    taken = accumulate(counts[step] for step in newest)
    fitting = {step for step, total in zip(newest, taken, strict=True) if total <= MAX_COMMITS}
    return [key for key in listed if key.step in fitting | {newest[0]}]


#: Runs that are read at once.
_THREADS = 4
#: The most runs of a list. Others are opened by their names.
MAX_RUNS = 500


@dataclass(frozen=True, slots=True)
class ListMoment:
    """What is known of the runs of a list."""

    runs: Mapping[str, Overview | None]
    """By name; None for a run that was not read yet."""
    read_at: float
    """When all of them were read last, in seconds since the epoch; now if they are being read."""

    @property
    def is_complete(self) -> bool:
        """Whether every run was read."""
        return None not in self.runs.values()

    @property
    def token(self) -> str:
        """A word that changes with what is known."""
        return xxhash.xxh3_64_hexdigest(repr(self.runs).encode())


class Run:
    """One store, and what is committed in it."""

    def __init__(
        self,
        name: str,
        url: str,
        options: Mapping[str, Any] | None = None,
        refresh_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.url, self.refresh_s, self._options = name, url, refresh_s, options or {}
        self.store: Refreshed[Moment] = Refreshed(
            self._read, refresh_s, clock, then=lambda moment: moment.prepare(None)
        )

    def _read(self, known: Moment | None) -> Moment:
        if known is None:
            return Moment.of(open_store(self.url, **self._options))
        now = known.later()
        if now is not known:
            now.prepare(known)  # before viewers have it: until then, they see what was prepared before
        return now

    @property
    def away(self) -> str:
        """Why the store did not answer when it was last asked, or has not answered yet; "" if it did."""
        trouble = self.store.trouble
        return f"{self.url}: {trouble}" if trouble.startswith("no answer") else trouble

    def moment(self) -> Moment:
        """Return the run as it is now, or as it was when the store last answered.

        Raises:
            UsageError: the URL does not hold a store.
            StoreError: the store cannot be read and has not been read before.
        """
        return self.store.now()

    def first_moment(self) -> Future[Moment] | None:
        """Return the moment to come of a run that has none yet, so that nobody waits in a thread."""
        return self.store.begin() if self.store.known is None else None

    def is_ready(self, patience_s: float) -> bool:
        """Return whether `moment` returns or raises at once; wait for that a little."""
        begun = self.first_moment()
        return begun is None or bool(wait([begun], patience_s).done)


@dataclass(eq=False)
class Library:
    """The runs of a page, by name."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    refresh_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    unlisted: int = 0
    """How many names behind those of the list were not looked at, because it has `MAX_RUNS` runs."""
    opened: dict[str, Run] = field(default_factory=dict)
    """The runs that somebody has asked for, by name."""
    _overviews: dict[str, Overview] = field(default_factory=dict)
    _is_single: bool | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._names: Refreshed[list[str]] = Refreshed(self._list, self.refresh_s, self.clock)
        self._looked: Refreshed[float] = Refreshed(self._look, self.refresh_s, self.clock)

    @property
    def is_single(self) -> bool:
        """Whether the URL is that of one store, and not of a place that holds stores.

        Raises:
            StoreError: the place cannot be read.
        """
        if self._is_single is None:
            objects = self._objects(self.url)
            try:
                self._is_single = commit.read_root(objects) is not None
            except UsageError:
                self._is_single = False
        return self._is_single

    @property
    def is_list(self) -> bool:
        """Whether the URL is known to be that of a place that holds stores. Asks nobody."""
        return self._is_single is False

    def begin(self) -> None:
        """Begin to read what the first viewer will ask for: a single run.

        Raises:
            UsageError: the place does not have a run.
            StoreError: the place cannot be read.
        """
        names = self.names()
        if self.is_single:
            self.run(names[0]).first_moment()

    def names(self) -> list[str]:
        """Return the names of the runs, in order.

        Raises:
            UsageError: there is none.
            StoreError: the place cannot be read, or is a store whose root is missing.
        """
        if not self.is_single:
            return self._names.now()
        name = PurePosixPath(self.url.rstrip("/")).name
        return [name if name not in ("", "..") else "run"]  # browsers take `..` for the directory above

    def _list(self, known: list[str] | None) -> list[str]:
        objects = self._objects(self.url)
        children = objects.children()
        listed = {*self.opened, *(known or ())}
        names = list(islice((name for name in children if name in listed or self._is_store(name)), MAX_RUNS))
        if not names:
            try:
                require_store(objects, self.url)
            except StoreMissing as exc:
                message = f"{self.url}: no dump-ingest store there, nor directly below"
                raise UsageError(message, hint=exc.hint) from exc
        self.unlisted = len(children) - children.index(names[-1]) - 1 if len(names) == MAX_RUNS else 0
        return names

    def run(self, name: str) -> Run:
        """Return a run by its name.

        Raises:
            UsageError: the run does not exist. A name cannot lead out of the URL: a listing must have it.
        """
        if name not in self.opened and name not in self.names():
            # It may be there though the list does not have it yet, or is too short for it.
            is_new = self.is_list and name in self._objects(self.url).children() and self._is_store(name)
            if not is_new:
                hint = "The first page lists all runs." if self.is_list else ""
                raise UsageError(f"{self.url}: no run {name!r}", hint=hint)
        with self._lock:
            new = Run(name, self._url_of(name), self.options, self.refresh_s)
            return self.opened.setdefault(name, new)

    def listed(self, patience_s: float) -> ListMoment:
        """Return what is known of all runs; wait a little for those that were never read.

        Raises:
            UsageError: there is none.
            StoreError: the place cannot be read.
        """
        names = self.names()
        is_new = any(name not in self._overviews for name in names)
        begun = self._looked.begin(is_due=is_new)
        if is_new:
            wait([begun], patience_s)
        return ListMoment(
            {name: self._overviews.get(name) for name in names}, self._looked.known or time.time()
        )

    def _look(self, _: float | None) -> float:
        names = self.names()
        with ThreadPool(min(_THREADS, len(names))) as pool:
            pool.map(self._look_at, names, chunksize=1)
        return time.time()

    def _look_at(self, name: str) -> None:
        try:
            self._overviews[name] = Overview.of(open_store(self._url_of(name), **self.options))
        except DumpIngestError as exc:
            self._overviews[name] = Overview(problem=exc.message)

    def _url_of(self, name: str) -> str:
        return self.url if self.is_single else f"{self.url.rstrip('/')}/{name}"

    def _objects(self, url: str) -> ObjectStore:
        options = dict(self.options)
        timeout_s = options.pop("timeout_s", None)
        return open_objects(resolve(url, options, timeout_s=timeout_s))

    def _is_store(self, name: str) -> bool:
        if name.startswith("."):
            return False
        try:
            return commit.read_root(self._objects(self._url_of(name))) is not None
        except DumpIngestError:
            return False
