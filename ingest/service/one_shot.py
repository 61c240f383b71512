"""One run over a dump: until everything that it has is in the store, or cannot be taken; and its report.

What becomes of each step, and of the watcher, can be asked: once, or of a watcher that runs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.dispatch.clients import TaskClient
from ingest.dispatch.submitter import StepCommitted, StepFailed
from ingest.dump_retention.policy import ReadBackFailed, SourceDeleted, SourceJudge
from ingest.layouts.base import Dump, Problem, ProblemKind
from ingest.layouts.black_box import BlackBoxes, trigger_from_outside
from ingest.reader.catalog import Damage
from ingest.reader.verifying import damage_in_listing
from ingest.service.offering import ServiceOptions
from ingest.service.rechecks import expected_of
from ingest.service.service import INTERRUPTED_DRAIN_S, Service, without_old_objects
from ingest.service.stopping import is_interrupted
from ingest.steps.committed import FilesNotTaken
from ingest.steps.decide import CompletenessPolicy, Decision, StepPolicy, StepRow, explain, explain_table
from ingest.steps.events import CommitKept, DumpedAgain, RecheckFailed, SourceKept
from ingest.steps.state import DeletionStage, Phase, StepState, StepTable
from ingest.steps.watcher import DumpState
from workers.errors import (
    ClusterError,
    DamagedStore,
    DumpIngestError,
    PoisonedFile,
    StoreError,
    UnreadableFile,
    UsageError,
)
from workers.events import Event
from workers.model import StepKey
from workers.store import commit
from workers.store.model import CommitSummary
from workers.store.objects import ObjectStore

if TYPE_CHECKING:
    from ingest.findings.series import StepFindings


@dataclass(slots=True)
class Report:
    """What one run of the service came to."""

    commits: list[CommitSummary] = field(default_factory=list)
    failures: dict[StepKey, DumpIngestError] = field(default_factory=dict)
    """Why steps could not be taken or read again. By key for people, not state: nothing is decided by it."""
    unchanged: list[StepKey] = field(default_factory=list)
    """Steps that the store held already."""
    damaged: list[Damage] = field(default_factory=list)
    """Those of them of which objects are missing in the store, as far as a listing shows."""
    removed: list[StepKey] = field(default_factory=list)
    """Steps that `gc` removed from the store: they are not taken again unless asked for."""
    problems: tuple[Problem, ...] = ()
    missing_steps: tuple[int, ...] = ()
    """Steps that the configuration of the dump asks for, and that no rank has."""
    may_have_configuration: bool = False
    """Whether the dump has a JSON file that is of no step: what it was asked for may be in it."""
    kept: list[CommitKept] = field(default_factory=list)
    dumped_again: list[DumpedAgain] = field(default_factory=list)
    """Steps that were taken again although files of their commits are gone."""
    root: Path | None = None
    """The dump; None in a report that was not made for a single one."""
    beside: tuple[Path, ...] = ()
    """Directories with tensor files beside the dump, if it was found below the one that was named."""
    ranks_from: dict[str, list[int]] = field(default_factory=dict)
    """The ranks by what gave them: the path, the user, a rank table; or the id of the device or process."""
    stopped_by: StoreError | None = None
    """The store failed for good: no further step was tried."""
    not_consolidated: StoreError | None = None
    """Why the consolidated view was not brought up to date; the commits stand without it."""
    series: tuple[StepFindings, ...] = ()
    """What rules over several steps or ranks found in each step."""
    deleted: list[SourceDeleted] = field(default_factory=list)
    """What was deleted in the dump, or would have been."""
    source_kept: list[SourceKept] = field(default_factory=list)
    """What stays in the dump although it is committed, and why; only if dumps are to be deleted."""
    read_back_failures: dict[StepKey, DumpIngestError] = field(default_factory=dict)
    """Why steps could not be read back; nothing of them was deleted."""

    @property
    def has_something(self) -> bool:
        """Whether the store has something of the dump, even if none of it is new."""
        failed = self.failures.values()
        return bool(
            self.commits or self.unchanged or any(isinstance(error, FilesNotTaken) for error in failed)
        )

    def observe(self, event: Event) -> None:
        """Record what came of a step."""
        match event:
            case StepCommitted(summary=summary):
                self.commits.append(summary)
            case StepFailed(error=StoreError() as error) if not isinstance(error, DamagedStore):
                self.stopped_by = error
            case StepFailed(error=UnreadableFile() | PoisonedFile()):
                pass  # it is planned again, without the bytes of the file, or without decoding them
            case StepFailed(plan=plan, error=error):
                self.failures[plan.key] = error
            case RecheckFailed(key=key, error=error):
                self.failures[key] = error
            case CommitKept():
                self.kept.append(event)
            case DumpedAgain():
                self.dumped_again.append(event)
            case SourceDeleted(key=key):
                self.deleted.append(event)
                self.read_back_failures.pop(key, None)
            case ReadBackFailed(key=key, error=error):
                self.read_back_failures[key] = error

    def close(self, table: StepTable, dump_state: DumpState) -> None:
        """Record what the last scan showed: what the store held already, and what could not be taken."""
        states, present = sorted(table, key=lambda state: state.key.order), dump_state.present
        held = {state.key: state.held for state in states if state.held is not None}
        # What was deleted is not in the table any more.
        keys = {*held, *(event.key for event in self.deleted)} - {summary.key for summary in self.commits}
        ordered = sorted(keys, key=lambda key: key.order)
        self.removed = [key for key in ordered if held.get(key) is Phase.REMOVED]
        self.unchanged = [key for key in ordered if held.get(key) is not Phase.REMOVED]
        self.problems = dump_state.problems
        for source, rank in sorted({(listing.rank_from, key.rank) for key, listing in present.items()}):
            self.ranks_from.setdefault(source, []).append(rank)
        self.missing_steps = tuple(
            sorted((dump_state.expected_steps or frozenset()) - {key.step for key in present})
        )
        self.may_have_configuration = any(
            file.path.endswith(".json")
            for key, listing in present.items()
            for file in (listing.files if key.step is None else ())
        )
        self.failures |= {
            state.key: DumpIngestError(f"{state.key}: {state.denied[0]}", hint=state.denied[0].hint)
            for state in states
            if state.denied
        }
        self.source_kept = [state.deletion.kept for state in states if state.deletion.kept is not None]


def ingest_once(service: Service, stop: threading.Event) -> Report:
    """Take everything that the dump has, wait for what is not complete yet, and report what came of it.

    Args:
        service: one that has done nothing yet, or ended.
        stop: ends the work early when set; what is committed stays.

    Raises:
        StoreError: the store cannot be used, and the service does not try for ever.
        ClusterError: the scheduler does not answer, and the service does not try for ever.
    """
    report = Report()
    service.observers.append(report.observe)
    try:
        with without_old_objects():
            _ingest(service, stop, report)
    finally:
        service.observers.remove(report.observe)
    return report


def finish(service: Service, until: float) -> None:
    """Take everything that the dump has now, as it is: the job that wrote it has ended.

    Args:
        service: one that was told to end.
        until: when to give up, by the clock of the service.
    """
    service.policy = replace(service.policy, completeness=CompletenessPolicy(quiet_s=0.0, settle_s=0.0))
    for state in service.table:
        state.pause = None
    report = Report()
    service.observers.append(report.observe)
    service.schedule.outdate()
    before = service.dump_state
    service.scan()
    wanted: frozenset[StepKey] | None = None
    pause = threading.Event()
    while service.clock() < until:
        # While the store is away, scans fail: the first that does not fail says what the dump has.
        if wanted is None and service.dump_state is not None and service.dump_state is not before:
            wanted = service.dump_state.there
        if wanted is not None and _is_done(service, report, wanted):
            break
        service.tick(wake=pause.wait)
    service.observers.remove(report.observe)


def _ingest(service: Service, stop: threading.Event, report: Report) -> None:
    wanted: frozenset[StepKey] | None = None
    while not stop.is_set() and report.stopped_by is None:
        service.tick(wake=stop.wait)
        if service.dump_state is None:
            continue
        if service.dump_state.pending:
            service.submitter.client()  # workers start while the last step is still to be quiet
        # What a running job adds meanwhile is for the next run, or this one would never end.
        wanted = wanted if wanted is not None else service.dump_state.there
        if _is_done(service, report, wanted):
            break
    # On SIGTERM at once: whoever sends it starts the same command again.
    service.drain(service.clock() + (INTERRUPTED_DRAIN_S if is_interrupted(stop) else 0.0))
    if service.dump_state is not None:
        report.close(service.table, service.dump_state)
    report.missing_steps = _not_in_store(service, report.missing_steps)
    report.damaged = _damaged(service, report.unchanged)


def _is_done(service: Service, report: Report, wanted: frozenset[StepKey]) -> bool:
    if service.submitter.offered_steps or service.is_deleting:
        return False
    if not service.schedule.is_fresh:
        service.scan()  # now, and not after the pause that the next tick begins with
    dump_state = service.dump_state
    if dump_state is None or dump_state.unlisted or not service.schedule.is_fresh or service.is_deleting:
        return False
    if (dump_state.pending.keys() & wanted) - _cannot_be_done(service, report):
        return False
    return not service.rechecks.is_busy


def _cannot_be_done(service: Service, report: Report) -> set[StepKey]:
    denied = (state.key for state in service.table if state.denied)
    # Run files may change as long as the job runs: once is enough.
    committed_runs = (summary.key for summary in report.commits if summary.key.step is None)
    return {*report.failures, *denied, *committed_runs}


def _damaged(service: Service, unchanged: Sequence[StepKey]) -> list[Damage]:
    """Return the damage that a listing shows of the steps that were in the store already."""
    known = expected_of(service.table)
    expected = {key: known[key] for key in unchanged if key in known}
    try:
        return damage_in_listing(service.committed.objects, expected) if expected else []
    except StoreError as exc:
        service.dependencies.report(exc)
        return []


def _not_in_store(service: Service, steps: tuple[int, ...]) -> tuple[int, ...]:
    """Return those steps that no rank has in the store; the others were deleted in the dump."""
    if not steps:
        return ()
    try:
        stored = {key.step for key in commit.list_keys(service.committed.objects)}
    except StoreError as exc:
        service.dependencies.report(exc)
        return ()
    return tuple(step for step in steps if step not in stored)


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
    planner = service.offering.planner
    complete = iter(lambda: service.watcher.next_complete(policy, now), None)
    while states := list(islice(complete, _BATCH)):
        planned = [(state, planner.plan(state, policy, now)) for state in states]
        yield from zip(states, planner.decide(planned, policy, now), strict=True)
        for state in states:
            state.inspected = None  # its headers take memory, and are not needed any more


def _judge(judge: SourceJudge) -> None:
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

    Until `attach`, the page has no steps.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._service: Service | None = None
        self._wall_clock = wall_clock

    def attach(self, service: Service) -> None:
        """Show the steps of this service."""
        self._service = service

    def page(self) -> bytes:
        """Return the page as JSON: a row for each step, and the black boxes."""
        rows, boxes = list[StepRow](), BlackBoxes()
        if (service := self._service) is not None:
            rows, boxes = explain_table(service.table, service.current_policy, service.clock()), service.boxes
        steps = [asdict(row) for row in rows]
        page = {"at": self._wall_clock(), "steps": steps, "boxes": asdict(boxes)}
        return json.dumps(page, allow_nan=False).encode()

    def trigger(self, why: str) -> None:
        """Have the black boxes in the job save what they hold.

        Raises:
            UsageError: the dump has none, or this process may not write into it.
        """
        if self._service is None:
            raise UsageError("the watcher has found no dump yet")
        trigger_from_outside(self._service.watcher.dump.root, why)


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
