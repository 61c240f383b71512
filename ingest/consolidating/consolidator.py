"""The consolidator: keeps the consolidated view up to date with the commits.

The view holds nothing of its own, so it may be thrown away and made again at any time. A step is taken in by
writing objects that nobody looks at yet, and then the metadata of the view, which says that they are there;
killed at any moment, it goes on where its metadata says it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeAlias

from ingest.consolidating.cube_writer import CubeWriter
from ingest.consolidating.lease import Lease
from ingest.dispatch.window import run_in_order
from ingest.findings.evaluator import SeriesEvaluator
from ingest.findings.series import StepFindings
from ingest.reader.catalog import no_store
from workers.events import Event, Observer
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED, REMOVED, Commit
from workers.store.cubes import GROUP, CubeState
from workers.store.objects import ObjectStore
from workers.tasks.consolidate import ConsolidateJob, ConsolidateResult, UnknownTensors, consolidate

if TYPE_CHECKING:
    from distributed import Client

Runner: TypeAlias = Callable[[Sequence[ConsolidateJob]], Iterable[ConsolidateResult]]

_THREADS = 2
#: Tasks of a Dask cluster that are under way at once: each returns the counts of a step.
_TASKS_AT_ONCE = 32
#: Steps for which rules are evaluated in one round, so that the view does not wait for a long history.
_EVALUATED_AT_ONCE = 16
#: A round of a long run takes long. When nothing is left to do, `follow` rests so many times as long as it
#: took, and not longer than this.
_REST, _LONGEST_REST_S = 3.0, 30.0
_LEASE = f"{GROUP}/lease"


@dataclass(frozen=True, slots=True)
class StepsConsolidated(Event):
    """What one round of the consolidator came to."""

    appended: tuple[int, ...] = ()
    """Steps that are new in the view."""
    rewritten: tuple[int, ...] = ()
    """Steps that were in it, and of which a rank came late, was dumped again, or is gone."""
    waiting: tuple[int, ...] = ()
    """Steps that not all ranks have committed yet."""
    damaged: tuple[str, ...] = ()
    """What could not be taken, and why."""
    findings: tuple[StepFindings, ...] = ()
    """What rules over several steps or ranks found in each step that was evaluated."""

    def __bool__(self) -> bool:
        return bool(self.appended or self.rewritten or self.findings)


@dataclass(frozen=True, slots=True)
class CommitsListed(Event):
    """What a round of the consolidator began with."""

    committed: Mapping[int, int]
    """The highest committed step of each rank."""
    behind: tuple[int, ...]
    """Steps that a rank has committed and the view does not have of it."""
    newest: int
    """Highest step of the view; -1 for none."""


def in_threads(jobs: Sequence[ConsolidateJob]) -> Iterator[ConsolidateResult]:
    """Run the tasks in this process."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="dump-ingest-consolidate") as threads:
        yield from threads.map(consolidate, jobs)


def on_cluster(client: Client) -> Runner:
    """Return what runs the tasks on a Dask cluster, a bounded number at once."""
    return lambda jobs: run_in_order(client, consolidate, jobs, ahead=_TASKS_AT_ONCE - 1)


