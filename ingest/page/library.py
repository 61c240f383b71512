"""The runs that a page shows, one store or the stores below a URL, and what the list of them says of each."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import xxhash

from ingest.findings.stored import SeriesDocument, read_series
from ingest.page.moment import Moment
from ingest.reader.damage import Damage
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.require import require_store
from ingest.reader.step import Step
from workers.errors import DumpIngestError, StoreError, StoreMissing, UsageError
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


def rules_fired_in(opened: Step) -> Iterator[FiredRule]:
    """Yield the rules that found something in a step of one rank."""
    summary = opened.commit.summary
    for rule, count in summary.findings.items():
        severity = SEVERITIES.index(summary.severities.get(rule, "info"))
        yield FiredRule(severity, rule, count, opened.key.step or 0, opened.key.rank)


#: The most commits that are read of a run: those of its newest steps, at least one step.
MAX_COMMITS = 256
#: What stands in the place of rules in a step of which no rule was evaluated.
NOT_FINITE = "NaN or Inf"


@dataclass(frozen=True, slots=True)
class Worst:
    """What rules of the highest severity that fired have found."""

    severity: str
    rules: tuple[str, ...]
    """Those with the most findings first."""
    ranks: tuple[int, ...]
    """Empty for rules over several ranks."""
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """A run, as far as it can be told from its listings and its newest commits."""

    ranks: tuple[int, ...] = ()
    steps: int = 0
    """How many steps the store lists."""
    examined: int = 0
    """How many of them, the newest ones, were looked at."""
    last_step: int | None = None
    """The last one that a rank has committed."""
    committed_at: str = ""
    """When the newest of these commits was made; "" if there is none."""
    worst: Worst | None = None
    """None if no rule fired in the steps that were looked at."""
    damaged: int = 0
    """How many of their commits, and of the findings beside them, are damaged."""
    problem: str = ""
    """Why the run cannot be read; "" if it can."""

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
        series = read_series(store.objects, numbers, unread)
        return cls(
            ranks=tuple(sorted({key.rank for key in listed})),
            steps=len({key.step for key in listed}),
            examined=len({key.step for key in keys}),
            last_step=max(numbers, default=None),
            committed_at=max((opened.commit.record.committed_at for opened in steps), default=""),
            worst=_worst([*_of_steps(steps), *_of_series(series.values())]),
            damaged=len(damages) + len(unread),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, for the API."""
        worst = self.worst
        return {
            "ranks": list(self.ranks),
            "steps": self.steps,
            "examined_steps": self.examined,
            "last_step": self.last_step,
            "committed_at": self.committed_at or None,
            "severity": worst and worst.severity,
            "rules": list(worst.rules) if worst else [],
            "rule_steps": list(worst.steps) if worst else [],
            "rule_ranks": list(worst.ranks) if worst else [],
            "damaged": self.damaged,
            "problem": self.problem or None,
        }


def _newest_keys(listed: Sequence[StepKey]) -> list[StepKey]:
    """Return the keys of the newest steps, as many as may be read."""
    counts = Counter(key.step for key in listed)
    taken = 0
    wanted: set[int | None] = set()
    for step in sorted(counts, key=lambda step: -(step or 0)):
        taken += counts[step]
        if wanted and taken > MAX_COMMITS:
            break
        wanted.add(step)
    return [key for key in listed if key.step in wanted]


def _of_steps(steps: Sequence[Step]) -> Iterator[FiredRule]:
    critical = SEVERITIES.index("critical")
    for opened in steps:
        yield from rules_fired_in(opened)
        summary, key = opened.commit.summary, opened.key
        if not summary.rules and summary.anomalous_tensors:
            yield FiredRule(critical, NOT_FINITE, summary.anomalous_tensors, key.step or 0, key.rank)


def _of_series(documents: Iterable[SeriesDocument]) -> Iterator[FiredRule]:
    for document in documents:
        for finding in document.findings:
            yield FiredRule(SEVERITIES.index(finding.severity), finding.rule, 1, finding.step, finding.rank)


def _worst(fired: Sequence[FiredRule]) -> Worst | None:
    severity = max((each.severity for each in fired), default=None)
    if severity is None:
        return None
    chosen = [each for each in fired if each.severity == severity]
    counts: Counter[str] = Counter()
    for each in chosen:
        counts[each.rule] += each.findings
    return Worst(
        SEVERITIES[severity],
        tuple(rule for rule, _ in counts.most_common()),
        tuple(sorted({each.rank for each in chosen if each.rank is not None})),
        tuple(sorted({each.step for each in chosen})),
    )


#: Runs that are read at once.
_THREADS = 4
#: The list is left alone for at least this many times the time that reading it took.
_REST = 10


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


