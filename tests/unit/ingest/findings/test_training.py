"""Rules of training: what a step does in a healthy run, and each way in which it may not."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

from ingest.findings.history import StepValues, StepWindow
from ingest.findings.series_kinds import KINDS
from tests.rule_sets import only
from workers.arrays.digest import digest
from workers.arrays.statistics import FIELDS, summarise
from workers.store.consolidated.blocks import TensorKey

Tensors: TypeAlias = dict[str, np.ndarray[Any, Any]]
STEPS = 14
FAULTY = 9


def healthy(step: int, rank: int = 0, *, carried: float = 0.0) -> Tensors:
    """Return a step of two linear layers, dropout and batch normalisation, with gradients.

    Args:
        step: its number.
        rank: each has a batch of its own.
        carried: how much of the gradients of the step before is in these.
    """
    rng = np.random.default_rng([step, rank])
    tensors: Tensors = {"Module.Net.model.input.0": rng.normal(size=(8, 4))}
    for layer in ("a", "b"):
        gradient = rng.normal(1, 1, size=(8, 4))
        tensors |= {
            f"Parameter.{layer}.weight.output.0": rng.normal(size=(4, 4)),
            f"Parameter.{layer}.bias.output.0": rng.normal(size=4),
            f"Module.Linear.{layer}.output.0": rng.normal(size=(8, 4)),
            f"Gradient.{layer}.output.output.0": gradient,
            f"Gradient.{layer}.weight.output.0": rng.normal(size=(4, 4)),
            f"Gradient.{layer}.bias.output.0": gradient.sum(axis=0),
        }
        if carried and step:
            before = healthy(step - 1, rank, carried=carried)[f"Gradient.{layer}.bias.output.0"]
            tensors[f"Gradient.{layer}.bias.output.0"] += carried * before
    values = tensors["Module.Linear.b.output.0"]
    return tensors | {
        "Module.Dropout.drop.input.0": values,
        "Module.Dropout.drop.output.0": values * rng.integers(0, 2, values.shape),
        "Module.BatchNorm1d.bn.output.0": rng.normal(size=(8, 4)),
        "Parameter.bn.num_batches_tracked.output.0": np.array([step]),
    }


def window(steps: Sequence[Sequence[Tensors]]) -> StepWindow:
    """Return a window of steps, each with the tensors of every rank."""
    names = list(dict.fromkeys(name for ranks in steps for tensors in ranks for name in tensors))
    keys = []
    for whole in names:
        name, _, occurrence = whole.partition("#")
        kind, *path, io, slot = name.split(".")
        kind = f"{kind}.{path.pop(0)}" if kind == "Module" else kind
        keys.append(TensorKey("", "", kind, ".".join(path), io, int(slot), int(occurrence or 0)))
    values = []
    for number, ranks in enumerate(steps):
        shape = (len(ranks), len(names))
        row, digests = np.full(shape, -1, np.int32), np.zeros((*shape, 16), np.uint8)
        statistics = np.full((*shape, len(FIELDS)), np.nan)
        for rank, tensors in enumerate(ranks):
            for place, name in enumerate(names):
                if name in tensors:
                    row[rank, place] = place
                    digests[rank, place] = np.frombuffer(digest(tensors[name].tobytes()), np.uint8)
                    statistics[rank, place] = summarise(tensors[name].reshape(-1)).as_row()
        by_name = {name: statistics[:, :, place] for place, name in enumerate(FIELDS)}
        values.append(StepValues(number, tuple(range(len(ranks))), row, by_name, digests))
    return StepWindow(values[-1], values[:-1], keys)


def told(steps: Sequence[Sequence[Tensors]], kind: str) -> dict[str, tuple[str, int | None]]:
    """Return cause and first step of each tensor that a rule names in the last step, on any rank."""
    seen = window(steps)
    rule = only(kind=kind).rules[0]
    with np.errstate(all="ignore"):
        return {
            seen.keys[place].name: (hits.cause, hits.since)
            for hits in KINDS[kind].evaluate(rule, seen)
            for _, place in np.argwhere(hits.mask).tolist()
        }


TRAINING = ("not_updated", "no_gradient", "accumulated", "mode", "batch")


@pytest.mark.parametrize("kind", TRAINING)
@pytest.mark.parametrize("steps", [1, 2, 5, STEPS])
def test_a_healthy_run_has_no_findings(kind: str, steps: int) -> None:
    assert not told([[healthy(step, rank) for rank in (0, 1)] for step in range(steps)], kind)


@pytest.mark.parametrize("kind", TRAINING)
def test_steps_that_are_parts_of_a_batch_are_no_fault(kind: str) -> None:
    """Gradients add up over four steps, in which no parameter changes; the model is that of the fourth."""
    steps: list[list[Tensors]] = []
    for step in range(STEPS):
        still = {name: values for name, values in healthy(step // 4).items() if "Parameter" in name}
        own = healthy(step)
        if step % 4:
            for name in own:
                if name.startswith("Gradient") and not name.endswith("output.output.0"):
                    own[name] = own[name] + steps[-1][0][name]
        own["Parameter.bn.num_batches_tracked.output.0"] = np.array([step])
        steps.append([own | still | {"Parameter.bn.num_batches_tracked.output.0": np.array([step])}])
        assert not told(steps, kind)


@pytest.mark.parametrize("kind", TRAINING)
def test_validation_in_a_step_is_no_fault(kind: str) -> None:
    """Before each third step, the model is called in evaluation mode with the batch of the step before."""
    steps: list[list[Tensors]] = []
    for step in range(STEPS):
        own = healthy(step)
        if step % 3 == 2:
            called = (
                "Module.Net.model.input.0",
                "Module.Dropout.drop.input.0",
                "Module.Dropout.drop.output.0",
            )
            own |= {f"{name}#1": own[name] for name in called}
            own |= {called[0]: steps[-1][0][called[0]], called[2]: own[called[1]]}
        steps.append([own])
        assert not told(steps, kind)


def _frozen(step: int) -> Tensors:
    changed = healthy(step)
    return changed | {"Parameter.a.weight.output.0": healthy(FAULTY)["Parameter.a.weight.output.0"]}


def _all_frozen(step: int) -> Tensors:
    return healthy(step) | {name: one for name, one in healthy(FAULTY).items() if "Parameter" in name}


def _without_gradient(step: int) -> Tensors:
    return {name: one for name, one in healthy(step).items() if name != "Gradient.b.weight.output.0"}


def _in_evaluation(step: int) -> Tensors:
    whole = healthy(step)
    return whole | {
        "Module.Dropout.drop.output.0": whole["Module.Dropout.drop.input.0"],
        "Parameter.bn.num_batches_tracked.output.0": np.array([FAULTY]),
    }


def _constant(step: int) -> Tensors:
    return healthy(step) | {"Module.Net.model.input.0": np.full((8, 4), 0.5)}


def _repeated(step: int) -> Tensors:
    return healthy(step) | {"Module.Net.model.input.0": healthy(step - 1)["Module.Net.model.input.0"]}


def _in_other_units(step: int) -> Tensors:
    return healthy(step) | {"Module.Net.model.input.0": 255 * healthy(step)["Module.Net.model.input.0"]}


@pytest.mark.parametrize(
    ("kind", "faulty", "lag", "cause", "named"),
    [
        ("not_updated", _frozen, 3, "update does not happen", ["Parameter.a.weight"]),
        ("not_updated", _all_frozen, 3, "update does not happen", [f"Parameter.{n}" for n in (
            "a.weight", "a.bias", "b.weight", "b.bias")]),
        ("no_gradient", _without_gradient, 1, "no gradient", ["Parameter.b.weight"]),
        ("mode", _in_evaluation, 0, "mode changed", ["Module.Dropout.drop"]),
        ("mode", _in_evaluation, 1, "mode changed", ["Module.BatchNorm1d.bn"]),
        ("batch", _constant, 0, "batch of one value", ["Module.Net.model"]),
        ("batch", _repeated, 0, "batch repeated", ["Module.Net.model"]),
        ("batch", _in_other_units, 0, "bad values in a batch", ["Module.Net.model"]),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_cause_and_first_step(
    kind: str, faulty: Callable[[int], Tensors], lag: int, cause: str, named: list[str]
) -> None:
    steps = [[healthy(step)] for step in range(FAULTY)]
    steps += [[faulty(step)] for step in range(FAULTY, FAULTY + lag + 1)]
    found = told(steps, kind)
    assert [name.rpartition(".output")[0] or name.rpartition(".input")[0] for name in found] == named
    assert {began for _, began in found.values()} <= {FAULTY, FAULTY + 1}
    assert {what for what, _ in found.values()} == {cause}


def test_a_batch_of_one_value_is_told_from_the_second_step_on() -> None:
    found = told([[healthy(0)], [_constant(1)]], "batch")
    assert found == {"Module.Net.model.input.0": ("batch of one value", 1)}


@pytest.mark.parametrize(("given", "moves"), [(1.0, True), (0.0, True), (1.0, False)])
def test_a_gradient_of_zeros_in_all_steps_is_told_unless_its_module_reads_zeros_or_nothing_moves(
    given: float, *, moves: bool
) -> None:
    def step_of(number: int) -> Tensors:
        name, whole = "Gradient.b.weight.output.0", healthy(number)
        whole |= {} if moves else {key: one for key, one in healthy(0).items() if key.startswith("Parameter")}
        return whole | {name: np.zeros((4, 4)), "Module.Linear.b.input.0": np.full((8, 4), given)}

    found = told([[step_of(step)] for step in range(4)], "no_gradient")
    assert found == ({"Parameter.b.weight.output.0": ("no gradient", 0)} if given and moves else {})


@pytest.mark.parametrize(("added", "cause"), [(0.0, "no gradient"), (1.0, "")])
def test_an_output_that_a_trained_module_reads_and_that_gets_no_gradient_is_cut_off(
    added: float, cause: str
) -> None:
    def step_of(number: int) -> Tensors:
        whole = healthy(number)
        whole["Module.Linear.b.input.0"] = whole["Module.Linear.a.output.0"] + added
        is_lost = number >= FAULTY
        return {name: one for name, one in whole.items() if not (is_lost and name.startswith("Gradient.a."))}

    found = told([[step_of(step)] for step in range(FAULTY + 2)], "no_gradient")
    assert found == {"Module.Linear.a.output.0": (cause, FAULTY)}


def test_gradients_that_add_up_are_told_in_the_second_step() -> None:
    found = told([[healthy(0)], [healthy(1, carried=1.0)]], "accumulated")
    assert found["Gradient.a.weight.output.0"] == ("gradients add up over steps", 1)
    assert not told([[healthy(0)], [healthy(1, carried=0.5)]], "accumulated")


def test_two_ranks_with_the_same_batch_are_told_unless_they_always_have_it() -> None:
    steps = [[healthy(step, 0), healthy(step, 1)] for step in range(FAULTY)]
    found = told([*steps, [healthy(FAULTY)] * 2], "batch")
    assert found == {"Module.Net.model.input.0": ("same batch on two ranks", FAULTY)}
    assert not told([[healthy(step)] * 2 for step in range(FAULTY)], "batch")
