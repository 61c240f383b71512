"""What is done with a step: by its state, its commit and the policy, without a dump, a store or a clock."""

from dataclasses import replace

import pytest

from ingest.layouts.base import Problem
from ingest.planning.plan import without_tensors
from ingest.steps.committed import CommittedFiles, FilesNotTaken
from ingest.steps.decide import (
    Decision,
    KeepExisting,
    Offer,
    Plan,
    Proposal,
    Refuse,
    StepPolicy,
    decide,
    held_as,
)
from ingest.steps.state import Cover, DeletionStage, Pause, Phase, StepState, Wait, WaitFor
from tests.made_steps import (
    files_in,
    made_commit,
    made_files,
    made_inspected,
    made_listing,
    made_plan,
    made_state,
)
from workers.errors import DamagedStore, StepRemoved
from workers.model import StepKey
from workers.store.commit import Commit

KEY = StepKey(3, 40)
DENIED = Problem("rank_3", "permission denied", "setfacl", denied=True)


def complete(key: StepKey = KEY, *versions: int) -> StepState:
    """Return a step that is complete, and whose headers were read."""
    state = made_state(key, *(versions or (1, 2, 3)))
    assert state.listing is not None
    state.inspected = made_inspected(state.listing)
    return state


def propose(
    state: StepState,
    commit: Commit | None = None,
    *,
    committed: CommittedFiles | DamagedStore | StepRemoved | None = None,
    removed: bool = False,
    left_out: str = "",
    name: str = "",
) -> Proposal:
    plan = made_plan(state, without_tensors=left_out, name=name)
    return Proposal(
        plan, commit, lambda: removed, lambda: CommittedFiles() if committed is None else committed
    )


@pytest.mark.parametrize(
    "what", ["files", "time", "content", "permission", "tasks", "deletion", "pause", "store"]
)
def test_whatever_a_step_waits_for_has_a_name(what: str) -> None:
    state = complete()
    match what:
        case "files":
            state.lose_files()
        case "time":
            state.quiet_for_s = 3.14
        case "content":
            state.record_listing(made_listing(KEY, 1, later_begun=True), now=5.0, reached=0.0)
            assert state.listing is not None
            state.quiet_for_s, state.inspected = 5.0, made_inspected(state.listing, unfinished="short.npy")
        case "permission":
            state.record_listing(made_listing(KEY, 1, problems=(DENIED,)), now=0.0, reached=0.0)
        case "tasks":
            state.offer(jobs=1)
        case "deletion":
            state.deletion.stage = DeletionStage.REMOVING
        case "pause":
            state.pause = Pause(10.0, "it failed")
        case _:
            state.is_unchecked = True
    decision = decide(state, StepPolicy(), 9.0, propose(state))
    assert isinstance(decision, Wait)
    assert decision.wait_for == WaitFor(what)
    assert decision.reason


def test_files_that_may_not_be_read_deny_their_step() -> None:
    state = complete()
    assert state.inspected is not None
    state.inspected = replace(state.inspected, denied=(DENIED,))
    decision = decide(state, StepPolicy(), 0.0, propose(state))
    assert isinstance(decision, Wait)
    assert decision.problems == (DENIED,)


def test_run_files_are_never_without_their_payloads() -> None:
    policy = StepPolicy(leave_out_tensors="the disk is full")
    assert decide(complete(), policy, 0.0) == Plan("the disk is full")
    assert decide(complete(StepKey(3, None)), policy, 0.0) == Plan("")


def test_a_step_that_has_its_tensors_in_the_store_is_planned_with_them_again() -> None:
    state, policy = complete(), StepPolicy(leave_out_tensors="full")
    commit = made_commit(KEY, "other")
    assert decide(state, policy, 0.0, propose(state, commit, left_out="full")) == Plan("")
    without = made_commit(KEY, "other", removed_tensors=True)
    assert isinstance(decide(state, policy, 0.0, propose(state, without, left_out="full")), Offer)


def test_workers_that_see_other_files_for_the_fifth_time_see_another_disk() -> None:
    state = complete()
    for _ in range(4):
        state.record_stale(state.fingerprint)
    assert state.listing is not None
    state.inspected = made_inspected(state.listing)
    assert isinstance(decide(state, StepPolicy(), 0.0, propose(state)), Offer)
    state.stale = (state.fingerprint, 5)
    decision = decide(state, StepPolicy(), 0.0, propose(state))
    assert isinstance(decision, Refuse)
    assert "same path" in decision.error.hint


def covered_as(decision: Decision, state: StepState) -> Phase:
    """Return as what the store covers a step after a decision to keep what it has."""
    assert isinstance(decision, KeepExisting)
    assert decision.cover.reason
    state.cover = decision.cover
    phase = held_as(state, StepPolicy(leave_out_tensors="full"), lambda _: False)
    assert phase is decision.cover.phase
    return phase


def test_what_was_removed_on_purpose_is_not_taken_again() -> None:
    state = complete()
    assert covered_as(decide(state, StepPolicy(), 0.0, propose(state, removed=True)), state) is Phase.REMOVED


def test_the_generation_that_is_committed_stays_though_the_look_names_it_otherwise() -> None:
    """It knows no bad files, which are part of the name."""
    state = complete()
    proposal = propose(state, made_commit(KEY, "with bad files"), name="with bad files")
    assert covered_as(decide(state, StepPolicy(), 0.0, proposal), state) is Phase.COMMITTED
    state = complete()
    name = without_tensors(state.fingerprint)
    left_out = made_commit(KEY, name, removed_tensors=True)
    decision = decide(state, StepPolicy(), 0.0, propose(state, left_out, left_out="full", name=name))
    assert covered_as(decision, state) is Phase.LEFT_OUT


