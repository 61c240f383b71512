"""What a watcher would do with each step of a dump now: one scan, no Dask, and nothing is written."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from ingest.dispatch.clients import TaskClient
from ingest.dump_retention.policy import SourceJudge
from ingest.layouts.base import Dump
from ingest.service.build import ServiceOptions, build_service
from ingest.service.service import Service
from ingest.steps.committed import Committed
from ingest.steps.decide import Decision, StepPolicy
from ingest.steps.events import SourceKept
from ingest.steps.explain import StepRow, explain, explain_table
from ingest.steps.state import DeletionStage, StepState
from ingest.watching.watcher import Watcher
from workers.errors import ClusterError
from workers.model import SourceFile, StepKey
from workers.store.objects import ObjectStore

#: Steps whose commits are asked for at once, and whose plans are in memory.
_BATCH = 16


def explain_dump(dump: Dump, objects: ObjectStore, options: ServiceOptions) -> list[StepRow]:
    """Explain every step of a dump, by step and rank: what the store has, and what the step waits for.

    Scans once, so how long a step has been quiet is judged by the times of its files. Reads the headers of
    all complete steps that the store does not have.

    Raises:
        StoreError: the store refused.
    """
    service = build_service(dump, objects, _no_cluster, options)
    service.disk.measure()
    now = service.clock()
    dump_state = service.watcher.scan(_AskedForAll(service.committed), service.current_policy)
    service.check_ranks({key.rank for key in dump_state.there}, explains=True)
    policy = service.current_policy
    rows = {state: explain(state, policy, now, decision) for state, decision in _decide(service, policy, now)}
    if service.retention is not None:
        _judge(service.retention.judge)
    return explain_table(service.table, policy, now, rows)


@dataclass(frozen=True, slots=True)
class _AskedForAll:
    """Asks the store for every step before any is listed: one scan shows them all."""

    committed: Committed

    def expect(self, keys: Collection[StepKey]) -> Collection[StepKey]:
        """Ask for all of them."""
        self.committed.expect(keys)
        self.committed.check(math.inf)
        return ()

    def was_removed(self, key: StepKey, fingerprint: str, files: tuple[SourceFile, ...] = ()) -> bool:
        """Return what the store says."""
        return self.committed.was_removed(key, fingerprint, files)


def _decide(service: Service, policy: StepPolicy, now: float) -> Iterator[tuple[StepState, Decision]]:
    """Yield the decision about each complete step that the store does not have."""
    decider = service.offering.decider
    complete = _complete(service.watcher, policy, now)
    while states := list(islice(complete, _BATCH)):
        planned = [(state, decider.plan(state, policy, now)) for state in states]
        yield from decider.decide(planned, policy, now)
        for state in states:
            state.inspected = None  # its headers take memory, and are not needed any more


def _complete(watcher: Watcher, policy: StepPolicy, now: float) -> Iterator[StepState]:
    while (state := watcher.next_complete(policy, now)) is not None:
        yield state


def _judge(judge: SourceJudge) -> None:
    """Record which dump files would be deleted, and why the others stay."""
    newest = judge.newest()
    held = [state for state in judge.table.held() if state.key.step is not None]
    why_newest = judge.policy.why_newest()
    for state in held:
        if state.key in newest:
            files = 0 if state.listing is None else len(state.listing.files)
            state.for_deletion().kept = SourceKept(state.key, why_newest[0], files, why_newest[1])
    for judged in judge.judge(state for state in held if state.key not in newest):
        deletion = judged.state.for_deletion()
        if judged.why_kept is None:
            deletion.stage = DeletionStage.QUEUED
        else:
            reason, detail = judged.why_kept
            deletion.kept = SourceKept(judged.state.key, reason, len(judged.listing.files), detail)


def _no_cluster() -> TaskClient:
    raise ClusterError("explaining needs no cluster")
