"""One run over a dump: until everything that it has is in the store, or cannot be taken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from ingest.reader.damage import Damage
from ingest.reader.verifying.verify_listing import damage_in_listing
from ingest.service.report import Report
from ingest.service.service import INTERRUPTED_DRAIN_S, Service, without_old_objects
from ingest.service.startup_check import expected_of
from ingest.service.stopping import is_interrupted
from ingest.steps.decide import CompletenessPolicy
from workers.errors import StoreError
from workers.model import StepKey
from workers.store import commit


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
        state.end_pause()
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
            service.submitter.prepare()  # workers start while the last step is still to be quiet
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
    """Return whether nothing is left to be done for these steps."""
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
    """Return the steps that are not waited for, although they are pending."""
    denied = {state.key for state in service.table.denied()}
    # Run files may change as long as the job runs: once is enough.
    committed_runs = {summary.key for summary in report.commits if summary.key.step is None}
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
