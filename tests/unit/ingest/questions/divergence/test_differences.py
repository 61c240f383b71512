"""Which rank is off: the one that a majority is against, or that values show; since when, and in what."""

from ingest.questions.divergence import divergence
from tests.diverging import NORM, REDUCED, STATE, WEIGHT, replicas, summary


def test_one_rank_that_is_off_in_every_step_is_off() -> None:
    """No step shows the group, but three ranks that agree do."""
    found = divergence(replicas(off=[(3, step, name) for step in range(4) for name in (WEIGHT, STATE)]).store)
    assert summary(found) == [((3,), 0, WEIGHT)]
    assert (found.odd[0].tensors, found.odd[0].steps, found.odd[0].healed) == (2, 4, False)


def test_of_two_ranks_no_majority_says_which() -> None:
    found = divergence(replicas(range(2), off=[(1, 2, STATE), (1, 3, STATE)]).store)
    assert summary(found) == [((0, 1), 2, STATE)]
    assert not found.odd[0].has_majority
    assert found.odd[0].others == ()


def test_a_tie_is_settled_by_the_majority_of_other_steps() -> None:
    made = replicas(range(3), off=[(2, 2, WEIGHT), (2, 3, WEIGHT)])
    for rank in (1, 2):
        made.put(rank, 4, {WEIGHT: 9 + rank, STATE: 2, REDUCED: 3, NORM: 4})
    found = divergence(made.store)
    assert summary(found) == [((2,), 2, WEIGHT)]
    assert (found.odd[0].steps, found.odd[0].last_step) == (3, 4)


def test_two_odd_ranks_are_told_apart() -> None:
    found = divergence(replicas(range(5), off=[(1, 1, REDUCED), (4, 2, WEIGHT), (4, 3, WEIGHT)]).store)
    assert summary(found) == [((1,), 1, REDUCED), ((4,), 2, WEIGHT)]
    assert [odd.healed for odd in found.odd] == [True, False]


def test_bits_that_no_statistic_sees_are_said() -> None:
    made = replicas(steps=range(3))
    contents = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}
    for rank in range(4):
        made.put(rank, 3, contents | {REDUCED: 3 + (rank == 1)}, statistics=contents)
    (found,) = divergence(made.store).differences
    assert found.same_statistics
    assert found.ranks == (1,)


def test_the_onset_names_the_values_of_the_odd_rank_and_of_the_others() -> None:
    found = divergence(replicas(off=[(2, 1, WEIGHT), (2, 2, WEIGHT), (2, 2, STATE)]).store)
    (odd,) = found.odd
    assert (odd.first_step, odd.last_step, odd.steps, odd.tensors) == (1, 2, 2, 2)
    assert odd.first == found.differences[0]
    assert all(ours != theirs for ours, theirs in odd.values.values())
    assert "nan_count" not in odd.values
