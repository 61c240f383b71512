"""What to do with a step, from its state, its commit and the policy. Pure: what has to be read is asked for.

`decide` is called again with every answer: it asks for headers (`Inspect`) and for a plan (`Plan`) before it
has the step offered to the workers (`Offer`), leaves what the store has (`KeepExisting`), or says what is in
the way (`Wait`, `Refuse`).

When is a step complete? No dump system says so; content, later steps and silence do. A tensor file is whole
when its header accounts for its size. A step is complete when its files are whole and nothing has changed
for a quiet period; for a shorter one (`settle_s`), if each of its directories has a later step with files. A
file that stays short through the quiet period will not grow any more: it is quarantined, and the step
commits without it.

`explain` says in words where a step is on its way into the store, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from ingest.disk import DiskSeen
from ingest.layouts.base import Listing
from ingest.planning.inspection import Inspected
from ingest.planning.plan import without_tensors
from ingest.steps.committed import CommittedFiles, FilesNotTaken, comes_from_other_dump, compare
from ingest.steps.events import CommitKept, must_stay
from ingest.steps.state import (
    Cover,
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
from workers.errors import ClusterError, DamagedStore, DumpIngestError, StepRemoved, UsageError
from workers.store.commit import Commit
from workers.store.packed.pool import without_pool
from workers.tasks.model import StepPlan


@dataclass(frozen=True, slots=True)
class CompletenessPolicy:
    """How long silence must last."""

    quiet_s: float = 10.0
    """How long a step must have been unchanged to count as complete, without a later one; in seconds."""
    settle_s: float = 1.0
    """With a later step: the same; covers graphs that take turns in one directory."""


def waits_for_time(listing: Listing, quiet_for_s: float, policy: CompletenessPolicy) -> Wait | None:
    """Return why a step cannot be complete yet, before any file of it is opened; None if it may be.

    Run files are never complete while the job runs: they are taken as they are in a short silence.
    """
    if not listing.files:
        return Wait(WaitFor.FILES, "no files yet")
    short = listing.later_begun or listing.key.step is None
    wanted = min(policy.settle_s, policy.quiet_s) if short else policy.quiet_s
    if quiet_for_s >= wanted:
        return None
    return Wait(WaitFor.TIME, f"quiet for {quiet_for_s:.1f} s of {wanted:g} s")


def waits_for_content(inspected: Inspected, quiet_for_s: float, policy: CompletenessPolicy) -> Wait | None:
    """Return why a step whose time has come is not complete, by the content of its files; None if it is."""
    if quiet_for_s < policy.quiet_s and (path := inspected.unfinished):
        return Wait(WaitFor.CONTENT, f"{path} is not whole yet")
    return None


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """How steps are chosen and decided about."""

    completeness: CompletenessPolicy = field(default_factory=CompletenessPolicy)
    order: Literal["oldest", "newest"] = "oldest"
    replace: bool = False
    """Whether steps that came from another dump may be replaced."""
    other_roots: frozenset[str] = frozenset()
    """Other directories in which this dump was, or is seen elsewhere: steps from there are its own."""
    foreign_ranks: Mapping[int, UsageError] = field(default_factory=dict)
    """The ranks of the dump that the store has from another dump, and the error that says so."""
    deletes: bool = False
    leave_out_tensors: str = ""
    """Why the payloads of tensors are not stored for now; "" if they are. Steps that are committed without
    them count as committed meanwhile."""

    def under(self, disk: DiskSeen) -> StepPolicy:
        """Return the policy for a disk that is as full as this."""
        newest_first = disk.under_pressure and disk.policy == "newest"
        return replace(
            self,
            order="newest" if newest_first else self.order,
            leave_out_tensors=disk.leave_out_tensors,
        )


#: How often workers may see another file than this process before it counts as an error.
_MAX_STALE = 5
_STALE_HINT = (
    "Workers must see the dump under the same path as this host: start them here, or where the file system "
    "is shared. (Or a file there has a header that keeps changing.)"
)


@dataclass(frozen=True, slots=True)
class Inspect:
    """The headers of its files have to be read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The step is complete. It has to be planned, and the store to be asked for its commit."""

    leave_out_tensors: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """The workers are to carry out the plan."""

    plan: StepPlan
    shrinks_by: int = 0
    """How many files of the commit, which the plan replaces, are not in the dump any more."""


@dataclass(frozen=True, slots=True)
class KeepExisting:
    """What the store has of the step stays as it is."""

    cover: Cover
    """The listing that the store is as good as, and why."""
    event: CommitKept | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The step cannot be taken as it is."""

    error: DumpIngestError


