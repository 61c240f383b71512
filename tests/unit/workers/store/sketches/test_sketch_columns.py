"""Conditions over sketches: in searches, in rules when a step is committed, and in backtests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.findings.backtest import backtest
from ingest.store_gc.plan import GcPolicy
from tests.gc_stores import age
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.rule_sets import only
from workers.errors import UsageError
from workers.store import strict_json

#: Half of the elements vanish in e4m3; the 50th percentile lies in (1, 2], and the largest is 512.
VALUES = np.array([2.0**-20] * 5 + [1.5] * 4 + [512], "<f4")


def matrix() -> np.ndarray:
    values = np.random.default_rng(1).standard_normal((400, 300)).astype("<f4")
    values[:, 5] *= 100
    values[:, 7:9] = 0
    return values


@pytest.fixture
def filled(made: MadeDump, store: Path) -> ingest.DumpStore:
    """A step with a small tensor and a matrix with an outlier and two dead columns."""
    made.add(VALUES, tensor_name(time=1), step=0)
    made.add(matrix(), tensor_name(slot=1, time=2), step=0)
    ingest_directly(made.root, store, sketches=True)
    return ingest.open_store(store)


CASES = [
    ("abs_p60 > 0.9 and abs_p60 < 2.5", [0]),
    ("abs_p60 > 1.2 and abs_p60 < 2.5", []),  # it is 1.5, and may be 1.1
    ("p99.9 > 0.9 and p99.9 <= 512 and name != 'p99.9'", [0, 1]),
    ("p100 == 512", [0]),
    ("underflow_e4m3 > 0.4", [0]),
    ("underflow_e4m3 > 0.5", []),
    ("overflow_e4m3 > 0.05", [0]),
    ("overflow_float16 > 0", []),
    ("outlier_channels > 0", [1]),
    ("dead_channels == 2 and saturated_channels == 0", [1]),
    ("not dead_channels > 2", [1, 0]),
]


@pytest.mark.parametrize(("where", "slots"), CASES)
def test_searches_find_what_is_certain(filled: ingest.DumpStore, where: str, slots: list[int]) -> None:
    assert [tensor.slot for tensor in filled.tensors(where=where)] == sorted(slots)


def test_what_bounds_do_not_decide_is_told(filled: ingest.DumpStore) -> None:
    undecided = filled.tensors(where="abs_p60 > 1.2 and abs_p60 < 2.5")
    assert (list(undecided), [tensor.slot for tensor in undecided.undecided]) == ([], [0])
    assert undecided.exactness == "bounded"
    # Both percentiles lie in (1, 2]: neither is certainly the larger one, nor that the difference is small.
    both = filled.tensors(where="abs(abs_p60 - abs_p70) < 0.1")
    assert not [tensor for tensor in both if tensor.slot == 0]
    assert 0 in [tensor.slot for tensor in both.undecided]
    assert filled.tensors(where="p100 == 512").exactness == "exact"
    # Zero is between the bounds, so the magnitude may be less than either of them.
    magnitude = filled.tensors(where="abs(abs_p60 - abs_p70) > 0.5")
    assert 0 not in [tensor.slot for tensor in magnitude]


@pytest.mark.parametrize(("where", "slots"), CASES)
def test_rules_find_the_same(filled: ingest.DumpStore, where: str, slots: list[int]) -> None:
    (result,) = backtest(filled, only(kind="condition", where=where)).rules
    assert not result.failed
    assert [int(finding.name[-1]) for finding in result.first] == sorted(slots)


def test_searches_and_rules_answer_the_same_when_gc_has_removed_the_tensors(
    made: MadeDump, store: Path
) -> None:
    for step in range(3):
        made.add(VALUES * np.float32(2**step), tensor_name(time=1), step=step)
        made.add(matrix(), tensor_name(slot=1, time=2), step=step)
    ingest_directly(made.root, store, sketches=True)
    age(store)
    kinds: list[dict[str, Any]] = [{"kind": "condition", "where": where} for where, _ in CASES]
    kinds += [
        {"kind": "drift", "distance_gt": 0.5},
        {"kind": "cast", "format": "e4m3", "underflow_gt": 0.3},
        {"kind": "percentile", "percent": 99.9, "gt": 9},
    ]

    def answers() -> list[Any]:
        reader = ingest.open_store(store)
        searches = (reader.tensors(where=where) for where, _ in CASES)
        chosen = [[*search, *search.undecided] for search in searches]
        names = [[(tensor.step, tensor.name) for tensor in tensors] for tensors in chosen]
        return [names, *(backtest(reader, only(**kind)).to_dict() for kind in kinds)]

    before = answers()
    assert ingest.apply_gc(store, ingest.plan_gc(store, GcPolicy(tensors_around_anomalies=0))).objects
    assert not ingest.open_store(store).step(0, 0).has_tensors
    assert strict_json.dumps(answers()) == strict_json.dumps(before)
    assert [rule["findings"] for rule in before[-3]["rules"]] == [2]  # drift


def test_rules_are_evaluated_at_the_commit(made: MadeDump, store: Path) -> None:
    made.add(matrix(), tensor_name(time=1), step=0)
    chosen = only(kind="condition", where="outlier_channels > 0")
    (summary,) = ingest_directly(made.root, store, rules=chosen, sketches=True)
    assert summary.findings == {"mine": 1}


def test_steps_without_sketches_are_named(made: MadeDump, store: Path) -> None:
    made.add(VALUES, tensor_name(time=1), step=0)
    ingest_directly(made.root, store)
    for where, what in (("p50 > 1", "1 tensor has no histogram"), ("dead_channels > 1", "no marginals")):
        with pytest.raises(UsageError, match=what) as raised:
            ingest.open_store(store).tensors(where=where)
        assert "dump-ingest sketch" in (raised.value.hint or "")
        (result,) = backtest(ingest.open_store(store), only(kind="condition", where=where)).rules
        assert what in result.failed[0]
