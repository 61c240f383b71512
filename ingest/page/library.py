"""The runs that a page shows, one store or the stores below a URL, and what the list of them says of each."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from multiprocessing.pool import ThreadPool
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import xxhash

from ingest.findings.stored import SeriesDocument, read_series
from ingest.page.moment import Moment
from ingest.page.refreshed import Refreshed
from ingest.reader.damage import Damage
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.require import require_store
from ingest.reader.step import Step
from workers.errors import DumpIngestError, StoreMissing, UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.model import SEVERITIES
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve


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
    """How many steps the store lists."""
    examined_steps: int = 0
    """How many of them, the newest ones, were looked at."""
    last_step: int | None = None
    """The last one that a rank has committed."""
    committed_at: str | None = None
    """When the newest of these commits was made."""
    severity: str | None = None
    """The highest of the rules that fired in the steps that were looked at; of these are the next three."""
    rules: tuple[str, ...] = ()
    """Those with the most findings first."""
    rule_steps: tuple[int, ...] = ()
    rule_ranks: tuple[int, ...] = ()
    """Empty for rules over several ranks."""
    damaged: int = 0
    """How many of the commits, and of the findings beside them, are damaged."""
    problem: str | None = None
    """Why the run cannot be read."""

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


def _worst_of(fired: Sequence[FiredRule]) -> dict[str, Any]:
    """Return what an overview says of rules."""
    highest = max((each.severity for each in fired), default=None)
    if highest is None:
        return {}
    worst = [each for each in fired if each.severity == highest]
    counts: Counter[str] = Counter()
    for each in worst:
        counts[each.rule] += each.findings
    return {
        "severity": SEVERITIES[highest],
        "rules": tuple(rule for rule, _ in counts.most_common()),
        "rule_steps": tuple(sorted({each.step for each in worst})),
        "rule_ranks": tuple(sorted({each.rank for each in worst if each.rank is not None})),
    }


def _fired_in_series(document: SeriesDocument) -> Iterator[FiredRule]:
    """Yield the rules over several steps or ranks that found something in a step."""
    for found in document.findings:
        yield FiredRule(SEVERITIES.index(found.severity), found.rule, 1, found.step, found.rank)


def _newest_keys(listed: Sequence[StepKey]) -> list[StepKey]:
    """Return the keys of the newest steps, as many as may be read."""
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
        """Read nothing yet; `options` are what `open_store` takes besides the URL."""
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
    """What `open_store` takes besides the URL."""
    refresh_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    unlisted: int = 0
    """How many names behind those of the list were not looked at, because it has `MAX_RUNS` runs."""
    _runs: dict[str, Run] = field(default_factory=dict)
    _overviews: dict[str, Overview] = field(default_factory=dict)
    _is_single: bool | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Read nothing yet."""
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

    def has_opened(self, name: str) -> bool:
        """Return whether there is a run of this name, and somebody has asked for it."""
        return name in self._runs

    def begin(self) -> None:
        """Begin to read what the first viewer will ask for: a single run.

        Raises:
            UsageError: the place does not have a run.
            StoreError: the place cannot be read.
        """
        names = self.names()
        if self.is_single:
            self.run(names[0]).first_moment()

    @property
    def is_prepared(self) -> bool:
        """Whether what `begin` has begun is done."""
        return all(run.store.is_settled for run in list(self._runs.values()))

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
        listed = {*self._runs, *(known or ())}
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
        if name not in self._runs and name not in self.names() and not self._is_new(name):
            hint = "The first page lists all runs." if self.is_list else ""
            raise UsageError(f"{self.url}: no run {name!r}", hint=hint)
        with self._lock:
            new = Run(name, self._url_of(name), self.options, self.refresh_s)
            return self._runs.setdefault(name, new)

    def _is_new(self, name: str) -> bool:
        """Return whether a run is there though the list does not have it yet, or is too short for it."""
        return self.is_list and name in self._objects(self.url).children() and self._is_store(name)

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
        """Look at all runs, and return when that ended."""
        names = self.names()
        with ThreadPool(min(_THREADS, len(names))) as pool:
            for name, overview in pool.imap_unordered(lambda name: (name, self._overview(name)), names):
                self._overviews[name] = overview
        return time.time()

    def _overview(self, name: str) -> Overview:
        try:
            return Overview.of(open_store(self._url_of(name), **self.options))
        except DumpIngestError as exc:
            return Overview(problem=exc.message)

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
