"""Which rank is off: the one that a majority is against, in this step or in another."""

from ingest.questions.divergence import divergence
from tests.diverging import ACTIVATION, NORM, REDUCED, STATE, WEIGHT, replicas, summary


def test_one_rank_that_is_off_in_every_step_is_off() -> None:
    """No step shows the group, but three ranks that agree do."""
    found = divergence(replicas(off=[(3, step, name) for step in range(4) for name in (WEIGHT, STATE)]).store)
    assert summary(found) == [((3,), 0, WEIGHT)]
    assert (found.odd[0].tensors, found.odd[0].steps, found.odd[0].healed) == (2, 4, False)


def test_one_rank_that_is_off_in_everything_is_off() -> None:
    names = (WEIGHT, STATE, REDUCED, NORM)
    found = divergence(replicas(off=[(3, step, name) for step in range(4) for name in names]).store)
    assert summary(found) == [((3,), 0, WEIGHT)]


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


def test_two_against_two_is_a_tie() -> None:
    made = replicas(steps=range(3))
    for rank in range(4):
        contents = dict.fromkeys((WEIGHT, REDUCED, NORM), 7) | {ACTIVATION: 70 + rank}
        made.put(rank, 3, {**contents, STATE: 8 + rank // 2})
    found = divergence(made.store)
    assert summary(found) == [((0, 1, 2, 3), 3, STATE)]
    assert not found.odd[0].has_majority


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