@dataclass(eq=False)
class Overviews:
    """Reads all runs of a list, once for all viewers, who see what was read last."""

    read: Callable[[str], Overview]
    """Returns the overview of a run by its name, and raises nothing."""
    refresh_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Overview] = field(default_factory=dict)
    _done: threading.Event | None = None
    """Set when the newest reading ended; None before the first one."""
    _due_at: float = 0.0
    """When the runs are read again, by `clock`."""
    _read_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def moment(self, names: Sequence[str], patience_s: float) -> ListMoment:
        """Return what is known of these runs; wait a little for those that were never read."""
        done = self._begin(names)
        if not self._knows(names):
            done.wait(patience_s)
        return ListMoment({name: self._known.get(name) for name in names}, self._read_at or time.time())

    def _knows(self, names: Sequence[str]) -> bool:
        return all(name in self._known for name in names)

    def _begin(self, names: Sequence[str]) -> threading.Event:
        """Begin to read the runs if it is time to, or one is new; return the end of the newest reading."""
        with self._lock:
            done = self._done
            if done is None or (done.is_set() and (self.clock() >= self._due_at or not self._knows(names))):
                done = self._done = threading.Event()
                # A daemon: a store that hangs does not keep the server from ending.
                threading.Thread(
                    target=self._read_all, args=(names, done), name="dump-ingest-overviews", daemon=True
                ).start()
            return done

    def _read_all(self, names: Sequence[str], done: threading.Event) -> None:
        begun = self.clock()
        try:
            with ThreadPool(min(_THREADS, len(names))) as pool:
                for name, overview in pool.imap_unordered(lambda name: (name, self.read(name)), names):
                    self._known[name] = overview
        finally:  # whatever happens, the next viewer has them read again
            self._read_at, ended = time.time(), self.clock()
            self._due_at = ended + max(self.refresh_s, _REST * (ended - begun))
            done.set()


#: The most runs of a list. Others are opened by their names.
MAX_RUNS = 500
#: How long somebody who comes after a while waits for the store, in seconds.
_PATIENCE_S = 2.0
#: A store that takes longer than this to answer counts as away, in seconds.
_SLOW_S = 10.0
#: How long an error of a store that was never read stands at most: until then, viewers are told the same.
_RETRY_S = 3.0


@dataclass(eq=False)
class Run:
    """One store, which is read again when it is asked for and its moment is older than `refresh_s`.

    It is read in a thread of its own, once for all viewers, who get the moment before until that is done: an
    answer does not wait for the store. Only who comes after a while in which nobody looked waits a little.
    """

    name: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What `open_store` takes besides the URL."""
    refresh_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _moment: Moment | None = None
    _asked_at: float = 0.0
    """When the store was asked last, by `clock`."""
    _read_at: float = 0.0
    """When that ended."""
    _reading: Future[Moment] | None = None
    """The answer to it; None before the first time."""
    _away: str = ""
    """Why the store could not be read the last time; "" if it could."""
    is_prepared: bool = False
    """Whether its first moment was read and searched for incidents, or could not be."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def away(self) -> str:
        """Why the store did not answer when it was last asked, or has not answered yet; "" if it did."""
        reading = self._reading
        if self._moment is not None and reading is not None and not reading.done():
            waited_s = self.clock() - self._asked_at
            if waited_s > _SLOW_S:
                return self._away or f"{self.url}: no answer for more than {_SLOW_S:g} s"
        return self._away

    def moment(self) -> Moment:
        """Return the run as it is now, or as it was when the store last answered.

        Raises:
            UsageError: the URL does not hold a store.
            StoreError: the store cannot be read and has not been read before.
        """
        known, begun = self._begin()
        if known is None:
            return begun.result()
        if self.clock() - self._read_at >= 2 * self._pause_s:
            # Nobody has looked for a while, or the store hangs: no longer than this after it was asked.
            wait([begun], max(self._asked_at + _PATIENCE_S - self.clock(), 0))
        return begun.result() if begun.done() else known

    def begin(self) -> None:
        """Begin to read the store, unless that has been done."""
        if self._moment is None:
            self._begin()

    def first_moment(self) -> Future[Moment] | None:
        """Return the moment to come of a run that has none yet, so that nobody waits in a thread."""
        known, begun = self._begin()
        return begun if known is None else None

    def is_ready(self, patience_s: float) -> bool:
        """Return whether `moment` returns or raises at once; wait for that a little."""
        known, begun = self._begin()
        return known is not None or bool(wait([begun], patience_s).done)

    @property
    def _pause_s(self) -> float:
        """How long the store is left alone: the longer, the longer it took to answer."""
        return self.refresh_s * max(1.0, self._read_at - self._asked_at)

    def _begin(self) -> tuple[Moment | None, Future[Moment]]:
        """Ask the store if it is time to; return what is known, and the newest answer, perhaps to come."""
        with self._lock:
            reading = self._reading
            pause_s = min(self.refresh_s, _RETRY_S) if self._moment is None else self._pause_s
            if reading is None or (reading.done() and self.clock() - self._read_at >= pause_s):
                reading = self._reading = Future()
                self._asked_at = self.clock()
                # A daemon: a store that hangs does not keep the server from ending.
                threading.Thread(
                    target=self._read, args=(self._moment, reading), name="dump-ingest-run", daemon=True
                ).start()
            return self._moment, reading

    def _read(self, known: Moment | None, answer: Future[Moment]) -> None:
        """Answer with the run as it is now; as it was before if the store does not answer."""
        try:
            self._answer(known, answer)
        finally:
            self.is_prepared = True

    def _answer(self, known: Moment | None, answer: Future[Moment]) -> None:
        try:
            now = Moment.of(open_store(self.url, **self.options)) if known is None else known.later()
        except StoreError as exc:
            self._settle(known, exc.message)
            if known is None:
                answer.set_exception(exc)
            else:
                answer.set_result(known)
        except BaseException as exc:  # noqa: BLE001  (whoever asked gets it)
            self._settle(known, "")
            answer.set_exception(exc)
        else:
            if known is not None and now is not known:
                now.prepare(known)  # before viewers have it: until then, they see what was prepared before
            self._settle(now, "")
            answer.set_result(now)
            if known is None:
                now.prepare(None)

    def _settle(self, moment: Moment | None, away: str) -> None:
        with self._lock:
            self._moment, self._away = moment, away
            # A reading that failed took the time of its timeouts, which says nothing about the store.
            self._read_at = self.clock()
            if away:
                self._asked_at = self._read_at


