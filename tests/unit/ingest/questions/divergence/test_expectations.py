"""Which ranks must agree, judged by what they did agree on."""

import pytest

from ingest.questions.divergence import divergence
from tests.diverging import NORM, STATE, WEIGHT, on_a_mesh, replicas, summary
from tests.replicas import Replicas


def test_each_tensor_has_its_own_replicas() -> None:
    """Parts of a matrix are held by some ranks, normalisation by all, activations by the others."""
    found = divergence(on_a_mesh().store)
    assert found.agree
    assert {group.ranks for group in found.groups} == {
        (0, 1, 2, 3, 4, 5),
        (0, 2, 4),
        (1, 3, 5),
        (0, 1),
        (2, 3),
        (4, 5),
    }


@pytest.mark.parametrize("name", [WEIGHT, NORM])
def test_the_odd_rank_is_found_within_its_replicas(name: str) -> None:
    assert summary(divergence(on_a_mesh([(3, 2, name)]).store)) == [((3,), 2, name)]


def test_stages_of_a_pipeline_share_no_tensors() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(4):
            stage = rank // 2
            made.put(rank, step, {f"Adam.stage{stage}.input.0": 10 * step + stage + 1})
    found = divergence(made.store)
    assert found.agree
    assert {group.ranks for group in found.groups} == {(0, 1), (2, 3)}


def test_parts_that_begin_equal_are_no_replicas() -> None:
    """Zeros agree whatever the ranks do."""
    made = Replicas()
    for rank in range(4):
        made.put(rank, 0, {WEIGHT: 1, STATE: 2}, constant=True)
        for step in (1, 2):
            made.put(rank, step, {WEIGHT: 10 * step + rank % 2, STATE: 100 * step + rank % 2})
    found = divergence(made.store)
    assert found.agree
    assert {group.ranks for group in found.groups} == {(0, 2), (1, 3)}


def test_batches_that_are_dumped_as_parameters_are_not_compared() -> None:
    made = replicas()
    for step in range(4, 8):
        for rank in range(4):
            made.put(rank, step, {WEIGHT: step, "Parameter.x.output.0": 100 * step + rank})
    found = divergence(made.store)
    assert not found.differences
    assert any("Parameter.x.output.0" in note for note in found.notes)


def test_a_weight_that_never_agreed_is_off_where_its_gradient_agrees() -> None:
    """As where ranks began with other weights. Without a common gradient, each has its own part."""
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            parts = {f"Adam.part.input.{slot}": 10 * step + 5 * rank + slot + 1 for slot in range(3)}
            made.put(rank, step, {WEIGHT: 100 + step + 50 * rank, STATE: 200 + step, **parts})
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 0, WEIGHT)]
    assert len(found.differences) == 1
    assert "Adam.part.input.0" in found.notes[0]


def test_a_parameter_is_off_if_ranks_part_that_shared_it_and_its_gradient() -> None:
    """One step is enough: the next value follows from both. With other gradients, each may have its part."""
    made = Replicas()
    for step in range(4):
        for rank in range(2):
            apart = 50 * (rank and step > 0)
            made.put(
                rank,
                step,
                {
                    "Parameter.shared.output.0": 10 * step + apart + 1,
                    "Gradient.shared.output.0": 10 * step + 2 + 500 * (rank and step > 0),
                    "Parameter.part.output.0": 10 * step + apart + 3,
                    "Gradient.part.output.0": 10 * step + 4 + 500 * rank,
                    "Parameter.norm.output.0": 10 * step + 5,
                },
            )
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 1, "Parameter.shared.output.0")]
    assert len(found.differences) == 1


def test_a_parameter_is_off_if_ranks_began_with_it_as_with_most_others() -> None:
    """Of a gradient that was dumped before it was reduced, nothing follows."""
    made = Replicas()
    for step in range(4):
        for rank in range(2):
            names = {"Parameter.odd.output.0": 10 * step + 1 + 50 * (rank and step > 0)}
            names |= {f"Parameter.{name}.output.0": 10 * step + value for name, value in (("a", 2), ("b", 3))}
            gradients = {name.replace("Parameter", "Gradient"): 500 * rank + at for name, at in names.items()}
            made.put(rank, step, names | gradients)
    assert summary(divergence(made.store)) == [((0, 1), 1, "Parameter.odd.output.0")]


def test_parameters_that_step_with_one_gradient_are_one() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            names = {"Parameter.w.output.0": 10 * step + rank + 1, "Gradient.w.output.0": 10 * step + 5}
            made.put(rank, step, names | {"Parameter.norm.output.0": 10 * step + 7})
    assert summary(divergence(made.store)) == [((0, 1), 0, "Parameter.w.output.0")]


def test_any_tensor_that_agreed_long_enough_is_missed() -> None:
    made = Replicas()
    for step in range(5):
        for rank in range(2):
            made.put(rank, step, {"Mul.scale.output.0": step + 1 + 100 * (rank and step == 4), WEIGHT: step})
    found = divergence(made.store)
    assert summary(found) == [((0, 1), 4, "Mul.scale.output.0")]
    assert found.odd[0].first.why == "agreed before"
