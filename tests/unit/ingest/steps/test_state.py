"""The record of one step: what its transitions change, and what they leave."""

from ingest.steps.state import StepState, Wait, WaitFor
from tests.made_steps import made_commit, made_inspected, made_listing, made_plan, made_state
from workers.errors import ClusterError, PoisonedFile, StoreUnavailable
from workers.model import SourceFile, StepKey
from workers.store.record import PoisonedSource

KEY, RUN = StepKey(3, 40), StepKey(3, None)


def test_a_step_has_been_quiet_since_its_newest_change_and_then_by_what_is_observed() -> None:
    state = StepState(KEY)
    state.record_listing(made_listing(KEY, 1), now=100.0, reached=7.0)
    assert state.quiet_for_s == 7.0
    state.record_listing(made_listing(KEY, 1), now=102.0, reached=0.0)
    assert state.quiet_for_s == 9.0
    state.record_listing(made_listing(KEY, 2), now=103.0, reached=1e9)
    assert state.quiet_for_s == 0.0
    state.record_listing(made_listing(KEY, 2), now=104.5, reached=1e9)
    assert state.quiet_for_s == 1.5


def test_a_fingerprint_is_that_of_the_files_listed() -> None:
    state = made_state(KEY, 1)
    name = state.fingerprint
    assert state.listing is not None
    state.record_listing(state.listing, now=1.0, reached=0.0)
    assert state.fingerprint == name
    state.record_listing(made_listing(KEY, 1, 2), now=2.0, reached=0.0)
    assert state.fingerprint == ""


def test_what_waits_is_listed_again_and_what_is_denied_is_read_again() -> None:
    state = made_state(KEY, 1)
    assert state.listing is not None
    state.inspected = made_inspected(state.listing)
    state.await_turn(is_quiet=True)
    assert state.is_listing_reusable
    state.wait(Wait(WaitFor.CONTENT, "not whole"))
    assert (state.is_listing_reusable, state.inspected is None) == (False, False)
    state.wait(Wait(WaitFor.PERMISSION, "denied"))
    assert state.inspected is None


def test_poison_of_a_commit_is_learned_once_and_has_the_headers_read_again() -> None:
    state = made_state(KEY, 1)
    assert state.listing is not None
    state.inspected = made_inspected(state.listing)
    commit = made_commit(KEY, "a", poison=[_row(state.listing.files[0])])
    assert state.learn_poison(commit)
    assert state.poison == {state.listing.files[0]: True}
    assert {state.inspected} == {None}
    assert not state.learn_poison(commit)


def test_too_much_poison_is_forgotten_and_blamed_on_the_workers() -> None:
    state = made_state(KEY, *range(1, 10))
    assert state.listing is not None
    error = PoisonedFile("died", path=state.listing.files[8].path)
    assert state.believable(error) is error
    assert not state.record_bad_file(made_plan(state), StoreUnavailable("away"))
    state.learn_poison(made_commit(KEY, "a", poison=[_row(file) for file in state.listing.files[:8]]))
    assert isinstance(state.believable(error), ClusterError)
    assert state.poison == {}


def _row(file: SourceFile) -> PoisonedSource:
    return PoisonedSource(file.path, file.size, file.mtime_ns, bytes_kept=True)


def test_a_commit_of_run_files_is_followed_by_growing_pauses() -> None:
    state, step = made_state(RUN, 1), made_state(KEY, 1)
    untils = []
    for now in (0.0, 1000.0, 2000.0):
        state.record_commit("a", now)
        assert state.pause is not None
        untils.append(state.pause.until - now)
    assert untils == [60.0, 120.0, 240.0]
    for _ in range(20):
        state.record_commit("a", 0.0)
    assert state.pause is not None
    assert state.pause.until == 3600.0
    step.record_commit("a", 0.0)
    assert step.pause is None


def test_what_is_stale_in_a_row_is_of_one_generation() -> None:
    state = made_state(KEY, 1)
    for _ in range(3):
        state.record_stale("a")
    assert (state.stale_in_a_row("a"), state.stale_in_a_row("b")) == (3, 0)
    state.record_stale("b")
    assert (state.stale_in_a_row("a"), state.stale_in_a_row("b")) == (0, 1)
    state.record_commit("b", 0.0)
    assert state.stale_in_a_row("b") == 0
