"""What to dump next, from real dumps."""

import json
from pathlib import Path
from typing import Any

import pytest

import ingest
from tests.dumps import DumpLibrary
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly, plan_all, run
from workers.errors import UsageError

LOG, ADD = "Default_net-LogLoss_Log-op0", "Default_net-LogLoss_Add-op0"


@pytest.fixture(scope="module")
def whole(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> ingest.DumpStore:
    """Two ranks, steps 1 to 3; a NaN is born in step 2 of rank 1."""
    store = tmp_path_factory.mktemp("next") / "whole.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    return ingest.open_store(store)


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


def test_the_estimate_is_what_these_operators_have_in_the_store(whole: ingest.DumpStore) -> None:
    estimate = ingest.next_dump(whole).estimate
    tensors = [tensor for tensor in whole.tensors(step=[1, 2], rank=[0, 1]) if tensor.op_name in (LOG, ADD)]
    assert (estimate.files, estimate.nbytes) == (20, sum(tensor.nbytes + 128 for tensor in tensors))
    assert estimate.full_files == 4 * 243
    assert estimate.share < 0.02
    assert estimate.run_nbytes > 300_000
    assert estimate.seconds is not None


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


def test_an_answer_is_text_and_plain_values(whole: ingest.DumpStore) -> None:
    answer = ingest.next_dump(whole)
    assert "2 operators, steps 1-2, ranks 0-1" in str(answer)
    assert json.loads(json.dumps(answer.to_dict()))["suspects"][0]["op_name"] == LOG
    assert "Default/net-LogLoss/Log-op0" in answer._repr_html_()


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


def test_msprobe_is_told_its_own_names(dumps: DumpLibrary, tmp_path: Path) -> None:
    ingest_directly(dumps["msprobe-26.2.0-pytorch-cpu"] / "tensor-mix", tmp_path / "run.zarr")
    store = ingest.open_store(tmp_path / "run.zarr")
    call = next(tensor for tensor in store.tensors() if tensor.op_name.startswith("Functional."))
    answer = ingest.next_dump(store, "tensor", [f"{call.op_type}.*"])
    content = json.loads(answer.config.text)
    assert answer.config.system == "msprobe"
    assert call.op_name in content["tensor"]["list"]


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
