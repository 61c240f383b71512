"""Where a step is on its way into the store and why, in words: one row for each step of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ingest.steps.decide import Decision, KeepExisting, Offer, Refuse, StepPolicy, decide
from ingest.steps.state import (
    Deletion,
    DeletionStage,
    Pause,
    Phase,
    StepState,
    StepTable,
    Wait,
    WaitFor,
    Work,
)

_READY = "complete, as far as is known; it waits for its turn"
_TAKEN_NOW = "complete; a watcher takes it now"
_STAGES = {
    DeletionStage.QUEUED: "its files wait to be read back and compared, and are then deleted",
    DeletionStage.READING_BACK: "its files are being read back and compared",
    DeletionStage.REMOVING: "its files are being deleted",
}


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step as `dump-ingest watch --explain` prints it. The names of the fields are those of its JSON."""

    rank: int
    step: int | None
    """None for run files."""
    phase: str
    """See `Phase`."""
    reason: str
    """For people."""
    waits_for: str | None = None
    """See `WaitFor`; None unless the step waits."""
    tried_again_in_s: float | None = None
    """When a pause ends, in seconds from now."""
    quiet_s: float | None = None
    """How long the files had not changed at the last scan."""
    files: int = 0
    bytes: int = 0
    poison_files: int = 0
    """Files that kill who reads them; they are quarantined."""
    unreadable_files: int = 0
    """Files that the disk does not give; they are quarantined."""
    source: str | None = None
    """Whether the dump files are being deleted: see `DeletionStage`; or why they stay: see `KeepReason`."""
    source_reason: str | None = None


def explain_table(
    table: StepTable, policy: StepPolicy, now: float, rows: Mapping[StepState, StepRow] | None = None
) -> list[StepRow]:
    """Explain every step of a table, by step and rank. May be called from any thread.

    Args:
        table: the steps. Ranks without run files get no row for them.
        policy: by which is decided about steps.
        now: the time by the clock of the service.
        rows: the rows of steps that were explained before.
    """
    known = rows or {}
    states = [state for state in table if state.key.step is not None or state.listing or state.is_unchecked]
    states.sort(key=lambda state: state.key.order)
    return [known.get(state) or explain(state, policy, now) for state in states]


def explain(state: StepState, policy: StepPolicy, now: float, decision: Decision | None = None) -> StepRow:
    """Explain one step.

    Args:
        state: the step.
        policy: by which it is decided about.
        now: the time by the clock of the service.
        decision: what was decided, if that is known; else what can be decided without reading anything.
    """
    progress = _how_far(state, policy, now, decision)
    listing, poison = state.listing, state.poison
    source, source_reason = _source(state.deletion, now)
    reason = progress.reason
    if poison:
        reason += f"; {len(poison)} of its files are poison, and are quarantined"
    if state.is_isolated:
        reason += "; workers died of it, so each of its tasks runs in a process of its own"
    return StepRow(
        rank=state.key.rank,
        step=state.key.step,
        phase=progress.phase.value,
        reason=reason,
        waits_for=None if progress.waits_for is None else progress.waits_for.value,
        tried_again_in_s=None if progress.pause is None else round(max(progress.pause.until - now, 0.0), 1),
        quiet_s=None if listing is None else round(state.quiet_for_s, 1),
        files=0 if listing is None else len(listing.files),
        bytes=0 if listing is None else listing.nbytes,
        poison_files=len(poison),
        unreadable_files=len(state.unreadable),
        source=source,
        source_reason=source_reason,
    )


class _HowFar(NamedTuple):
    """How far a step is."""

    phase: Phase
    reason: str
    waits_for: WaitFor | None = None
    pause: Pause | None = None
    """What has to end first."""


def _how_far(state: StepState, policy: StepPolicy, now: float, decision: Decision | None) -> _HowFar:
    work = state.work
    if work is not None:
        return _HowFar(work.phase, _work_reason(work, now), WaitFor.TASKS, work.retry)
    match decision or decide(state, policy, now):
        case Wait() as wait:
            return _waiting(state, wait, now)
        case KeepExisting(cover=cover):
            return _HowFar(cover.phase, cover.reason)
        case Refuse(error=error):
            return _HowFar(Phase.REFUSED, _with_hint(error.message, error.hint))
        case Offer():
            return _HowFar(Phase.READY, _TAKEN_NOW)
        case _:  # to say more than the last examination did, the files would have to be read
            waiting = state.waiting
            return _HowFar(Phase.READY, _READY) if waiting is None else _waiting(state, waiting, now)


def _waiting(state: StepState, wait: Wait, now: float) -> _HowFar:
    pause = state.pause
    if wait.wait_for is WaitFor.PAUSE and pause is not None and pause.for_person:
        return _HowFar(Phase.REFUSED, wait.reason, pause=pause)
    if wait.wait_for is WaitFor.PAUSE and pause is not None:
        reason = f"left alone for {max(pause.until - now, 0):.0f} s more: {wait.reason}"
        return _HowFar(wait.phase, reason, wait.wait_for, pause)
    if wait.wait_for is WaitFor.DELETION:
        return _HowFar(state.held or Phase.COMMITTED, wait.reason)
    hint = wait.problems[0].hint if wait.problems else ""
    return _HowFar(wait.phase, _with_hint(wait.reason, hint), wait.wait_for)


def _with_hint(message: str, hint: str) -> str:
    return f"{message} ({hint})" if hint else message


def _work_reason(work: Work, now: float) -> str:
    retry = work.retry  # read once: another thread may end it
    if retry is not None:
        return f"submitted again in {max(retry.until - now, 0):.1f} s: {retry.reason}"
    if work.phase is Phase.OFFERED:
        return "its tasks wait for room among the bytes in flight"
    if work.phase is Phase.PUBLISHING:
        return "a worker writes index and commit"
    return f"{work.jobs_done} of {work.jobs} tasks done"


def _source(deletion: Deletion, now: float) -> tuple[str | None, str | None]:
    """Return what is done about the source of a step or why it stays, as a word and as a sentence."""
    stage, kept = deletion.stage, deletion.kept
    if stage is not None:
        return stage.value, _STAGES[stage]
    if kept is None:
        return None, None
    if deletion.paused_until > now:
        return kept.reason.value, f"{kept.detail}; tried again in {deletion.paused_until - now:.0f} s"
    return kept.reason.value, kept.detail
