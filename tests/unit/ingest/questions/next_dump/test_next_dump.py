"""The configuration of the next dump, and what it costs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ingest
from ingest.api import DumpStore, open_store, origin
from ingest.dump_configs.check import CheckedConfig, check_text
from ingest.questions.dump_cost import DumpCost, OperatorId, dump_cost
from ingest.questions.next_dump import (
    InnerCalls,
    Suspect,
    Suspicion,
    inner_calls,
    suspicion_of_names,
    suspicion_of_origin,
    without_wrappers,
)
from tests.guide_configs import mindspore
from tests.stores import (
    DumpLibrary,
    MadeDump,
    MadeRun,
    ingest_and_open,
    ingest_directly,
    numbers,
    plan_all,
    run,
)
from workers.errors import UsageError

# The next dump: what is suspected, what it costs, what it will answer.


@pytest.fixture(scope="module")
def whole(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> ingest.DumpStore:
    """Two ranks, steps 1 to 3; a NaN is born in step 2 of rank 1."""
    store = tmp_path_factory.mktemp("next") / "whole.zarr"
    return ingest_and_open(dumps["nan-log-2rank"] / "dump", store)


@pytest.fixture(scope="module")
def statistics_alone(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> ingest.DumpStore:
    """Step 2 of the same dump, without elements."""
    store = tmp_path_factory.mktemp("next") / "statistics.zarr"
    for plan in plan_all(dumps["nan-log-2rank"] / "dump", store, leave_out_tensors="disk is full"):
        if plan.key.step in (None, 2):
            run(plan)
    return ingest.open_store(store)


def kernels(answer: ingest.NextDump) -> list[str]:
    names: list[str] = json.loads(answer.config.text)["common_dump_settings"]["kernels"]
    return names


def test_the_operator_and_what_wrote_its_inputs_are_dumped(whole: ingest.DumpStore) -> None:
    answer = ingest.next_dump(whole)
    assert kernels(answer) == ["Default/net-LogLoss/Log-op0", "Default/net-LogLoss/Add-op0"]
    settings = json.loads(answer.config.text)["common_dump_settings"]
    assert (settings["iteration"], settings["path"]) == ("1-2", "/srv/dumps/nan-log-2rank/dump_next")
    assert answer.config.ranks == (0, 1)
    assert "The store already has all of these tensors" in answer.notes[-1]


def test_a_budget_adds_farther_operators_by_worth(whole: ingest.DumpStore) -> None:
    answer = ingest.next_dump(whole, budget=20_000)
    assert answer.estimate.nbytes <= 20_000
    assert kernels(answer)[:3] == [
        "Default/net-LogLoss/Log-op0",
        "Default/net-LogLoss/Add-op0",
        "Default/net-LogLoss/Sigmoid-op0",
    ]
    assert [suspect.worth for suspect in answer.suspects] == sorted(
        (suspect.worth for suspect in answer.suspects), reverse=True
    )
    assert answer.left_out
    with pytest.raises(UsageError, match="alone needs"):
        ingest.next_dump(whole, budget=100)


def test_a_dump_of_statistics_leads_to_one_of_elements(statistics_alone: ingest.DumpStore) -> None:
    """As the guides advise: statistics of everything first, then elements of the suspects."""
    answer = ingest.next_dump(statistics_alone)
    assert kernels(answer)[0] == "Default/net-LogLoss/Log-op0"
    assert answer.answers[0].startswith("which elements of the inputs made it")
    assert "step 1" in answer.answers[1]
    assert answer.estimate.files == 20
    assert 3_000 < answer.estimate.nbytes < 6_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"purpose": "loss"}, "no purpose 'loss'"),
        ({"purpose": "tensor"}, "no tensor is named"),
        ({"purpose": "tensor", "names": ["Nothing.*"]}, "no tensor is called"),
        ({"names": ["Log.*"]}, "takes no names"),
        ({"purpose": "tensor", "names": ["Parameter.*"]}, "is a parameter"),
        ({"purpose": "divergence"}, "no tensor differs"),
        ({"step": 1}, "nothing went wrong"),
        ({"system": "caffe"}, "no system 'caffe'"),
        ({"directory": "/my dump"}, "refuses this directory"),
    ],
)
def test_what_cannot_be_answered_is_said(
    whole: ingest.DumpStore, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        ingest.next_dump(whole, **arguments)
    assert error.value.hint


def test_disagreeing_replicas_lead_to_the_first_that_differ(tmp_path: Path) -> None:
    """In step 2, a bit of the weights of rank 2 has flipped."""
    made = MadeRun(MadeDump(tmp_path / "dump"))
    for step in range(3):
        for rank in range(3):
            weights = numbers(*range(step, step + 8))
            if (rank, step) == (2, 2):
                weights[3] += 1
            made.op("Mul.scale", [numbers(rank, 1)], [weights], rank=rank, step=step)
            made.op("Momentum.opt-op0", [weights], rank=rank, step=step)
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    answer = ingest.next_dump(ingest.open_store(tmp_path / "run.zarr"), "divergence")
    assert {suspect.operator.op_type for suspect in answer.suspects} == {"Mul", "Momentum"}
    assert answer.config.steps == (1, 2)
    assert 2 in answer.config.ranks


@pytest.mark.parametrize("system", ["mindspore", "acl", "torchair", "tensorflow"])
def test_readers_of_a_parameter_are_dumped_by_systems_that_cannot_dump_it_alone(
    tmp_path: Path, system: str
) -> None:
    """A parameter differs first, and what reads it is worth less than what is dumped in any case."""
    made = MadeRun(MadeDump(tmp_path / "dump"))
    for step in range(5):
        for rank in range(3):
            weights = numbers(1, 2, step + 10 * (rank == 1 and step > 2))
            made.parameter("w", weights, rank=rank, step=step)
            made.op("Mul.scale", [weights], [weights * (rank + 2)], rank=rank, step=step)
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    answer = ingest.next_dump(ingest.open_store(tmp_path / "run.zarr"), "divergence", system=system)
    assert [suspect.operator.op_type for suspect in answer.suspects] == ["Mul"]
    assert not answer.left_out
    assert answer.config.steps == (2, 3)


PARAMETER = Suspect(OperatorId("Net", "0", "Parameter", "w"), 1.0, "it began here")
ADAM = Suspect(OperatorId("Net", "0", "Adam", "a"), 0.5, "it reads it")


@pytest.fixture(scope="module")
def nan_run(nan_log: Path) -> DumpStore:
    return open_store(nan_log)


def test_a_parameter_is_left_out_if_others_remain() -> None:
    both = Suspicion((PARAMETER, ADAM), (1,), (0,), "w")
    assert both.without_parameters().suspects == (ADAM,)
    assert "not dumped by themselves" in both.without_parameters().notes[0]
    only = Suspicion((ADAM,), (1,), (0,), "a")
    assert only.without_parameters() is only
    with pytest.raises(UsageError, match="w is a parameter") as error:
        Suspicion((PARAMETER,), (1,), (0,), "w").without_parameters()
    assert error.value.hint


def test_where_it_began_is_worth_most_and_what_is_farther_less(nan_run: DumpStore) -> None:
    suspicion = suspicion_of_origin(nan_run, origin(nan_run))
    assert suspicion.suspects[0].operator.op_type == "Log"
    worths = [suspect.worth for suspect in suspicion.suspects]
    assert worths == sorted(worths, reverse=True)
    assert len({suspect.operator for suspect in suspicion.suspects}) == len(suspicion.suspects)
    assert (suspicion.steps, 1 in suspicion.ranks) == ((1, 2), True)
    assert suspicion.suspects[0].why == "NaN was born in it on rank 1, step 2"


def test_a_name_chooses_the_newest_step_that_has_it(nan_run: DumpStore) -> None:
    suspicion = suspicion_of_names(nan_run, ["Sigmoid.*output*", "Log.*"])
    assert {suspect.operator.op_type for suspect in suspicion.suspects if suspect.worth == 1} == {
        "Sigmoid",
        "Log",
    }
    assert (suspicion.steps, suspicion.ranks) == ((2, 3), (0, 1))
    with pytest.raises(UsageError, match="no tensor is called 'Nothing'"):
        suspicion_of_names(nan_run, ["Log.*", "Nothing"])


@pytest.fixture(scope="module")
def inner(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> InnerCalls:
    store = tmp_path_factory.mktemp("inner") / "s.zarr"
    opened = ingest_and_open(dumps["msprobe-26.2.0-pytorch-cpu"] / "tensor-mix", store)
    key = next(key for key in opened.keys if key.step is not None)
    return inner_calls(opened, (key.rank, key.step or 0))


def choice(*names: str) -> Suspicion:
    suspects = tuple(Suspect(OperatorId("", "", name.rpartition(".")[0], name), 1.0, "") for name in names)
    return Suspicion(suspects, (0,), (0,), "")


def a_module(inner: InnerCalls) -> tuple[str, str]:
    """Return a module of the dump, and a call of PyTorch in it."""
    calls = ((module, call.op_name) for module, calls in sorted(inner.items()) for call in sorted(calls))
    return next((module, call) for module, call in calls if call.startswith("Functional."))


def test_modules_around_a_chosen_call_are_left_out(inner: InnerCalls) -> None:
    module, call = a_module(inner)
    kept = without_wrappers(choice(module, call), inner)
    assert [suspect.operator.op_name for suspect in kept.suspects] == [call]
    alone = without_wrappers(choice(module), inner)
    assert [suspect.operator.op_name for suspect in alone.suspects] == [module]


# What a dump costs, by the sizes of tensors in the nearest rank and step of the store.


COST = DumpCost(10, 1024, 5, 2, None, ())


@pytest.fixture(scope="module")
def costly(nan_log: Path) -> DumpStore:
    return open_store(nan_log)


def checked(**changes: Any) -> CheckedConfig:
    return check_text(mindspore(**changes), "data_dump.json")


@pytest.mark.parametrize(
    ("steps", "free", "after"),
    [(5, None, None), (5, 5 * 1024, None), (5, 5 * 1024 - 1, 4), (None, 3000, 2), (5, 0, 0)],
)
def test_a_disk_is_full_after_as_many_steps_as_fit(
    steps: int | None, free: int | None, after: int | None
) -> None:
    cost = replace(COST, steps=steps, free_nbytes=free)
    assert cost.full_disk_after == after
    assert cost.to_dict()["full_disk_after"] == after
    if free is not None:
        assert ("room for all" if after is None else f"full after {after} steps") in str(cost)


def test_a_configuration_costs_what_its_operators_have_in_the_store(costly: DumpStore) -> None:
    kernels = ["Log", "Default/net/Nothing-op7"]
    cost = dump_cost(costly, checked(dump_mode=1, kernels=kernels, iteration="2-3", support_device=[0, 1]))
    logs = [tensor for tensor in costly.tensors(step=3) if tensor.op_type == "Log"]
    assert (cost.files, cost.ranks, cost.steps, cost.unknown) == (len(logs), 2, 2, (kernels[1],))
    assert cost.nbytes > sum(tensor.nbytes for tensor in logs)
    assert f"no operator in the store is called {kernels[1]}" in str(cost)
    one = dump_cost(costly, checked(dump_mode=1, kernels=kernels, iteration="all", support_device=[1]))
    assert (one.files, one.ranks, one.steps) == (cost.files // 2, 1, None)
    assert json.loads(json.dumps(one.to_dict()))["unknown"] == [kernels[1]]
