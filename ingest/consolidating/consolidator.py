"""The consolidator: keeps the cubes up to date with the commits.

The cubes hold nothing of their own, so they may be deleted and written again at any time. To take a step in,
the consolidator first writes objects that nobody reads yet, and then the metadata of the cubes, which says
that they are there. Killed at any moment, it goes on from where the metadata says it was.

A listing tells what one rank has committed, so listing every rank in every round costs a run of ten thousand
ranks ten thousand requests, most of which tell nothing new. Ranks of one job dump the same steps. So a round
of `follow` lists `WINDOW` ranks in turn, and lists every rank when one of these shows a step that no rank had
before. What is listed is what is committed; only *when* a rank is listed differs. See
docs/design/007-consolidated-view.md.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from ingest.consolidating.cube_writer import CubeWriter, RoundPlan, copy_commits, cut_blocks, write_steps
from ingest.consolidating.lease import VIEW_LEASE, Lease
from ingest.dispatch.runners import RunJobs, in_threads
from ingest.findings.series import StepFindings
from ingest.findings.stored import SeriesEvaluator, SeriesRead, known_series, read_series
from ingest.reader.require import require_store
from ingest.reader.verifying import verify_view
from ingest.steps.events import AnomalousCommitRead
from workers.events import Event, Observer
from workers.host.heartbeat import beat
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import BEGUN, DONE, REMOVED, Commit, path_of, read_announcements
from workers.store.consolidated.cubes import REBUILD_HINT, CubeState
from workers.store.objects import ObjectStore

#: Ranks that each round lists in turn. Runs with at most this many ranks are listed whole in every round.
WINDOW = 512
#: An object store answers each listing after tens of milliseconds.
_LISTINGS_AT_ONCE = 64
#: Ranks that are listed before the lease is looked after.
_LISTINGS_OF_A_BATCH = 512

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CommittedSteps:
    """The steps that are committed, and how they differ from those in the cubes."""

    by_rank: Mapping[int, Steps] = field(default_factory=dict)
    """The steps of each rank that has any, (n,), ascending."""
    new: set[StepKey] = field(default_factory=set)
    """Committed, and not in the cubes."""
    gone: set[StepKey] = field(default_factory=set)
    """In the cubes, and no longer committed."""

    @property
    def keys(self) -> set[StepKey]:
        """All committed steps."""
        return {StepKey(rank, step) for rank, steps in self.by_rank.items() for step in steps.tolist()}

    def __contains__(self, key: StepKey) -> bool:
        return key.rank in self.by_rank and key.step in self.by_rank[key.rank]


@dataclass(slots=True, eq=False)
class CommitListing:
    """The steps of each rank, at the time when the rank was last listed.

    Memory: 8 bytes for each step and rank of the run.
    """

    objects: ObjectStore
    _steps: dict[int, Steps] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    """Every step that any rank had."""
    _listed_last: int = -1
    """The rank at which the last window ended; the next one begins behind it."""

    def list_all(self, *, keep: Callable[[], None]) -> None:
        """List every rank.

        Args:
            keep: called between listings.

        Raises:
            StoreError: the store refused.
        """
        self._known |= self._list(self._current_ranks(), keep)

    def list_due(self, *, lacking: Collection[int], named: Iterable[int], keep: Callable[[], None]) -> None:
        """List the ranks that may have news, and the next `WINDOW` in turn; every rank if a step is new.

        Args:
            lacking: steps that wait for ranks; ranks that lack one of them are listed.
            named: ranks that are listed in any case.
            keep: called between listings.

        Raises:
            StoreError: the store refused.
        """
        ranks = self._current_ranks()
        unlisted = ranks - self._steps.keys()
        wanted = np.array([*lacking], np.int64)
        that_lack = {rank for rank, listed in self._steps.items() if not np.isin(wanted, listed).all()}
        window = sorted(ranks, key=lambda rank: (rank <= self._listed_last, rank))[:WINDOW]
        self._listed_last = window[-1] if window else -1
        chosen = unlisted | that_lack | (ranks & {*named}) | {*window}
        steps = self._list(chosen, keep)
        if not steps <= self._known:
            steps |= self._list(ranks - chosen, keep)
        self._known |= steps

    def compare(self, writer: CubeWriter | None) -> CommittedSteps:
        """Compare the listed steps with those in the cubes of `writer`; None without cubes."""
        held_by_rank = writer.steps_by_rank() if writer else {}
        committed = CommittedSteps({rank: steps for rank, steps in self._steps.items() if len(steps)})
        nothing = np.zeros(0, np.int64)
        for rank in {*committed.by_rank, *held_by_rank}:
            listed, held = committed.by_rank.get(rank, nothing), held_by_rank.get(rank, nothing)
            if np.array_equal(listed, held):
                continue
            in_store, in_cubes = set(listed.tolist()), set(held.tolist())
            committed.new.update(StepKey(rank, step) for step in in_store - in_cubes)
            committed.gone.update(StepKey(rank, step) for step in in_cubes - in_store)
        return committed

    def _current_ranks(self) -> set[int]:
        ranks = set(commit.list_ranks(self.objects))
        for rank in self._steps.keys() - ranks:
            del self._steps[rank]
        return ranks

    def _list(self, ranks: Collection[int], keep: Callable[[], None]) -> set[int]:
        all_steps: set[int] = set()
        if not ranks:
            return all_steps
        in_order = sorted(ranks)
        at_once = min(_LISTINGS_AT_ONCE, len(in_order))
        with ThreadPoolExecutor(at_once, thread_name_prefix="dump-ingest-list") as threads:
            for start in range(0, len(in_order), _LISTINGS_OF_A_BATCH):
                keep()
                batch = in_order[start : start + _LISTINGS_OF_A_BATCH]
                listings = threads.map(lambda rank: commit.list_steps(self.objects, rank), batch)
                for rank, steps in zip(batch, listings, strict=True):
                    all_steps |= steps
                    self._steps[rank] = np.array(sorted(steps), np.int64)
        keep()
        return all_steps


def clear_announcements(
    objects: ObjectStore,
    announced: Mapping[StepKey, Sequence[str]],
    commits: Mapping[StepKey, Commit],
    damaged: Collection[StepKey],
) -> None:
    """Delete the announcements that are dealt with.

    These are announcements of commits that were read, of commits that others have replaced since, of removals
    that have happened, and of changes that were done before the commits were read.

    Args:
        objects: the store.
        announced: from `read_announcements`.
        commits: the commits that were read afterwards.
        damaged: the steps whose commits could not be read.
    """
    settled = [
        (key, word)
        for key, words in announced.items()
        for word in _settled(words, commits.get(key), is_damaged=key in damaged)
    ]
    # What says that a change is done goes last: that it has begun, alone, would stand for good.
    for is_last in (False, True):
        objects.delete_many([path_of(key, word) for key, word in settled if word.startswith(DONE) == is_last])


def _settled(words: Sequence[str], committed: Commit | None, *, is_damaged: bool) -> Iterator[str]:
    for word in words:
        if word.startswith(DONE):
            yield f"{BEGUN}{word.removeprefix(DONE)}"
            yield word
        elif word == REMOVED:
            # A removal is announced before it happens: the announcement stands until it has happened.
            if committed is None and not is_damaged:
                yield word
        elif committed is not None and word in committed.record.generations:
            yield word


#: Steps for which rules are evaluated in one round, so that the cubes do not wait for a long history.
_EVALUATED_AT_ONCE = 16
#: Full blocks of steps that are written into the cubes by tensor in one round, for the same reason.
_CUT_AT_ONCE = 4
#: A round of a long run takes long. When nothing is left to do, `follow` rests this many times as long as the
#: round took, and at most this long.
_REST, _LONGEST_REST_S = 3.0, 30.0
#: Between rounds the heart beats that often, in seconds.
_BEAT_S = 10.0


@dataclass(frozen=True, slots=True)
class CommitsListed(Event):
    """A round of the consolidator has listed the commits."""

    committed: Mapping[int, int]
    behind: tuple[int, ...]
    """Steps that a rank has committed and the cubes do not have of that rank."""
    newest: int
    """The highest step in the cubes; -1 if they have none."""


@dataclass(frozen=True, slots=True)
class StepsConsolidated(Event):
    """A round of the consolidator has ended."""

    appended: tuple[int, ...] = ()
    rewritten: tuple[int, ...] = ()
    """Steps that were in the cubes, and of which a rank came late, was dumped again, or is gone."""
    waiting: tuple[int, ...] = ()
    """Steps that some ranks have not committed yet."""
    damaged: tuple[str, ...] = ()
    """Commits, tables and cubes that could not be read, and why."""
    findings: tuple[StepFindings, ...] = ()
    """What rules over several steps or ranks found in each step that was evaluated."""

    def __bool__(self) -> bool:
        return bool(self.appended or self.rewritten or self.findings)


@dataclass(slots=True, eq=False)
class Consolidator:
    """Takes commits into the cubes of one store. A context manager: it holds a lease.

    Memory: as much as `CubeWriter`, and the value that `run` returns.
    """

    objects: ObjectStore
    run: RunJobs = in_threads
    patience_s: float = 0.0
    """How long a step waits for the ranks that have steps but not yet this one."""
    clock: Callable[[], float] = time.monotonic
    observers: list[Observer] = field(default_factory=list)
    """Called at the start and at the end of every round."""
    evaluator: SeriesEvaluator | None = None
    """Evaluates rules over several steps or ranks; None if there are none."""
    _lease: Lease | None = None
    _listing: CommitListing | None = None
    _writer: CubeWriter | None = None
    _waiting_since: Mapping[int, float] = field(default_factory=dict)
    _unreadable: Mapping[StepKey, tuple[str, str]] = field(default_factory=dict)
    """Committed generations of which the tables are damaged, and why."""
    _evaluated: bool = False
    """Whether rules were evaluated for every step in the cubes."""

    def __enter__(self) -> Self:
        self._lease = Lease(self.objects, VIEW_LEASE, f"the consolidated view of {self.objects.address.url}")
        self._lease.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def once(
        self, *, check: bool = False, rebuild: bool = False, limit: int = 0, listed_in_turn: bool = False
    ) -> StepsConsolidated:
        """Bring the cubes up to date with what is committed now.

        Args:
            check: read every commit, not only those that the cubes do not have and those that were announced
                as replaced; and every cube: if one is damaged, all of them are written again.
            rebuild: delete the cubes and write them again.
            limit: evaluate rules for at most this many steps, and write at most four of the blocks of steps
                that the cubes by tensor lack. The rest is left to the next round. 0 for all.
            listed_in_turn: list only the ranks that may have news, and some of the others: one round after
                the other, see `CommitListing`.

        Raises:
            LeaseHeld: another process writes the cubes.
            UsageError: the store does not exist.
            StoreError: the store refused.
        """
        require_store(self.objects, self.objects.address.url)
        self._keep_lease()
        # What is damaged in the cubes is in the commits: they are written again.
        rebuild = rebuild or (check and any(verify_view(self.objects)))
        # If this round fails, what the writer holds is not what was written.
        known, self._writer = self._writer, None
        self._writer = CubeWriter.load(self.objects, known, rebuild=rebuild)
        if check or rebuild:
            self._unreadable = {}
        try:
            return self._run_round(check=check, limit=limit, listed_in_turn=listed_in_turn)
        except BaseException:
            self._writer = self._listing = None
            self._evaluated = False
            raise

    def _run_round(self, *, check: bool, limit: int, listed_in_turn: bool) -> StepsConsolidated:
        announced = read_announcements(self.objects)
        listed = self._list({key.rank for key in announced} if listed_in_turn else None)
        asked = listed.keys if check else {*listed.new, *(key for key in announced if key in listed)}
        commits, damaged = commit.read_many(self.objects, sorted(asked, key=lambda key: key.order))
        for committed in commits.values():  # the watcher may have ended before it was asked
            if (event := AnomalousCommitRead.of(committed.record)) is not None:
                self._emit(event)
        plan = self._plan(commits, listed, asked, damaged)
        if plan.rewrite or plan.append:
            if self._writer is None:
                fresh = {key: commits[key] for key in plan.fresh}
                self._writer = CubeWriter.create(self.objects, fresh, len(listed.by_rank))
            damage = write_steps(self._writer, self.run, self._keep_lease, plan, commits)
            self._unreadable = {**self._unreadable, **damage}
            self._evaluated = False
        uncuttable: tuple[str, ...] = ()
        if self._writer is not None:
            self._keep_lease()
            # Commits that have changed within their generation, or are gone.
            copy_commits(self._writer, {*announced, *listed.gone, *(asked if check else ())}, commits)
            cut_blocks(self._writer, self.run, self._keep_lease, _CUT_AT_ONCE if limit else 0)
            uncuttable = tuple(f"{reason}. {REBUILD_HINT}" for reason in self._writer.uncuttable.values())
        clear_announcements(self.objects, announced, commits, damaged)
        reasons = damaged | {key: reason for key, (_, reason) in self._unreadable.items()}
        findings: list[StepFindings] = []
        try:
            self._evaluate(findings, limit)
        finally:  # what was written is reported now, or never
            done = StepsConsolidated(
                tuple(plan.append),
                tuple(plan.rewrite),
                plan.waiting,
                (*(f"{key}: {why.removeprefix(f'{key}: ')}" for key, why in reasons.items()), *uncuttable),
                tuple(findings),
            )
            self._emit(done)
        return done

    def _plan(
        self,
        commits: Mapping[StepKey, Commit],
        listed: CommittedSteps,
        asked: AbstractSet[StepKey],
        damaged: Collection[StepKey],
    ) -> RoundPlan:
        """Decide what a round writes when its commits have been read.

        Args:
            commits: those of `asked` that exist.
            listed: the committed steps.
            asked: steps whose commits were read, or found missing or damaged.
            damaged: steps whose commits are damaged.
        """
        held, names = self._writer, {key: committed.fingerprint for key, committed in commits.items()}
        name_held: Callable[[StepKey], str] = held.fingerprint if held else lambda _: ""
        # Damaged generations that commits still point to.
        self._unreadable = {key: own for key, own in self._unreadable.items() if names.get(key) == own[0]}
        fresh = {key for key, name in names.items() if name != name_held(key)} - self._unreadable.keys()
        # Steps of the cubes that were listed, and had no commit when it was read, are gone, too.
        absent = asked - names.keys() - {*damaged}
        gone = {*listed.gone, *(key for key in absent if name_held(key))}
        rewrite: dict[int, set[int]] = {}
        new: dict[int, set[int]] = {}
        for step, own in sorted(_ranks_by_step(fresh, gone).items()):
            if held and held.has(step):
                keys = {StepKey(rank, step) for rank in held.ranks} - gone
                rewrite[step] = own | {key.rank for key in keys if name_held(key)}
            else:
                new[step] = own
        append = self._ready(new, listed.by_rank.keys())
        return RoundPlan(fresh, rewrite, append, tuple(sorted(new.keys() - append.keys())))

    def _ready(self, new: Mapping[int, set[int]], ranks: AbstractSet[int]) -> dict[int, set[int]]:
        """Return the new steps that all ranks have, or that have waited long enough for the others."""
        now = self.clock()
        since = {**dict.fromkeys(new, now), **self._waiting_since}
        ready = {
            step: has for step, has in new.items() if has == ranks or now - since[step] >= self.patience_s
        }
        self._waiting_since = {step: at for step, at in since.items() if step not in ready}
        return ready

    def _list(self, announced: Collection[int] | None) -> CommittedSteps:
        """List the commits, and report it. Cubes that were begun for fewer ranks are deleted.

        Args:
            announced: ranks with replaced or removed commits, to list them and those whose turn it is; None
                to list every rank.
        """
        listing, keep = self._listing or CommitListing(self.objects), partial(self._keep_lease, in_time=True)
        if announced is None:
            listing.list_all(keep=keep)
        else:
            listing.list_due(
                lacking=self._waiting_since, named=announced, keep=partial(self._keep_lease, in_time=True)
            )
        self._listing = listing
        listed = listing.compare(self._writer)
        if self._writer is not None and self._writer.is_outgrown(len(listed.by_rank)):
            self._writer = CubeWriter.load(self.objects, None, rebuild=True)
            listed = listing.compare(self._writer)
        self._emit(
            CommitsListed(
                {rank: int(steps[-1]) for rank, steps in listed.by_rank.items()},
                tuple(sorted({key.step for key in listed.new if key.step is not None})),
                max(self._writer.steps, default=-1) if self._writer else -1,
            )
        )
        return listed

    def state(self) -> CubeState | None:
        """Return the state of the cubes; None if nothing has been taken in yet."""
        return None if self._writer is None else self._writer.state

    def follow(
        self, stop: threading.Event, *, poll_s: float, observe: Callable[[StepsConsolidated], None]
    ) -> None:
        """Run rounds until `stop` is set; call `observe` after every round in which something changed.

        Raises:
            LeaseHeld: another process writes the cubes.
        """
        while not stop.is_set():
            started = time.monotonic()
            done = self.once(limit=_EVALUATED_AT_ONCE, listed_in_turn=True)
            if done:
                observe(done)
            rest_s = min(_REST * (time.monotonic() - started), _LONGEST_REST_S) if self._evaluated else 0.0
            _wait(stop, max(poll_s, rest_s))

    def _evaluate(self, findings: list[StepFindings], limit: int) -> None:
        """Evaluate rules for the steps of the cubes for which nobody has done it; add what they find.

        An error ends it; the findings in the steps before stand.
        """
        if self.evaluator is None or self._writer is None or self._evaluated:
            return
        generations = self._writer.generations()
        findings.extend(self.evaluator.evaluate(generations, limit=limit, keep=self._keep_lease))
        self._evaluated = not limit or len(findings) < limit

    def _emit(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)

    def _keep_lease(self, *, in_time: bool = False) -> None:
        beat()
        if self._lease is not None and (not in_time or self._lease.is_due):
            self._lease.keep()


def _ranks_by_step(fresh: AbstractSet[StepKey], gone: AbstractSet[StepKey]) -> dict[int, set[int]]:
    ranks: dict[int, set[int]] = {}
    for key in fresh | gone:
        if key.step is not None:
            of_step = ranks.setdefault(key.step, set())
            if key not in gone:
                of_step.add(key.rank)
    return ranks


def _wait(stop: threading.Event, seconds: float) -> None:
    """Wait for some time, or until `stop` is set. However long it is, the process does not hang meanwhile."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0 and not stop.wait(min(left_s, _BEAT_S)):
        beat()


