"""Conditions over sketches: in searches, in rules when a step is committed, and in backtests."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.findings.backtest import backtest
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.rule_sets import only
from workers.errors import UsageError

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
    with pytest.raises(UsageError, match="7 values that are known between bounds"):
        filled.tensors(where=" + ".join(f"p{percent}" for percent in range(7)) + " > 1")


@pytest.mark.parametrize(("where", "slots"), CASES)
def test_rules_find_the_same(filled: ingest.DumpStore, where: str, slots: list[int]) -> None:
    (result,) = backtest(filled, only(kind="condition", where=where)).rules
    assert not result.failed
    assert [int(finding.name[-1]) for finding in result.first] == sorted(slots)


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


def test_only_what_can_be_asked_is_a_column(filled: ingest.DumpStore) -> None:
    for where in ("p101 > 1", "underflow_float9 > 0", "p99.9.9 > 1"):
        with pytest.raises(UsageError):
            filled.tensors(where=where)
