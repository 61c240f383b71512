"""How far ranks are behind: by what they wrote last, and by what they committed."""

from ingest.metrics.common import MAX_STEPS_BEHIND, CommitsBehind, Stragglers
from tests.metric_values import NOW, listing
from workers.model import StepKey


def behind(*written: tuple[int, int, float]) -> dict[int, int]:
    """Return how far each rank is behind, from rank, step and time of each step that was written."""
    stragglers = Stragglers()
    listings = [listing(rank, step, newest=NOW + at) for rank, step, at in written]
    stragglers.record_listings(listings)
    return stragglers.steps_behind({found.key for found in listings})


def test_a_rank_is_behind_by_the_steps_that_others_have_written_since() -> None:
    others = [(rank, step, 10.0 * step) for rank in (0, 1) for step in (1, 2, 3)]
    assert behind(*others, (2, 1, 10.0)) == {0: 0, 1: 0, 2: 2}


def test_a_step_that_ranks_write_at_the_same_time_puts_nobody_behind() -> None:
    assert behind((0, 1, 5.0), (1, 1, 3.0), (0, 2, 15.0), (1, 2, 13.0)) == {0: 0, 1: 0}


def test_a_rank_that_repeats_steps_is_not_behind_those_of_its_former_life() -> None:
    former = [(0, step, 10.0 * step) for step in (1, 2, 3)] + [(1, 1, 10.0)]
    again = [(0, 1, 100.0), (1, 1, 101.0)]
    assert behind(*former[1:3], *again)[1] == 0


def test_a_rank_whose_dumps_were_cleaned_away_stays_where_it_was() -> None:
    stragglers = Stragglers()
    stragglers.record_listings([listing(0, 7), listing(1, 7)])
    stragglers.record_listings([listing(0, 7)])
    assert stragglers.steps_behind({StepKey(0, 7)}) == {0: 0, 1: 0}


def test_the_number_of_steps_that_are_remembered_is_bounded() -> None:
    stragglers = Stragglers()
    stragglers.record_listings([listing(1, 0)])
    stragglers.record_listings(
        [listing(0, step, newest=NOW + step) for step in range(1, 3 * MAX_STEPS_BEHIND)]
    )
    assert stragglers.steps_behind(set())[1] == MAX_STEPS_BEHIND
    stragglers.record_listings([listing(2, None)])
    assert set(stragglers.steps_behind(set())) == {0, 1}


def test_a_rank_falls_behind_while_others_commit_and_not_by_a_restart() -> None:
    behind = CommitsBehind()
    assert behind.after({0: 101, 1: 100}) == {
        0: 0,
        1: 1,
    }  # as a job leaves its ranks that is killed in a dump
    assert behind.after({0: 105, 1: 100}) == {0: 0, 1: 2}
    assert behind.after({0: 105, 1: 100}) == {0: 0, 1: 2}
    assert behind.after({0: 110, 1: 110}) == {0: 0, 1: 0}


def test_ranks_that_number_their_steps_differently_are_not_behind() -> None:
    behind = CommitsBehind()
    behind.after({0: 0, 1: 1000})
    for step in range(1, 5):
        assert behind.after({0: step, 1: 999 + step})[0] == 0
        assert behind.after({0: step, 1: 1000 + step})[0] == 1  # until it commits, too
    assert behind.after({0: 4, 1: 1005})[0] == 2


def test_a_rank_that_dumps_every_other_step_is_behind_by_one() -> None:
    behind = CommitsBehind()
    for step in range(0, 20, 2):
        assert behind.after({0: step, 1: max(step - 1, 0)})[0] == 0
        assert behind.after({0: step, 1: step})[0] == 0
        assert behind.after({0: step, 1: step + 1})[0] == 1


def test_what_was_removed_from_the_store_does_not_count() -> None:
    behind = CommitsBehind()
    behind.after({0: 9999, 1: 100})
    behind.after({0: 9999, 1: 101})
    assert behind.after({0: 101, 1: 101}) == {0: 0, 1: 0}
    assert behind.after({0: 102, 1: 101}) == {0: 0, 1: 1}
    assert behind.after({}) == {}


def test_counts_and_memory_are_bounded() -> None:
    behind = CommitsBehind()
    for step in range(2 * MAX_STEPS_BEHIND):
        counts = behind.after({0: step, 1: 0})
    assert counts == {0: 0, 1: MAX_STEPS_BEHIND}
