"""Where each odd rank began."""

from ingest.questions.divergence import divergence
from tests.diverging import NORM, REDUCED, STATE, WEIGHT, replicas, summary


def test_the_first_tensor_is_the_first_by_execution() -> None:
    made = replicas(steps=range(2))
    base = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}
    for rank in range(4):
        wrong = {NORM: 99, STATE: 98} if rank == 2 else {}
        contents = base | wrong
        # This rank ran its operators in another order.
        order = reversed(contents) if rank == 2 else iter(contents)
        made.put(rank, 2, {name: contents[name] for name in order})
    assert summary(divergence(made.store)) == [((2,), 2, NORM)]


def test_the_onset_names_the_values_of_the_odd_rank_and_of_the_others() -> None:
    found = divergence(replicas(off=[(2, 1, WEIGHT), (2, 2, WEIGHT), (2, 2, STATE)]).store)
    (odd,) = found.odd
    assert (odd.first_step, odd.last_step, odd.steps, odd.tensors) == (1, 2, 2, 2)
    assert odd.first == found.differences[0]
    assert all(ours != theirs for ours, theirs in odd.values.values())
    assert "nan_count" not in odd.values


def test_onsets_and_differences_are_in_order_of_step_and_execution() -> None:
    found = divergence(
        replicas(range(5), off=[(4, 1, NORM), (1, 1, WEIGHT), (1, 3, STATE), (3, 2, NORM)]).store
    )
    assert summary(found) == [((1,), 1, WEIGHT), ((4,), 1, NORM), ((3,), 2, NORM)]
    assert [(row.first_step, row.name) for row in found.differences] == [
        (1, WEIGHT),
        (1, NORM),
        (2, NORM),
        (3, STATE),
    ]
