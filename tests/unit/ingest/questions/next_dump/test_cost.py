"""What a dump costs, by the sizes of tensors in the nearest rank and step of the store."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest.api import DumpStore, open_store
from ingest.dump_configs.check import CheckedConfig, check_text
from ingest.questions.dump_cost import DumpCost, OperatorId, dump_cost
from tests.guide_configs import mindspore

COST = DumpCost(10, 1024, 5, 2, None, ())


@pytest.fixture(scope="module")
def store(nan_log: Path) -> DumpStore:
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


def test_a_configuration_costs_what_its_operators_have_in_the_store(store: DumpStore) -> None:
    kernels = ["Log", "Default/net/Nothing-op7"]
    cost = dump_cost(store, checked(dump_mode=1, kernels=kernels, iteration="2-3", support_device=[0, 1]))
    logs = [tensor for tensor in store.tensors(step=3) if tensor.op_type == "Log"]
    assert (cost.files, cost.ranks, cost.steps, cost.unknown) == (len(logs), 2, 2, (kernels[1],))
    assert cost.nbytes > sum(tensor.nbytes for tensor in logs)
    assert f"no operator in the store is called {kernels[1]}" in str(cost)
    one = dump_cost(store, checked(dump_mode=1, kernels=kernels, iteration="all", support_device=[1]))
    assert (one.files, one.ranks, one.steps) == (cost.files // 2, 1, None)
    assert json.loads(json.dumps(one.to_dict()))["unknown"] == [kernels[1]]


MUL, ADD = OperatorId("Net", "0", "Mul", "m"), OperatorId("Net", "0", "Add", "a")
