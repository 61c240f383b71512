"""How often other ranks have committed since a rank did."""

from ingest.metrics.commits_behind import CommitsBehind
from ingest.metrics.stragglers import MAX_STEPS_BEHIND


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