def test_a_whole_commit_is_not_replaced_because_a_file_cannot_be_read_any_more() -> None:
    """After a restart of the disk, or of the watcher: what is committed is better than what is there."""
    state = complete()
    proposal = propose(state, made_commit(KEY, state.fingerprint), name="one file is unreadable")
    assert covered_as(decide(state, StepPolicy(), 0.0, proposal), state) is Phase.COMMITTED


@pytest.mark.parametrize("replaces", [False, True])
def test_another_dump_is_replaced_only_if_that_was_asked_for(replaces: bool) -> None:
    state = complete()
    proposal = propose(state, made_commit(KEY, "a", root="/other"))
    decision = decide(state, StepPolicy(replace=replaces), 0.0, proposal)
    assert isinstance(decision, Offer if replaces else Refuse)


def test_an_offer_names_the_generation_that_it_replaces() -> None:
    state = complete()
    decision = decide(state, StepPolicy(), 0.0, propose(state, made_commit(KEY, "a")))
    assert isinstance(decision, Offer)
    assert decision.plan.replaces == "a"


@pytest.mark.parametrize(("deletes", "status", "told"), [(False, "complete", True), (True, "partial", True)])
def test_less_than_the_commit_has_keeps_it_and_is_told(deletes: bool, status: str, told: bool) -> None:
    state = complete(KEY, 1, 2)
    commit = made_commit(KEY, "a", status=status)
    proposal = propose(state, commit, committed=files_in(made_files(KEY, 1, 2, 3)))
    decision = decide(state, StepPolicy(deletes=deletes), 0.0, proposal)
    assert covered_as(decision, state) is Phase.KEPT
    assert isinstance(decision, KeepExisting)
    assert (decision.event is not None) is told


FATES = {Offer: "taken", KeepExisting: "kept", Refuse: "named"}


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize(
    ("versions", "fate"),
    [
        ((1, 2, 3), "taken"),  # stored otherwise, such as in other chunks
        ((1, 2, 3, 4), "taken"),
        ((1, 2, 9), "taken"),
        ((1, 2, 0), "kept"),
        ((1, 0, 0), "kept"),
        ((1, 0, 0, 4), "named"),  # one that is late
        ((9, 0, 0), "named"),  # a table that was written again, and nothing else
        ((9, 2, 0), "named"),
        ((0, 0, 0, 4, 5, 6), "named"),  # as many, all of which are late
        ((9, 8, 0), "taken"),  # another dump of the step, with fewer files
        ((9, 8, 7), "taken"),
    ],
)
def test_files_that_are_gone_stay_in_the_store_unless_the_step_was_dumped_again(
    versions: tuple[int, ...], fate: str, deletes: bool
) -> None:
    state = complete(KEY, *versions)
    proposal = propose(state, made_commit(KEY, "a"), committed=files_in(made_files(KEY, 1, 2, 3)))
    decision = decide(state, StepPolicy(deletes=deletes), 0.0, proposal)
    assert FATES[type(decision)] == fate
    if fate == "kept":
        assert isinstance(decision, KeepExisting)
        assert (decision.event is None) is deletes
    if fate == "named":
        assert isinstance(decision, Refuse)
        assert isinstance(decision.error, FilesNotTaken)
        assert all(path in decision.error.message for path in decision.error.files)
        assert "--replace" in decision.error.hint
    replaced = decide(state, StepPolicy(deletes=deletes, replace=True), 0.0, proposal)
    assert isinstance(replaced, KeepExisting if fate == "kept" else Offer)


@pytest.mark.parametrize(
    ("versions", "fate"), [((9, 2, 0), "taken"), ((1, 0, 0, 4, 5), "taken"), ((1, 0, 0, 4), "named")]
)
def test_run_files_come_and_go(versions: tuple[int, ...], fate: str) -> None:
    key = StepKey(3, None)
    state = complete(key, *versions)
    proposal = propose(state, made_commit(key, "a"), committed=files_in(made_files(key, 1, 2, 3)))
    assert FATES[type(decide(state, StepPolicy(), 0.0, proposal))] == fate


def test_an_index_that_cannot_be_read_replaces_nothing() -> None:
    state = complete()
    damaged = propose(state, made_commit(KEY, "a"), committed=DamagedStore("broken"))
    assert isinstance(decide(state, StepPolicy(), 0.0, damaged), Refuse)
    gone = propose(state, made_commit(KEY, "a"), committed=StepRemoved("gone"))
    decision = decide(state, StepPolicy(), 0.0, gone)
    assert isinstance(decision, Wait)
    assert decision.wait_for is WaitFor.LOOK


def test_without_tensors_is_good_enough_only_while_they_are_left_out() -> None:
    state = complete()
    state.committed = without_tensors(state.fingerprint)
    assert held_as(state, StepPolicy(), lambda _: False) is None
    assert held_as(state, StepPolicy(leave_out_tensors="full"), lambda _: False) is Phase.LEFT_OUT


def test_a_commit_counts_whatever_was_removed_before_it() -> None:
    state = complete()
    assert held_as(state, StepPolicy(), lambda _: True) is Phase.REMOVED
    state.committed = "another generation"
    assert held_as(state, StepPolicy(), lambda _: True) is None
    state.cover = Cover(state.fingerprint, Phase.KEPT, "less")
    assert held_as(state, StepPolicy(), lambda _: True) is Phase.KEPT