Decision: TypeAlias = Wait | Inspect | Plan | Offer | KeepExisting | Refuse


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan for a step, and what there is to be known of its commit."""

    plan: StepPlan
    commit: Commit | None
    was_removed: Callable[[], bool]
    """Return whether the files are what was removed from the store on purpose, or what is left of that."""
    committed_files: Callable[[], CommittedFiles | DamagedStore | StepRemoved]
    """Return the files of the commit, or why its index cannot be read."""


def decide(state: StepState, policy: StepPolicy, now: float, proposal: Proposal | None = None) -> Decision:
    """Decide what to do with a step next.

    Args:
        state: the step as the last scan saw it.
        policy: what the user and the disk ask for.
        now: the time by the clock of the service.
        proposal: how the step was planned since it was found to be complete.
    """
    if wait := _under_way(state):
        return wait
    if (held := state.held) is not None:
        cover = state.cover
        return KeepExisting(
            cover if cover is not None and cover.phase is held else _cover(state.fingerprint, held)
        )
    if decision := _not_complete(state, policy, now):
        return decision
    if proposal is None:
        return Plan(policy.leave_out_tensors if state.key.step is not None else "")
    return _decide_planned(state, policy, proposal)


def left_alone(state: StepState, now: float) -> Wait | None:
    """Return why a step is not to be examined for now, whatever the dump has of it; None if it is."""
    pause = state.pause
    if wait := _under_way(state):
        return wait
    return Wait(WaitFor.PAUSE, pause.reason) if pause is not None and pause.until > now else None


def _under_way(state: StepState) -> Wait | None:
    if state.work is not None:
        return Wait(WaitFor.TASKS, "its tasks are under way")
    if state.is_removing:
        return Wait(WaitFor.DELETION, "its files are being deleted: the store has them")
    return None


def held_as(state: StepState, policy: StepPolicy, was_removed: Callable[[str], bool]) -> Phase | None:
    """Return the phase in which the store has a step as it is listed; None if it is pending.

    Args:
        state: a step with a fingerprint.
        policy: says whether a step without its tensors will do for now.
        was_removed: given a fingerprint, returns whether that generation was removed on purpose. Asked only
            for steps without a commit.
    """
    if state.committed == state.fingerprint:
        return Phase.COMMITTED
    good_enough = {state.fingerprint: Phase.COMMITTED}
    if policy.leave_out_tensors:
        good_enough[without_tensors(state.fingerprint)] = Phase.LEFT_OUT
    for fingerprint, phase in good_enough.items():
        if state.committed == fingerprint:
            return phase
        if state.cover is not None and state.cover.fingerprint == fingerprint:
            return state.cover.phase
        if state.committed is None and was_removed(fingerprint):
            return Phase.REMOVED
    return None


def _cover(fingerprint: str, phase: Phase) -> Cover:
    return Cover(fingerprint, phase, _HELD[phase])


_HELD = {
    Phase.COMMITTED: "the store has it as it is in the dump",
    Phase.LEFT_OUT: "the store has it without its tensors, which are left out while the disk is nearly full",
    Phase.KEPT: "the store has more of it than the dump",
    Phase.REMOVED: "it was removed from the store on purpose",
}


def _not_complete(state: StepState, policy: StepPolicy, now: float) -> Wait | Inspect | None:
    """Return why a step is not complete, or that its headers have to be read to know."""
    listing = state.listing
    if wait := left_alone(state, now):
        return wait
    if state.is_unchecked:
        return Wait(WaitFor.STORE, "the store has something of it and is still to be asked what")
    if listing is None:
        return Wait(WaitFor.FILES, "no files yet")
    if denied := tuple(problem for problem in listing.problems if problem.denied):
        return Wait(WaitFor.PERMISSION, f"{denied[0]}", denied)
    if wait := waits_for_time(listing, state.quiet_for_s, policy.completeness):
        return wait
    return _not_complete_by_content(state, listing, policy.completeness)


def _not_complete_by_content(
    state: StepState, listing: Listing, policy: CompletenessPolicy
) -> Wait | Inspect | None:
    inspected = state.inspected
    if inspected is None or inspected.listing.files != listing.files:
        return Inspect()
    if inspected.denied:
        return Wait(WaitFor.PERMISSION, f"{inspected.denied[0]}", inspected.denied)
    return waits_for_content(inspected, state.quiet_for_s, policy)


def _decide_planned(state: StepState, policy: StepPolicy, proposal: Proposal) -> Decision:
    """Decide about a complete step: the store has this generation, a better one, another dump's, or none."""
    plan, commit = proposal.plan, proposal.commit
    if commit is not None and plan.without_tensors and commit.without_tensors is None:
        return Plan()  # a step that has its tensors in the store is taken with them again
    if (refusal := _refusal(state, policy, plan)) is not None:
        return Refuse(refusal)
    if commit is None:
        # Names of removed generations were compared by the scan; here the files may be a part of one.
        is_removed = proposal.was_removed()
        return (
            KeepExisting(_cover(state.fingerprint, Phase.REMOVED))
            if is_removed
            else Offer(replace(plan, replaces=""))
        )
    if without_pool(commit.fingerprint) in (without_pool(plan.fingerprint), state.fingerprint):
        return KeepExisting(_cover_by_same(state, plan, commit))
    elsewhere = comes_from_other_dump(plan.key, plan.origin, commit, policy.other_roots)
    if elsewhere is not None and not policy.replace:
        return Refuse(elsewhere)
    return _decide_by_files(state, policy, proposal, commit)