@dataclass(slots=True, eq=False)
class Consolidator:
    """Takes commits into the consolidated view of one store. A context manager: it holds a lease.

    Memory: that of `CubeWriter`, and what `run` returns.
    """

    objects: ObjectStore
    run: Runner = in_threads
    patience_s: float = 0.0
    """How long a step waits for the ranks that have steps but not yet this one."""
    clock: Callable[[], float] = time.monotonic
    observers: list[Observer] = field(default_factory=list)
    """Called at the begin and the end of every round."""
    keeper: SeriesEvaluator | None = None
    """Evaluates rules over several steps or ranks; None for none."""
    _lease: Lease | None = None
    _writer: CubeWriter | None = None
    _seen_at: dict[int, float] = field(default_factory=dict)
    _unreadable: dict[StepKey, tuple[str, str]] = field(default_factory=dict)
    """Steps whose tables are damaged: the generation that was tried, and what is wrong with it."""
    _evaluated: bool = False
    """Whether the keeper has seen every step that is in the view."""

    def __enter__(self) -> Self:
        self._lease = Lease(self.objects, _LEASE, f"the consolidated view of {self.objects.address.url}")
        self._lease.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def once(self, *, check: bool = False, rebuild: bool = False, most: int = 0) -> StepsConsolidated:
        """Bring the view up to date with what is committed now.

        Args:
            check: read every commit, not only those that the view does not have and those that were
                announced as replaced.
            rebuild: make the view anew.
            most: evaluate rules for so many steps at most, the rest next time; 0 for all.

        Raises:
            LeaseHeld: another process writes it.
            UsageError: there is no store.
            StoreError: the store refused.
        """
        if commit.read_root(self.objects) is None:
            raise no_store(self.objects.address.url)
        self._keep_lease()
        # Where this ends with an error, what it holds is not what was written.
        known, self._writer = self._writer, None
        self._writer = CubeWriter.load(self.objects, known, rebuild=rebuild)
        if check or rebuild:
            self._unreadable.clear()
        try:
            return self._once(check=check, most=most)
        except BaseException:
            self._writer = None
            raise

    def _once(self, *, check: bool, most: int) -> StepsConsolidated:
        announced = _announced(self.objects)
        listed, fresh_keys, gone = self._compare()
        if self._writer is not None and self._writer.is_outgrown(len(listed)):
            self._writer = CubeWriter.load(self.objects, None, rebuild=True)
            listed, fresh_keys, gone = self._compare()
        self._tell(
            CommitsListed(
                {rank: max(steps) for rank, steps in listed.items()},
                tuple(sorted({key.step for key in fresh_keys if key.step is not None})),
                max(self._writer.steps, default=-1) if self._writer else -1,
            )
        )
        asked = {*fresh_keys, *(key for key in announced if key.step in listed.get(key.rank, ()))}
        if check:
            asked |= {StepKey(rank, step) for rank, steps in listed.items() for step in steps}
        commits, damaged = commit.read_many(self.objects, sorted(asked, key=lambda key: key.order))
        unreadable = {key: tried for key, tried in self._unreadable.items() if key in commits}
        self._unreadable = {k: tried for k, tried in unreadable.items() if commits[k].fingerprint == tried[0]}
        fresh = {key: one for key, one in commits.items() if self._is_fresh(key, one)}
        gone |= {key for key in asked if self._has(key) and key not in commits and key not in damaged}
        changed, new = self._sorted(fresh, gone)
        ready = {step: ranks for step, ranks in new.items() if self._is_ready(step, ranks, set(listed))}
        if changed or ready:
            writer = self._writer = self._writer or CubeWriter.create(self.objects, fresh, len(listed))
            writer.add_ranks(sorted({key.rank for key in fresh}))
            # Block by block: a rank that comes late may change every step there is.
            for steps in writer.in_blocks(changed):
                writer.begin_rewriting(steps)
                places = {writer.place(step): (step, changed[step]) for step in steps}
                self._take(writer, places, commits)
                writer.publish(list(places))
            self._append(writer, ready, commits)
        self._forget(announced, commits, damaged)
        self._evaluated &= not (changed or ready)
        damaged |= {key: reason for key, (_, reason) in self._unreadable.items()}
        taken = StepsConsolidated(
            tuple(ready),
            tuple(changed),
            tuple(step for step in new if step not in ready),
            tuple(f"{key}: {reason.removeprefix(f'{key}: ')}" for key, reason in damaged.items()),
            tuple(self._evaluate(most)),
        )
        self._tell(taken)
        return taken

    def view(self) -> CubeState | None:
        """Return what the view has come to; None where there was nothing to take in yet."""
        return None if self._writer is None else self._writer.state

    def follow(
        self, stop: threading.Event, *, poll_s: float, observe: Callable[[StepsConsolidated], None]
    ) -> None:
        """Go on until `stop` is set; tell `observe` of every round in which something was taken in.

        Raises:
            LeaseHeld: another process writes the view.
        """
        while not stop.is_set():
            started = time.monotonic()
            taken = self.once(most=_EVALUATED_AT_ONCE)
            if taken:
                observe(taken)
            rest_s = min(_REST * (time.monotonic() - started), _LONGEST_REST_S) if self._evaluated else 0.0
            stop.wait(max(poll_s, rest_s))

    def _evaluate(self, most: int) -> list[StepFindings]:
        """Evaluate rules for the steps of the view for which nobody has done it."""
        if self.keeper is None or self._writer is None or self._evaluated:
            return []
        found = list(self.keeper.evaluate(self._writer.generations(), most=most, keep=self._keep_lease))
        self._evaluated = not most or len(found) < most
        return found

    def _tell(self, happening: CommitsListed | StepsConsolidated) -> None:
        for observer in self.observers:
            observer(happening)

    def _compare(self) -> tuple[dict[int, set[int]], set[StepKey], set[StepKey]]:
        """Return the steps of each rank, those that the view has not, and those that it alone has."""
        listed: dict[int, set[int]] = {}
        new: set[StepKey] = set()
        gone: set[StepKey] = set()
        ranks = commit.list_ranks(self.objects)
        for rank in {*ranks, *(self._writer.ranks if self._writer else ())}:
            # Sets of plain numbers: with a run of a thousand steps, this is all that grows with it.
            there = commit.list_steps(self.objects, rank) if rank in ranks else set()
            known = set(self._writer.steps_of(rank).tolist()) if self._writer else set()
            if there:
                listed[rank] = there
            new |= {StepKey(rank, step) for step in there - known}
            gone |= {StepKey(rank, step) for step in known - there}
        return listed, new, gone

    def _has(self, key: StepKey) -> str:
        return self._writer.fingerprint(key) if self._writer else ""

    def _is_fresh(self, key: StepKey, found: Commit) -> bool:
        return self._has(key) != found.fingerprint and key not in self._unreadable

    def _sorted(
        self, fresh: Mapping[StepKey, Commit], gone: set[StepKey]
    ) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
        """Return the ranks of each step that is to be written again, and of each that is new."""
        changed: dict[int, set[int]] = {}
        new: dict[int, set[int]] = {}
        for key in sorted({*fresh, *gone}, key=lambda key: key.order):
            if key.step is None:
                continue
            if self._writer is None or not self._writer.has(key.step):
                new.setdefault(key.step, set()).add(key.rank)
            elif key.step not in changed:
                there = (StepKey(rank, key.step) for rank in self._writer.ranks)
                changed[key.step] = {one.rank for one in there if self._has(one) and one not in gone}
            if key.step in changed and key not in gone:
                changed[key.step].add(key.rank)
        return changed, new

    def _append(
        self, writer: CubeWriter, steps: Mapping[int, set[int]], commits: Mapping[StepKey, Commit]
    ) -> None:
        """Put steps at the end of the view; each block of them is published when it is full."""
        left = sorted(steps)
        while left:
            # Where no tensor is known yet, one step alone: then the others need not come back to say them.
            count = writer.room if len(writer.axis) else 1
            batch, left = left[:count], left[count:]
            places = writer.add_steps(batch)
            by_place = {place: (step, steps[step]) for place, step in zip(places, batch, strict=True)}
            self._take(writer, by_place, commits)
            writer.publish(places)

    def _take(
        self,
        writer: CubeWriter,
        steps: Mapping[int, tuple[int, set[int]]],
        commits: Mapping[StepKey, Commit],
    ) -> None:
        """Write the objects of these steps, by place; what they share with others stays with the writer.

        What has damaged tables is noted, so that it is not tried again and again.
        """
        jobs: list[ConsolidateJob] = []
        for place, (step, ranks) in steps.items():
            writer.clear(place)
            jobs += writer.jobs(place, step, ranks)
        while jobs:
            self._keep_lease()
            unknown: list[UnknownTensors] = []
            for result in self.run(jobs):
                if self._lease is not None:
                    self._lease.keep_in_time()
                if isinstance(result, UnknownTensors):
                    unknown.append(result)
                    continue
                writer.note(result)
                for rank, reason in result.damaged.items():
                    key = StepKey(rank, result.job.step)
                    if key in commits:
                        self._unreadable[key] = commits[key].fingerprint, reason
            unknown.sort(key=lambda one: (one.job.place, one.job.rank_chunk))
            writer.add_tensors(key for one in unknown for key in one.keys)
            jobs = [replace(one.job, width=len(writer.axis)) for one in unknown]
        self._keep_lease()

    def _is_ready(self, step: int, ranks: set[int], listed: set[int]) -> bool:
        """Whether all ranks have committed a step, or it has waited long enough for the others."""
        since = self._seen_at.setdefault(step, self.clock())
        if ranks == listed or self.clock() - since >= self.patience_s:
            del self._seen_at[step]
            return True
        return False

    def _keep_lease(self) -> None:
        if self._lease is not None:
            self._lease.keep()

    def _forget(
        self,
        announced: Mapping[StepKey, Sequence[str]],
        commits: Mapping[StepKey, Commit],
        damaged: Collection[StepKey],
    ) -> None:
        """Remove the announcements of commits that were read, that others have replaced, or that are gone."""
        for key, fingerprints in announced.items():
            found = commits.get(key)
            for fingerprint in fingerprints:
                # A removal is announced before it happens: it stands until it has happened.
                is_gone = fingerprint == REMOVED and found is None and key not in damaged
                if is_gone or (found and fingerprint in found.record.generations):
                    self.objects.delete(f"{CHANGED}/{key.rank}.{key.step}.{fingerprint}")


def _announced(objects: ObjectStore) -> dict[StepKey, list[str]]:
    """Return the steps of which a commit was replaced, each with the new generations."""
    found: dict[StepKey, list[str]] = {}
    for name in objects.children(CHANGED):
        parts = name.split(".")
        if len(parts) == 3 and parts[0].isdecimal() and parts[1].isdecimal():
            found.setdefault(StepKey(int(parts[0]), int(parts[1])), []).append(parts[2])
    return found
