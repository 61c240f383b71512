"""How far ranks are behind: by what they wrote last, and by what they committed."""

from ingest.metrics.server import CommitsBehind, Stragglers
from tests.metric_values import NOW, listing


def behind(*written: tuple[int, int, float]) -> dict[int, int]:
    """Return how far each rank is behind, from rank, step and time of each step that was written."""
    stragglers = Stragglers()
    listings = [listing(rank, step, newest=NOW + at) for rank, step, at in written]
    stragglers.record_listings(listings)
    return stragglers.steps_behind({found.key for found in listings})


def test_a_rank_is_behind_by_the_steps_that_others_have_written_since() -> None:
    others = [(rank, step, 10.0 * step) for rank in (0, 1) for step in (1, 2, 3)]
    assert behind(*others, (2, 1, 10.0)) == {0: 0, 1: 0, 2: 2}


def test_a_rank_that_repeats_steps_is_not_behind_those_of_its_former_life() -> None:
    former = [(0, step, 10.0 * step) for step in (1, 2, 3)] + [(1, 1, 10.0)]
    again = [(0, 1, 100.0), (1, 1, 101.0)]
    assert behind(*former[1:3], *again)[1] == 0


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