def _refusal(state: StepState, policy: StepPolicy, plan: StepPlan) -> DumpIngestError | None:
    if state.stale_in_a_row(plan.fingerprint) >= _MAX_STALE:
        return ClusterError(f"{plan.key}: workers see other files than this host", hint=_STALE_HINT)
    return policy.foreign_ranks.get(plan.key.rank)


def _cover_by_same(state: StepState, plan: StepPlan, commit: Commit) -> Cover:
    """Return how a commit covers a listing that is planned, or was listed, as the same generation.

    Both names differ if files are bad, which the scan does not know. A commit under the name of the listing
    has every file whole, so it stays even if one of them cannot be read any more.
    """
    if plan.without_tensors and without_pool(commit.fingerprint) != state.fingerprint:
        return _cover(without_tensors(state.fingerprint), Phase.LEFT_OUT)
    return _cover(state.fingerprint, Phase.COMMITTED)


def _decide_by_files(state: StepState, policy: StepPolicy, proposal: Proposal, commit: Commit) -> Decision:
    """Decide about a step whose commit was made from other files: replace it, keep it, or leave that open.

    A commit with files that are gone from the dump is replaced only by another dump of its step: files that
    come late must not take the place of those that were deleted, here or by somebody else.
    """
    committed = proposal.committed_files()
    if isinstance(committed, StepRemoved):
        return Wait(WaitFor.LOOK, "its commit was removed just now")
    if isinstance(committed, DamagedStore):
        # It may be all that there is of the step: it is not replaced, and keeps no other step waiting.
        return Refuse(committed)
    files = () if state.listing is None else state.listing.files
    seen = compare(committed, files, proposal.plan.entries)
    if seen.gone and not seen.fresh:
        cover = Cover(
            state.fingerprint,
            Phase.KEPT,
            f"{seen.gone} of its files are gone from the dump; its commit stays",
        )
        deleted_here = policy.deletes and must_stay(commit) is None
        return KeepExisting(cover, None if deleted_here else CommitKept(state.key, seen.gone))
    is_run = state.key.step is None
    if not seen.lost or policy.replace or (seen.is_newer_state if is_run else seen.is_dumped_again):
        return Offer(replace(proposal.plan, replaces=commit.fingerprint), seen.gone if seen.lost else 0)
    return Refuse(FilesNotTaken.of(state.key, seen.fresh, seen.gone))


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
    stage, kept = deletion.stage, deletion.kept
    if stage is not None:
        return stage.value, _STAGES[stage]
    if kept is None:
        return None, None
    if deletion.paused_until > now:
        return kept.reason.value, f"{kept.detail}; tried again in {deletion.paused_until - now:.0f} s"
    return kept.reason.value, kept.detail