#: Of how many ranks the last commit is read at most: those with the highest steps.
_RANKS = 1024
#: Of how many steps the findings over several ranks are read: the last ones.
_STEPS = 16


@dataclass(slots=True)
class LastFindings:
    """Reports the findings of the last step of each rank, once; an observer of a consolidator.

    The round that follows reads only what is new. Without this, what was found while no consolidator ran
    would be told by the watcher alone, which may have ended.
    """

    objects: ObjectStore
    notify: Observer
    _is_done: bool = field(default=False, init=False)

    def observe(self, event: Event) -> None:
        """Read the last commits when they are listed for the first time.

        Raises:
            StoreError: the store refused.
        """
        if isinstance(event, CommitsListed) and not self._is_done:
            newest = heapq.nlargest(_RANKS, event.committed.items(), key=lambda item: item[1])
            keys = [StepKey(rank, step) for rank, step in newest]
            for record in commit.read_records(self.objects, keys).values():
                if (anomalous := AnomalousCommitRead.of(record)) is not None:
                    self.notify(anomalous)
            steps = sorted({step for step, _ in known_series(self.objects)})[-_STEPS:]
            for document in read_series(self.objects, steps, []).values() if steps else ():
                self.notify(SeriesRead(document.step, document.findings, document.evaluated_at_s))
            self._is_done = True
