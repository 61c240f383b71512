"""What some replicas have and others do not."""

import pytest

from ingest.questions.divergence import divergence
from tests.diverging import ACTIVATION, NORM, REDUCED, STATE, WEIGHT, absent, replicas
from tests.replicas import Replicas

EXPERT, OUTPUT = "Module.Expert.expert1.output.0", "Module.Net.model.output.0"


def test_a_rank_of_a_given_group_that_is_not_there_is_missed() -> None:
    found = divergence(replicas().store, [range(6)])
    assert absent(found) == [("missing", "rank", (4,), ""), ("missing", "rank", (5,), "")]


def test_a_tensor_an_operator_and_a_step_are_missed() -> None:
    made = replicas(steps=range(2))
    contents = {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4, ACTIVATION: 5}
    for rank in range(3):
        without = {1: [STATE], 2: [NORM]}.get(rank, [])
        made.put(rank, 2, {name: value for name, value in contents.items() if name not in without})
    found = divergence(made.store)
    assert sorted(absent(found)) == [
        ("missing", "operator", (2,), "Adam.norm"),
        ("missing", "step", (3,), ""),
        ("missing", "tensor", (1,), STATE),
    ]
    assert {(missing.first_step, missing.last_step, missing.steps) for missing in found.missing} == {
        (2, 2, 1)
    }


def test_what_one_rank_alone_has_is_extra() -> None:
    made = replicas(steps=range(2))
    for rank in range(4):
        more = {"Print.log.output.0": 1} if rank == 0 else {}
        made.put(rank, 2, {WEIGHT: 1, STATE: 2, REDUCED: 3, NORM: 4, ACTIVATION: rank, **more})
    assert absent(divergence(made.store)) == [("extra", "operator", (0,), "Print.log")]


def test_ranks_that_number_operators_otherwise_are_said() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            named = {f"ReLU.op{number + 20 * rank}.output.0": number + 1 for number in range(20)}
            made.put(rank, step, {WEIGHT: step + 1, **named})
    found = divergence(made.store)
    assert found.agree
    assert any("names of tensors in common" in note for note in found.notes)


def test_tensors_of_which_each_rank_has_its_own_are_not_missed() -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            shared = {WEIGHT: step, NORM: 10 + step, STATE: 20 + step}
            made.put(rank, step, shared | {f"Parameter.tables.{rank}.output.0": 50 + rank})
    found = divergence(made.store)
    assert found.agree
    assert any("each its own" in note for note in found.notes)


@pytest.mark.parametrize(
    ("samples", "lost", "names"),
    [
        ((1, 2), {EXPERT}, []),
        ((1, 1), {EXPERT}, ["Module.Expert.expert1"]),
        ((1, 2), {EXPERT, "Gradient.weight1.output.0"}, ["Gradient.weight1"]),
        ((1, 2), {EXPERT, OUTPUT}, ["Module.Expert.expert1", OUTPUT]),
    ],
)
def test_calls_that_depend_on_samples_are_not_missed(
    samples: tuple[int, int], lost: set[str], names: list[str]
) -> None:
    made = Replicas()
    for step in range(3):
        for rank in range(2):
            contents = {"Module.Net.model.input.0": 100 * step + samples[rank], EXPERT: 900 + rank}
            contents |= {f"Parameter.{name}.output.0": 300 + step for name in ("weight1", "head", "norm")}
            contents |= {"Gradient.weight1.output.0": 500 + step, OUTPUT: 700 + rank}
            made.put(rank, step, {name: each for name, each in contents.items() if rank or name not in lost})
    found = divergence(made.store)
    assert sorted(row.name for row in found.missing) == names
    assert any("no token chose" in note for note in found.notes) == ("Module.Expert.expert1" not in names)
