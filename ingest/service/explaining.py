"""What becomes of each step of a dump, and of the watcher: asked once, or of one that runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice

from ingest.dispatch.clients import TaskClient
from ingest.dump_retention.policy import SourceJudge
from ingest.layouts.base import Dump, ProblemKind
from ingest.service.options import ServiceOptions
from ingest.service.service import Service
from ingest.steps.decide import Decision, StepPolicy
from ingest.steps.events import SourceKept
from ingest.steps.explain import StepRow, explain, explain_table
from ingest.steps.state import DeletionStage, StepState, StepTable
from ingest.watching.watcher import DumpState
from workers.errors import ClusterError
from workers.events import Event
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
    service = Service(dump, objects, _no_cluster, options)
    service.measure_disk()
    now = service.clock()
    service.committed.at_look_s = 1e9  # the store is asked for every step: one scan shows them all
    dump_state = service.watcher.scan(service.committed, service.current_policy)
    service.check_ranks({key.rank for key in dump_state.there}, explains=True)
    policy = service.current_policy
    rows = {state: explain(state, policy, now, decision) for state, decision in _decide(service, policy, now)}
    if service.retention is not None:
        _judge(service.retention.judge)
    return explain_table(service.table, policy, now, rows)


def _decide(service: Service, policy: StepPolicy, now: float) -> Iterator[tuple[StepState, Decision]]:
    """Yield the decision about each complete step that the store does not have."""
    planner = service.offering.planner
    complete = iter(lambda: service.watcher.next_complete(policy, now), None)
    while states := list(islice(complete, _BATCH)):
        planned = [(state, planner.plan(state, policy, now)) for state in states]
        yield from zip(states, planner.decide(planned, policy, now), strict=True)
        for state in states:
            state.inspected = None  # its headers take memory, and are not needed any more


def _judge(judge: SourceJudge) -> None:
    """Record which dump files would be deleted, and why the others stay."""
    newest = judge.newest()
    held = [state for state in judge.table if state.held is not None and state.key.step is not None]
    for state in held:
        if state.key in newest and state.listing is not None:
            reason, detail = judge.policy.why_newest
            state.deletion.kept = SourceKept(state.key, reason, len(state.listing.files), detail)
    for state, listing, _, why_kept in judge.judge(state for state in held if state.key not in newest):
        if why_kept is None:
            state.deletion.stage = DeletionStage.QUEUED
        else:
            reason, detail = why_kept
            state.deletion.kept = SourceKept(state.key, reason, len(listing.files), detail)


def _no_cluster() -> TaskClient:
    raise ClusterError("explaining needs no cluster")


class LiveSteps:
    """The page `/steps` of a watcher: all of its steps, as they are when somebody asks.

    It is made in a thread of the web server, while the service goes on. So each row is true of its step, and
    two rows may be some milliseconds apart.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        """Begin before the service: until then the page has no steps."""
        self._service: Service | None = None
        self._wall_clock = wall_clock

    def attach(self, service: Service) -> None:
        """Show the steps of this service."""
        self._service = service

    def rows(self) -> list[StepRow]:
        """Return a row for each step."""
        if self._service is None:
            return []
        return explain_table(self._service.table, self._service.current_policy, self._service.clock())

    def page(self) -> bytes:
        """Return the page as JSON."""
        page = {"at": self._wall_clock(), "steps": [asdict(row) for row in self.rows()]}
        return json.dumps(page, allow_nan=False).encode()


@dataclass(slots=True)
class Readiness:
    """Says why a watcher is not ready; an observer, and read by another thread.

    A dump that does not exist yet is waited for, and a store that does not answer comes back: only what
    somebody has to change counts.
    """

    reason: str = ""
    """Why it is not ready; "" if it is."""

    def observe(self, event: Event) -> None:
        """Take in a scan of the dump."""
        if not isinstance(event, DumpState):
            return
        denied = [problem for problem in event.problems if problem.kind is ProblemKind.DENIED]
        readable = [key for key, listing in event.present.items() if key.step is not None and listing.files]
        self.reason = f"nothing of the dump can be read: {denied[0]}" if denied and not readable else ""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The steps that the last scan showed and that were not committed since, as the table has them.

    Run files do not count: they change as long as the job runs.
    """

    table: StepTable

    @property
    def steps(self) -> int:
        """How many steps are not in the store as they were seen last, complete or not."""
        return sum(state.is_left for state in self.table)

    @property
    def nbytes(self) -> int:
        """The bytes of their files."""
        return sum(state.listing.nbytes for state in self.table if state.listing and state.is_left)
