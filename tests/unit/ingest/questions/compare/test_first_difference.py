"""The first difference names the cause, and not what an operator wrote in place."""

import json
from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare.html import to_html
from ingest.questions.compare.result import FirstDifference
from ingest.questions.compare.run import compare
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.two_ranks import ADD, TIME
from workers.model import StepKey
from workers.store import commit
from workers.store.model import StoreAddress
from workers.store.opening import open_objects
from workers.store.record import WithoutTensors

MOMENTUM = "ApplyMomentum.opt-Momentum_ApplyMomentum-op0"


@pytest.fixture
def two_rates(made: MadeDump, store: Path) -> str:
    """A store of two ranks whose optimizer had different rates, and wrote weight and accumulator in place."""
    for rank, rate in enumerate((0.055, 0.05)):
        weight = np.ones((2, 3), np.float32) * np.float32(1 - rate)
        inputs = [weight, weight * 2, np.float32(rate), np.ones((2, 3), np.float32), np.float32(0.9)]
        for slot, values in enumerate(inputs):
            made.add(np.asarray(values), tensor_name(MOMENTUM, "input", slot, time=TIME), rank=rank)
        made.add(weight, tensor_name(MOMENTUM, "output", time=TIME + 1), rank=rank)
    ingest_directly(made.root, store)
    return str(store)


def check_the_rate_is_named(first: FirstDifference | None) -> None:
    assert first is not None
    assert first.tensor.name == f"{MOMENTUM}.input.2"
    assert first.reason == "0.055 instead of 0.05"
    assert first.says == "2 of the other 4 inputs differ or could not be compared"
    assert [(known.name[-1], known.differs, known.written_in_place) for known in first.inputs] == [
        ("2", True, False),
        ("0", True, True),
        ("1", True, True),
        ("3", False, False),
        ("4", False, False),
    ]
    assert first.others[0].says.endswith("(written in place)")


def test_the_cause_comes_before_what_an_optimizer_wrote_in_place(two_rates: str, made: MadeDump) -> None:
    check_the_rate_is_named(compare(f"{two_rates}@0", f"{two_rates}@1").first)
    check_the_rate_is_named(compare(f"{made.root}@0", f"{made.root}@1").first)


def test_the_cause_is_in_the_page_and_in_plain_values(two_rates: str) -> None:
    comparison = compare(f"{two_rates}@0", f"{two_rates}@1")
    assert "0.055 instead of 0.05" in to_html(comparison)
    first = json.loads(json.dumps(comparison.to_dict()["first"]))
    assert (first["reason"], first["name_a"]) == ("0.055 instead of 0.05", f"{MOMENTUM}.input.2")
    assert first["inputs"][0] == {
        "name": f"{MOMENTUM}.input.2",
        "verdict": "different",
        "reason": first["inputs"][0]["reason"],
        "written_in_place": False,
        "value_a": "0.055",
        "value_b": "0.05",
    }


def test_equal_sides_have_no_first_difference(two_rates: str) -> None:
    assert compare(f"{two_rates}@0", f"{two_rates}@0").first is None


def test_the_inputs_of_the_first_operator_that_differs_are_told(made: MadeDump, store: Path) -> None:
    for rank in (0, 1):
        made.add(np.ones(3), tensor_name(ADD, "input", time=TIME), rank=rank)
        made.add(np.full(3, rank + 1.0), tensor_name(ADD, "output", time=TIME + 1), rank=rank)
    ingest_directly(made.root, store)
    first = compare(f"{store}@0", f"{store}@1").first
    assert first is not None
    assert (first.tensor.io, first.says) == ("output", "its inputs are equal")
    assert [(known.name, known.verdict) for known in first.inputs] == [("Add.net_Add-op0.input.0", "equal")]


def test_a_value_whose_element_was_removed_is_told_by_its_statistics(two_rates: str) -> None:
    objects = open_objects(StoreAddress(two_rates))
    committed = commit.read(objects, StepKey(0, 0))
    assert committed is not None
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old"))
    first = compare(f"{two_rates}@0", f"{two_rates}@1").first
    assert first is not None
    assert first.reason == "0.055 instead of 0.05"


def test_statistics_without_type_and_shape_do_not_tell_an_element(tmp_path: Path) -> None:
    for name, least in (("a", 1.5), ("b", 2.5)):
        log = tmp_path / name / "nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-0.log"
        log.parent.mkdir(parents=True)
        line = "2026-11-22 00:32:33,556 - INFO - fc1_activation_min \t iteration=000000 \t value="
        log.write_text(f"{line}{least}\n")
    first = compare(tmp_path / "a", tmp_path / "b").first
    assert first is not None
    assert first.reason == "min 1.5 and 2.5"
