"""Faulty protocols: each replaces one decision of the real code, for the simulator to find."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import xxhash
from msgspec.structs import replace

from ingest.consolidating.lease import Lease
from ingest.dispatch.submitter import Submitter, TaskRetried
from ingest.steps.committed import Committed
from ingest.steps.decide import Offer
from ingest.store_gc.execute import Execution
from ingest.store_gc.plan import Extent, _Planner
from tests.simulation.cluster import Worker
from tests.simulation.world import Cast
from workers.store import commit
from workers.store.commit import end_of
from workers.store.packed import recompressing
from workers.tasks.read_back import ReadBack, ReadBackVerdict


@dataclasses.dataclass(frozen=True, slots=True)
class Planted:
    """One faulty protocol."""

    name: str
    cast: Cast
    """In which it shows."""
    invariant: str
    """Which it violates."""
    plant: Callable[[ExitStack], None]
    only: frozenset[str] = frozenset()
    """The kinds of faults by which it shows; empty for all."""
    first: int = 1
    """The seed with which to begin, so that it does not take long."""


@contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """Have the code be faulty within the block."""
    with ExitStack() as stack:
        bug.plant(stack)
        yield


def _commit_first(stack: ExitStack) -> None:
    """The commit is written before the generation that it makes visible."""
    write, write_generation = commit.write, commit._write_generation
    waiting: list[tuple[Any, ...]] = []

    def write_commit_first(*arguments: Any, **more: Any) -> None:
        write(*arguments, **more)
        write_generation(*waiting.pop())

    stack.enter_context(patch.object(commit, "_write_generation", lambda *some: waiting.append(some)))
    stack.enter_context(patch.object(commit, "write", write_commit_first))


def _one_generation(stack: ExitStack) -> None:
    """All generations of a step have one name, so that each is written over the one that readers see."""

    def fingerprint(files: Any, layout: str, grid: Any, *_: Any) -> str:  # noqa: ARG001
        return xxhash.xxh3_128("".join(sorted(file.path for file in files)).encode()).hexdigest()

    stack.enter_context(patch("ingest.planning.plan.fingerprint", fingerprint))
    stack.enter_context(patch("ingest.steps.watcher.fingerprint", fingerprint))
    stack.enter_context(patch("ingest.steps.decide._decide_planned", _always_offer))
    stack.enter_context(patch("ingest.steps.watcher.held_as", lambda *_: None))


def _always_offer(_: Any, __: Any, proposal: Any) -> Any:
    return Offer(dataclasses.replace(proposal.plan, replaces=None))


def _no_fence(stack: ExitStack) -> None:
    """Whoever had the lease once writes on, without looking whether it still has it."""

    def keep(lease: Lease) -> None:
        if lease.is_due:
            lease._renewed_at = lease.clock()

    stack.enter_context(patch.object(Lease, "keep", keep))


def _no_expiry(stack: ExitStack) -> None:
    """The lease of a process that was killed holds for ever."""
    stack.enter_context(patch("ingest.consolidating.lease.LEASE_S", 1e12))


def _no_grace(stack: ExitStack) -> None:
    """What no commit points to is removed at once: somebody may be writing it."""
    stack.enter_context(patch.object(_Planner, "_is_old", lambda *_: True))
    stack.enter_context(patch.object(Execution, "_refuse_young", lambda *_: None))


def _no_read_back(stack: ExitStack) -> None:
    """Files are deleted as soon as they are committed, whatever the store has of them."""

    def read_back(_: Worker, job: Any) -> ReadBack:
        changed = [file.mtime_ns for file in job.files]
        verdicts = np.full(len(changed), ReadBackVerdict.SAME, np.int8)
        return ReadBack(job.number, verdicts, np.array(changed, np.int64), 0, 0.0)

    stack.enter_context(patch.object(Worker, "_read_back", read_back))


def _lost_retry(stack: ExitStack) -> None:
    """A task that failed is to be submitted again, and is forgotten."""
    fail = Submitter._fail

    def forget(submitter: Submitter, *arguments: Any) -> Any:
        outcome = fail(submitter, *arguments)
        if isinstance(outcome, TaskRetried):
            submitter._later.clear()
        return outcome

    stack.enter_context(patch.object(Submitter, "_fail", forget))


def _no_silence(stack: ExitStack) -> None:
    """A step is taken as soon as it is seen."""
    stack.enter_context(patch("ingest.steps.decide.waits_for_time", lambda *_: None))
    stack.enter_context(patch("ingest.steps.decide.waits_for_content", lambda *_: None))


def _no_recheck(stack: ExitStack) -> None:
    """Nobody looks whether a late write has brought an older generation back."""
    stack.enter_context(patch.object(Committed, "recheck", lambda *_: []))
    stack.enter_context(patch.object(commit, "_refuse_if_late", lambda *_: None))


def _silent(stack: ExitStack) -> None:
    """That another generation takes the place of a commit is not announced."""
    stack.enter_context(patch.object(commit, "announce", lambda *_: None))


def _begun_means_done(stack: ExitStack) -> None:
    """gc ends a change that has begun just now: its writer may still be at it."""
    planned = _Planner._unfinished_changes

    def plan(planner: _Planner) -> Iterator[Any]:
        planner.policy = replace(planner.policy, grace_s=0.0)
        yield from planned(planner)

    def end(execution: Execution, action: Any) -> Extent:
        execution.objects.put(end_of(action.path), b"")
        return Extent()

    stack.enter_context(patch.object(_Planner, "_unfinished_changes", plan))
    stack.enter_context(patch.object(Execution, "_end_change", end))


_SPOILED, _LATE = frozenset(["spoiled"]), frozenset(["late"])


def _uncounted(stack: ExitStack) -> None:
    """What is in a pool goes although commits refer to it."""

    def everything(planner: _Planner, step: int) -> dict[str, Extent]:
        return planner.inventory.pools.get(step, {})

    stack.enter_context(patch.object(_Planner, "_without_users", everything))
    stack.enter_context(patch.object(Execution, "_read_users", lambda *_: {}))


def _bare_again(stack: ExitStack) -> None:
    """A step that is encoded again has its tensors, and nothing else that it had."""
    stack.enter_context(patch.object(recompressing, "_copy", lambda *_: None))


BUGS = (
    Planted("commit before its objects", "ingest", "no half step is visible", _commit_first),
    Planted("generations under one name", "ingest", "no mixture is visible", _one_generation, first=62),
    Planted("lease without a fence", "lease", "one holder writes", _no_fence),
    Planted("lease without an end", "lease", "nothing is late", _no_expiry),
    Planted("gc that does not count over ranks", "pool", "nothing reachable is removed", _uncounted),
    Planted("encoded again in part", "recompress", "no half step is visible", _bare_again),
    Planted("gc without grace", "gc", "nothing in progress is removed", _no_grace, first=50),
    Planted(
        "deletion without reading back",
        "delete",
        "only what is stored is deleted",
        _no_read_back,
        _SPOILED,
        first=1115,
    ),
    Planted("retries that are lost", "ingest", "nothing is late", _lost_retry),
    Planted("steps without silence", "ingest", "no half step is visible", _no_silence),
    Planted("changes without an announcement", "ingest", "no change is silent", _silent, first=30),
    Planted(
        "changes that end too early", "copies", "copies are commits", _begun_means_done, _LATE, first=5635
    ),
    Planted("late writes that stay", "ingest", "nothing is late", _no_recheck, _LATE, first=200),
)