@dataclass(eq=False)
class Library:
    """The runs of a page, by name."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What `open_store` takes besides the URL."""
    refresh_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _names: list[str] = field(default_factory=list)
    """The runs that were listed last; listed again after `refresh_s`."""
    unlisted: int = 0
    """How many names behind these were not looked at, because there are `MAX_RUNS` runs before them."""
    _listed_at: float = 0.0
    _runs: dict[str, Run] = field(default_factory=dict)
    _is_single: bool | None = None
    _listing: threading.Lock = field(default_factory=threading.Lock)
    """Held by who lists the runs."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

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
        with self._lock:
            return name in self._runs

    def begin(self) -> None:
        """Begin to read what the first viewer will ask for: a single run.

        Raises:
            UsageError: the place does not have a run.
            StoreError: the place cannot be read.
        """
        names = self.names()
        if self.is_single:
            self.run(names[0]).begin()

    @property
    def is_prepared(self) -> bool:
        """Whether what `begin` has begun is done."""
        return all(run.is_prepared for run in list(self._runs.values()))

    def names(self) -> list[str]:
        """Return the names of the runs, in order.

        Raises:
            UsageError: there is none.
            StoreError: the place cannot be read, or is a store whose root is missing.
        """
        if self.is_single:
            name = PurePosixPath(self.url.rstrip("/")).name
            return [name if name not in ("", "..") else "run"]  # browsers take `..` for the directory above
        if self._names and self.clock() - self._listed_at < self.refresh_s:
            return self._names
        if not self._listing.acquire(blocking=not self._names):
            return self._names  # a place that hangs keeps one viewer waiting, and not all
        try:
            self._list()
        finally:
            self._listing.release()
        return self._names

    def _list(self) -> None:
        objects = self._objects(self.url)
        with self._lock:
            known = set(self._runs) | set(self._names)
        children = objects.children()
        stores = (name for name in children if name in known or self._is_store(name))
        names = list(islice(stores, MAX_RUNS))
        if not names:
            try:
                require_store(objects, self.url)
            except StoreMissing as exc:
                message = f"{self.url}: no dump-ingest store there, nor directly below"
                raise UsageError(message, hint=exc.hint) from exc
        self.unlisted = len(children) - children.index(names[-1]) - 1 if len(names) == MAX_RUNS else 0
        self._names, self._listed_at = names, self.clock()

    def run(self, name: str) -> Run:
        """Return a run by its name.

        Raises:
            UsageError: the run does not exist. A name cannot lead out of the URL: a listing must have it.
        """
        with self._lock:
            if name in self._runs:
                return self._runs[name]
        if name not in self.names() and not self._is_unlisted_run(name):
            raise UsageError(
                f"{self.url}: no run {name!r}", hint="The first page lists all runs." if self.is_list else ""
            )
        with self._lock:
            return self._runs.setdefault(name, Run(name, self._url_of(name), self.options, self.refresh_s))

    @cached_property
    def overviews(self) -> Overviews:
        """The overviews of the runs, for the list of them."""
        return Overviews(self._overview, self.refresh_s, self.clock)

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

    def _is_unlisted_run(self, name: str) -> bool:
        if not self.unlisted:
            return False
        return name in self._objects(self.url).children() and self._is_store(name)

    def _is_store(self, name: str) -> bool:
        if name.startswith("."):
            return False
        try:
            objects = self._objects(self._url_of(name))
            return commit.read_root(objects) is not None
        except DumpIngestError:
            return False
