"""A black box beside a job: tensors of the newest steps and of those around incidents stay in the store.

The rules are those of `gc --keep-last N --tensors-around-anomalies N`, carried out as steps are committed.
But a job that has gone NaN has anomalies in every step from then on, and masks have infinities in every step:
only what a rank did not have in its step before is an incident.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ingest.steps.events import DependencyDown, StoreIncident, TensorsDropped, newest_steps
from ingest.store_gc.execute import Execution
from ingest.store_gc.plan import FORMAT, GcAction, GcPlan, GcPolicy
from workers.errors import StoreError, UsageError
from workers.events import Event
from workers.model import StepKey
from workers.store import commit
from workers.store.model import WORSE_THAN_INFO, Totals
from workers.store.objects import ObjectStore

#: How many incidents of a run keep their tensors: a job that is ill for days must fill no store.
INCIDENTS = 8
#: What a step counts that is wrong, unless the step before counts it, too.
_COUNTS = ("nan_count", "pos_inf_count", "neg_inf_count", "overflows")
#: Commits that are held at once.
_AT_ONCE = 256
#: The rest after each second of a turn, the shortest one, and that after a failure, in seconds.
_REST_PER_S, _LEAST_REST_S, _FAILED_PAUSE_S = 9.0, 0.5, 30.0


def anomalies_of(totals: Totals) -> frozenset[str]:
    """Return what is wrong with a step: what it counts, and the rules that found more than information."""
    counted = {name for name in _COUNTS if getattr(totals, name)}
    found = {rule for rule, severity in totals.severities.items() if severity in WORSE_THAN_INFO}
    return frozenset(counted | found)


@dataclass(slots=True)
class _Held:
    """A step whose tensors are in the ring."""

    fingerprint: str
    nbytes: int
    has_tensors: bool
    anomalies: frozenset[str]


@dataclass(slots=True)
class StoreRing:
    """Drops tensors of steps that have left the ring.

    `turn` does it once; `poll` does it in a thread of its own, which nobody waits for. Memory: a few hundred
    bytes for each of the newest 2N steps of each rank, and at first for each step of the store.
    """

    objects: ObjectStore
    steps: int
    """How many of the newest steps of each rank have tensors; also how many before and after an incident."""
    incidents: dict[int, str] = field(default_factory=dict)
    """By step: what was not there before."""
    around: set[int] = field(default_factory=set)
    """The steps that incidents keep, or may keep as soon as pending steps are committed."""
    stop: threading.Event = field(default_factory=threading.Event)
    _held: dict[StepKey, _Held] = field(default_factory=dict)
    _before: dict[int, tuple[int, frozenset[str]]] = field(default_factory=dict)
    """By rank: the newest step that is not in `_held` any more, and its anomalies."""
    _settled: dict[int, set[int]] = field(default_factory=dict)
    """By incident of which all steps around it are known: those steps."""
    _committed: deque[StepKey] = field(default_factory=deque)
    _has_begun: bool = False
    """Whether all that the store had at first was read."""
    _events: list[Event] = field(default_factory=list)
    _is_left: bool = False
    """Whether the last turn passed by a busy step."""
    _thread: threading.Thread | None = None
    _next_at: float = 0.0

    def note(self, key: StepKey) -> None:
        """Note that a step was committed."""
        if key.step is not None:
            self._committed.append(key)

    @property
    def _has_news(self) -> bool:
        return bool(self._committed) or not self._has_begun

    @property
    def is_busy(self) -> bool:
        """Whether steps were committed that no turn has seen, or a turn is at work."""
        return self._has_news or (self._thread is not None and self._thread.is_alive())

    def poll(self, look: Callable[[], tuple[set[int], set[StepKey], set[int]]]) -> list[Event]:
        """Begin a turn if it is time to, and return what happened in those before.

        Args:
            look: returns the ranks, the busy and the pending steps; see `turn`.
        """
        if self._thread is not None and self._thread.is_alive():
            return []
        events, self._events = self._events, []
        is_due = (self._is_left or self._has_news) and time.monotonic() >= self._next_at
        if is_due and not self.stop.is_set():
            # Daemon: a store that does not answer must not keep the process from ending.
            self._thread = threading.Thread(
                target=self._turn, args=look(), name="dump-ingest-ring", daemon=True
            )
            self._thread.start()
        return events

    def _turn(self, ranks: Collection[int], busy: Collection[StepKey], pending: Collection[int]) -> None:
        started = time.monotonic()
        try:
            self._events += self.turn(ranks, busy, pending)
        except (StoreError, UsageError) as exc:  # of usage: the clocks of host and store differ
            down = exc if isinstance(exc, StoreError) else StoreError(exc.message, hint=exc.hint)
            self._events.append(DependencyDown(down))
            self._is_left, self._next_at = True, time.monotonic() + _FAILED_PAUSE_S
        else:
            now = time.monotonic()
            self._next_at = now + max(_REST_PER_S * (now - started), _LEAST_REST_S)

    def turn(
        self, ranks: Collection[int], busy: Collection[StepKey] = (), pending: Collection[int] = ()
    ) -> Iterator[Event]:
        """Read what was committed, find incidents, and drop what has left the ring.

        Args:
            ranks: those of the dump. Whoever watches others drops theirs; incidents of all count.
            busy: steps that are not touched yet, because their source files are still to be read back.
            pending: steps of the dump that are not committed: each may be an incident, and steps are not
                committed in order.

        Yields:
            Incidents, and steps whose tensors were dropped.

        Raises:
            StoreError: the store refused; another turn does what is left.
            UsageError: the clocks of this host and of the store differ.
        """
        new: set[StepKey] = set()
        while self._committed:  # a service adds to it meanwhile
            new.add(self._committed.popleft())
        try:
            self._read(new)
            early = self._early(pending)
            yield from self._incidents_in(pending, early)
            self._protect(pending, early)
        except BaseException:
            self._committed += new
            raise
        self._has_begun = True
        yield from self._drop(ranks, busy, pending)
        self._forget(ranks)

    def _read(self, new: set[StepKey]) -> None:
        keys = self._to_read(new)
        for first in range(0, len(keys), _AT_ONCE):
            for key, record in commit.read_records(self.objects, keys[first : first + _AT_ONCE]).items():
                # Of our own recorder, a black box in the process has decided what is worth its tensors.
                if "recorder" not in record.source.layout.split("+"):
                    self._held[key] = _Held(
                        record.fingerprint,
                        sum(record.stored.values()),
                        record.without_tensors is None,
                        anomalies_of(record.summary),
                    )

    def _to_read(self, new: set[StepKey]) -> list[StepKey]:
        """Return new steps, and the same ones of other ranks; at first all steps of the store."""
        if not self._has_begun:
            return [key for key in commit.list_keys(self.objects) if key.step is not None]
        numbers = {key.step for key in (*self._held, *new)}
        ranks = commit.list_ranks(self.objects)
        unknown = {StepKey(rank, step) for rank in ranks for step in numbers} - self._held.keys()
        return sorted(new | unknown, key=lambda key: key.order)

    def _numbers(self, pending: Collection[int] = ()) -> list[int]:
        return sorted({key.order[0] for key in self._held}.union(pending))

    def _early(self, pending: Collection[int]) -> set[int]:
        numbers = self._numbers(pending)
        places = {number: place for place, number in enumerate(numbers)}
        return {one for step in pending for one in numbers[places[step] + 1 : places[step] + self.steps + 1]}

    def _incidents_in(self, pending: Collection[int], early: Collection[int]) -> Iterator[Event]:
        numbers, reach = self._numbers(pending), self.steps
        places = {number: place for place, number in enumerate(numbers)}
        for key, what in self._found():
            number = key.order[0]
            apart = [places[number] - places.get(one, -reach - 1) for one in self.incidents]
            if number not in early and all(abs(distance) > reach for distance in apart):
                self.incidents[number] = what
                yield StoreIncident(key, what, len(self.incidents) <= INCIDENTS)

    def _protect(self, pending: Collection[int], early: Collection[int]) -> None:
        numbers, open_yet = self._numbers(pending), {*pending, *early}
        kept = open_yet.union(list(self.incidents)[:INCIDENTS]) - self._settled.keys()
        self.around = set()
        for place, number in enumerate(numbers):
            if number not in kept:
                continue
            window = set(numbers[max(place - self.steps, 0) : place + self.steps + 1])
            if number in open_yet or place >= len(numbers) - 2 * self.steps:
                self.around |= window
            else:
                self._settled[number] = window
        self.around.update(*self._settled.values())

    def _found(self) -> list[tuple[StepKey, str]]:
        before, found = {rank: anomalies for rank, (_, anomalies) in self._before.items()}, []
        for key in sorted(self._held, key=lambda key: key.order):
            if key.order[0] < self._before.get(key.rank, (-1,))[0]:
                continue  # it came late, and what was before it is forgotten
            now = self._held[key].anomalies
            # In the first step of a rank, only NaN is: masks have infinities.
            if news := now - before.get(key.rank, now - {"nan_count"}):
                found.append((key, ", ".join(sorted(news))))
            before[key.rank] = now
        return found

    def _left_behind(self, ranks: Collection[int], pending: Collection[int]) -> list[StepKey]:
        stays = self.around | set(self._numbers(pending)[-self.steps :])
        newest = newest_steps(self._held, self.steps)
        with_tensors = [key for key, held in self._held.items() if held.has_tensors and key.rank in ranks]
        return [key for key in with_tensors if key.step not in stays and key not in newest]

    def _drop(
        self, ranks: Collection[int], busy: Collection[StepKey], pending: Collection[int]
    ) -> Iterator[Event]:
        gone = self._left_behind(ranks, pending)
        self._is_left = not set(gone).isdisjoint(busy)
        why = f"no incident within {self.steps} dumped steps"
        actions = tuple(
            GcAction("tensors", key.rank, key.step, held.fingerprint, 0, held.nbytes, why)
            for key in gone
            for held in [self._held[key]]
            if key not in busy
        )
        plan = GcPlan(
            FORMAT,
            self.objects.address.url,
            datetime.now(UTC).isoformat(timespec="seconds"),
            GcPolicy(keep_last=self.steps, tensors_around_anomalies=self.steps),
            actions,
            (),
            0,
        )
        for done in Execution(self.objects, plan).run(self.stop).done:
            if done.action.key is not None and not done.left:
                self._held[done.action.key].has_tensors = False
                yield TensorsDropped(done.action.key, done.objects, done.nbytes)

    def _forget(self, ranks: Collection[int]) -> None:
        for number in self._numbers()[: -3 * self.steps - 3]:
            keys = [key for key in self._held if key.order[0] == number]
            is_decided = number in self.around or not any(
                key.rank in ranks and self._held[key].has_tensors for key in keys
            )
            for key in keys if is_decided else ():
                told = number, self._held.pop(key).anomalies
                self._before[key.rank] = max(told, self._before.get(key.rank, told), key=lambda one: one[0])
