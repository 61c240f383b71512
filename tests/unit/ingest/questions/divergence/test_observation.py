"""What is observed of each tensor: its kind, its digests, or only its statistics."""

from ingest.questions.divergence import divergence
from tests.diverging import NORM, REDUCED, STATE, WEIGHT, replicas, summary
from tests.replicas import Replicas


def test_inputs_that_hold_a_weight_are_weights() -> None:
    made = Replicas()
    for step in range(2):
        for rank in range(2):
            contents = {"MatMul.fc.input.1": 5 + step, WEIGHT: 5 + step}
            made.put(rank, step, contents | ({"MatMul.fc.input.1": 9} if rank and step else {}))
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 1, "MatMul.fc.input.1")]
    assert found.odd[0].first.why == "parameter"


def test_what_is_only_reported_is_compared_by_statistics() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(3):
            made.put(rank, step, {WEIGHT: step + 1 + 50 * (rank == 2 and step == 1)}, reported=True)
    (found,) = divergence(made.store).differences
    assert (found.ranks, found.first_step, found.by) == ((2,), 1, "statistics")


def test_digests_and_statistics_are_not_held_against_each_other() -> None:
    made = replicas(steps=range(2))
    for rank in range(4):
        made.put(rank, 2, {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4}, reported=rank == 1)
    assert divergence(made.store).agree
