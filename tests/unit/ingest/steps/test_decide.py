"""What is done with a step: by its state, its commit and the policy, without a dump, a store or a clock."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ingest.layouts.base import Problem
from ingest.planning.plan import without_tensors
from ingest.steps.decide import (
    Decision,
    Inspect,
    KeepExisting,
    Offer,
    Plan,
    Proposal,
    Refuse,
    StepPolicy,
    decide,
    held_as,
)
from ingest.steps.difference import CommittedFiles, FilesNotTaken
from ingest.steps.explain import explain
from ingest.steps.state import Cover, DeletionStage, Pause, Phase, StepState, StepTable, Wait, WaitFor
from tests.made_steps import (
    ROOT,
    files_in,
    made_commit,
    made_files,
    made_inspected,
    made_listing,
    made_plan,
    made_state,
)
from workers.errors import ClusterError, DamagedStore, StepRemoved, StoreUnavailable
from workers.model import StepKey
from workers.store.commit import Commit
from workers.tasks.model import StepPlan

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


KEYS = [StepKey(0, None), StepKey(0, 0), StepKey(1, 0)]
keys = st.sampled_from(KEYS)
HELD = frozenset([Phase.COMMITTED, Phase.LEFT_OUT, Phase.KEPT, Phase.REMOVED])


class Steps(RuleBasedStateMachine):
    """A dump that changes, a store that others write to, and a service that decides about every step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = StepTable()
        self.policy = StepPolicy()
        self.now = 60.0
        self.dump: dict[StepKey, tuple[int, ...]] = dict.fromkeys(KEYS, (1, 1))
        self.denied: set[StepKey] = set()
        self.growing: set[StepKey] = set()
        self.store: dict[StepKey, tuple[Commit, CommittedFiles]] = {}
        self.removed: dict[str, CommittedFiles] = {}
        self.offered: dict[StepKey, tuple[Commit, CommittedFiles]] = {}
        """What the workers would commit."""

    @initialize(replace_others=st.booleans(), deletes=st.booleans(), left_out=st.sampled_from(["", "full"]))
    def choose_policy(self, replace_others: bool, deletes: bool, left_out: str) -> None:
        self.policy = StepPolicy(replace=replace_others, deletes=deletes, leave_out_tensors=left_out)

    @rule(key=keys, versions=st.sampled_from([None, (), (1,), (1, 1), (1, 2), (1, 1, 1)]))
    def dump_changes(self, key: StepKey, versions: tuple[int, ...] | None) -> None:
        if versions is None:
            self.dump.pop(key, None)
        else:
            self.dump[key] = versions

    @rule(key=keys, denies=st.booleans(), grows=st.booleans())
    def files_change(self, key: StepKey, denies: bool, grows: bool) -> None:
        (self.denied.add if denies else self.denied.discard)(key)
        (self.growing.add if grows else self.growing.discard)(key)

    @rule(key=keys, who=st.sampled_from(["another watcher", "another dump", "nobody whole", "gc"]))
    def store_changes(self, key: StepKey, who: str) -> None:
        if who == "gc":
            if key in self.store:
                commit, files_of_commit = self.store.pop(key)
                self.removed[commit.fingerprint] = files_of_commit
            return
        files = made_files(key, *self.dump.get(key, (1, 1)), 1)
        root = "/other" if who == "another dump" else ROOT
        status = "partial" if who == "nobody whole" else "complete"
        self.store[key] = made_commit(key, f"{who} {len(files)}", root=root, status=status), files_in(files)

    @rule(
        seconds=st.sampled_from([0.5, 11.0, 70.0, 4000.0]),
        poison=st.booleans(),
        outcome=st.sampled_from(["committed", "failed", "store away", "stale", "still under way"]),
    )
    def service_ticks(self, seconds: float, poison: bool, outcome: str) -> None:
        self.now += seconds
        for state in self.table:
            if state.work is not None and outcome != "still under way":
                self._finish(state, outcome)
        self.table.follow(set(self.dump))
        for state in self.table:
            self._see(state)
        for state in self.table:
            if state.listing is not None:
                self._compare(state)
        for state in self.table:
            if state.is_pending:
                self._take(state, poison=poison)

    def _see(self, state: StepState) -> None:
        problems = (DENIED,) if state.key in self.denied else ()
        listing = made_listing(state.key, *self.dump.get(state.key, ()), problems=problems)
        if listing.files or problems:
            state.record_listing(listing, now=self.now, reached=self.now)
        else:
            state.lose_files()

    def _compare(self, state: StepState) -> None:
        if not state.fingerprint:
            assert state.listing is not None
            state.fingerprint = f"{state.key.path} {[file.mtime_ns for file in state.listing.files]}"
        phase = held_as(state, self.policy, self.removed.__contains__)
        if phase is not None:
            state.hold(phase)
        else:
            state.await_turn(is_quiet=True)

    def _take(self, state: StepState, *, poison: bool) -> None:
        decision = self._decide(state, poison=poison)
        match decision:
            case Offer(plan=plan):
                self._check_offer(state, plan)
                files = files_in(made_files(state.key, *self.dump[state.key]))
                self.offered[state.key] = made_commit(state.key, plan.fingerprint), files
                state.offer(len(plan.jobs))
            case KeepExisting(cover=cover):
                state.cover = cover
            case Wait(wait_for=WaitFor.TASKS | WaitFor.PAUSE):
                pass
            case Wait():
                state.wait(decision)
            case Refuse(error=error):
                assert error.message
                state.record_failure(error, self.now)
            case _:
                raise AssertionError(decision)

    def _decide(self, state: StepState, *, poison: bool) -> Decision:
        """Answer what is asked for until it is decided."""
        decision = decide(state, self.policy, self.now)
        if isinstance(decision, Inspect):
            assert state.listing is not None
            unfinished = "short" if state.key in self.growing else ""
            state.inspected = made_inspected(state.listing, unfinished=unfinished)
            decision = decide(state, self.policy, self.now)
        while isinstance(decision, Plan):
            left_out = decision.leave_out_tensors
            name = state.fingerprint + (" poison" if poison else "")
            name = without_tensors(name) if left_out else name
            commit, files = self.store.get(state.key, (None, CommittedFiles()))
            state.committed = None if commit is None else commit.fingerprint
            removed = self._is_left_of_removed(state)
            proposal = propose(state, commit, committed=files, removed=removed, left_out=left_out, name=name)
            decision = decide(state, self.policy, self.now, proposal)
        return decision

    def _is_left_of_removed(self, state: StepState) -> bool:
        """Return whether a removed generation had all of the files that the dump has now."""
        present = files_in(made_files(state.key, *self.dump[state.key])).versions.items()
        return any(present <= files.versions.items() for files in self.removed.values())

    def _check_offer(self, state: StepState, plan: StepPlan) -> None:
        assert state.key not in self.denied
        assert state.listing is not None
        assert state.listing.files == made_files(state.key, *self.dump[state.key])
        assert state.key not in self.growing or state.quiet_for_s >= 10
        assert state.work is None
        assert state.pause is None or state.pause.until <= self.now
        commit, _ = self.store.get(state.key, (None, CommittedFiles()))
        if commit is None:
            assert not self._is_left_of_removed(state)
            assert plan.replaces == ""
        else:
            assert commit.fingerprint not in (plan.fingerprint, state.fingerprint)
            assert plan.replaces == commit.fingerprint
            assert commit.record.source.root == ROOT or self.policy.replace

    def _finish(self, state: StepState, outcome: str) -> None:
        state.work = None
        commit, files = self.offered.pop(state.key)
        match outcome:
            case "committed":
                self.store[state.key] = commit, files
                state.committed = commit.fingerprint
                state.record_commit(commit.fingerprint, self.now)
            case "failed":
                state.record_failure(ClusterError("no workers"), self.now)
            case "store away":
                state.record_failure(StoreUnavailable("away"), self.now)
                assert state.pause is not None
                assert state.pause.for_store
                state.pause = None
            case _:
                state.record_stale(commit.fingerprint)

    @invariant()
    def nothing_is_known_of_steps_without_files(self) -> None:
        for state in self.table:
            if state.listing is None:
                assert {state.held, state.inspected, state.waiting, state.pause} == {None}

    @invariant()
    def every_step_is_somewhere_for_a_reason(self) -> None:
        for state in self.table:
            row = explain(state, self.policy, self.now)
            assert row.reason
            assert (row.waits_for is None) == (Phase(row.phase) in {*HELD, Phase.READY, Phase.REFUSED})

    @invariant()
    def what_the_store_holds_waits_for_nothing(self) -> None:
        for state in self.table:
            assert state.held is None or state.waiting is None
            if state.held is not None and state.work is None:
                assert isinstance(decide(state, self.policy, self.now), KeepExisting)


Steps.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestSteps = Steps.TestCase
