"""Kinds of rules over several steps: each by its definition."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ingest
from ingest.findings.backtest import backtest
from ingest.findings.history import StepValues, StepWindow
from ingest.findings.series_kinds import KINDS
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.rule_sets import only, steps_that_fire
from workers.arrays.histogram import Histogram
from workers.arrays.statistics import RunningStatistics
from workers.store.consolidated.blocks import TensorKey


def test_unchanged_is_the_same_bytes_in_so_many_steps() -> None:
    values: list[list[float]] = [[1], [2], [2], [2], [2], [3], [2]]
    assert steps_that_fire(values, kind="unchanged", steps=3) == [3, 4]
    assert steps_that_fire(values, kind="unchanged", steps=2) == [2, 3, 4]
    assert steps_that_fire([[1], [1], None, [1], [1], [1]], kind="unchanged") == [5]
    assert steps_that_fire([[1], [1], [1]], kind="unchanged", elements_ge=2) == []


def test_change_is_relative_to_the_step_before() -> None:
    values: list[list[float]] = [[3, 4], [3.3, 4.4], [6, 8], [0, 0], [1, 0]]
    assert steps_that_fire(values, kind="change", ratio_gt=0.11) == [2, 3, 4]
    assert steps_that_fire(values, kind="change", ratio_gt=0.11, before_ge=0.1) == [2, 3]
    assert steps_that_fire([[1], None, [9]], kind="change", ratio_gt=0.1) == []
    history = {"kind": "change", "ratio_gt": 0.1, "times_gt": 5, "least": 2}
    assert steps_that_fire([[1], [1.2], [1.4], [1.6], [1.8], [9]], **history) == [5]
    assert steps_that_fire([[1], [1.2], [9]], **history) == []


def test_drift_is_the_distance_of_two_histograms(made: MadeDump, store: Path) -> None:
    """A tensor that doubles, one whose elements change their places and signs, one that is zero at last."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000).astype("<f4")
    for step in range(4):
        tensors = (values * 2.0 ** (step == 3), rng.permutation(values) * (-1) ** step, values * (step < 3))
        for slot, written in enumerate(tensors):
            made.add(written.astype("<f4"), tensor_name(slot=slot, time=slot), step=step)
    ingest_directly(made.root, store, sketches=True)
    (result,) = backtest(ingest.open_store(store), only(kind="drift", distance_gt=0.5)).rules
    assert not result.failed
    ((finding,), place) = result.first, list(result.places)
    assert (finding.step, finding.name[-1], place) == (3, "0", [(0, 3)])
    assert finding.value == pytest.approx(1, rel=1e-5)
    assert "moved by 1 powers of two" in finding.reason
    assert finding.reason.endswith("bounded: they are known to a factor of two, so by 0 to 2")
    far = only(kind="drift", distance_gt=1.01)
    assert not backtest(ingest.open_store(store), far).rules[0].findings


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 4), st.floats(-9, 9))
def test_the_distance_of_magnitudes_is_within_the_bounds_of_drift(
    seed: int, spread: float, by: float
) -> None:
    rng = np.random.default_rng(seed)
    logs = [rng.normal(0, spread, 64), rng.normal(by, spread, 64)]
    cumulative = [histogram_of(np.exp2(log).astype("<f4")).cumulative() for log in logs]
    distance = np.abs(cumulative[0] - cumulative[1]).sum(dtype=np.float64)
    truth = np.abs(np.sort(logs[0]) - np.sort(logs[1])).mean()
    assert abs(distance - truth) <= 1 + 1e-4


def histogram_of(values: np.ndarray) -> Histogram:
    running = RunningStatistics(with_histogram=True)
    running.update(values)
    return Histogram.of_rows(running.histogram_rows(), running.result())


def test_drift_without_histograms_fails_and_says_so(made: MadeDump, store: Path) -> None:
    made.add(np.ones(3, "<f4"), tensor_name(time=1), step=0)
    ingest_directly(made.root, store)
    (result,) = backtest(ingest.open_store(store), only(kind="drift", distance_gt=1)).rules
    assert "no tensor has a histogram" in result.failed[0]


def test_explosion_is_beyond_ratio_and_spread_of_the_history() -> None:
    steady: list[list[float]] = [[1.0], [1.1], [0.9], [1.05], [0.95], [1.0]]
    rule = {"kind": "outlier", "ratio_gt": 10}
    assert steps_that_fire([*steady, [11.0], [1.0]], **rule) == [6]
    assert steps_that_fire([*steady, [9.0]], **rule) == []
    wild = [[1.0], [50.0], [0.02], [30.0], [0.5], [2.0], [20.0]]
    assert steps_that_fire(wild, **rule) == []
    assert steps_that_fire([[1.0]] * 5 + [[11.0]], **rule) == [5]
    assert steps_that_fire([[1.0]] * 4 + [[11.0]], **rule) == []


def test_collapse_is_the_other_way() -> None:
    steady: list[list[float]] = [[1.0], [1.1], [0.9], [1.05], [0.95], [1.0]]
    rule = {"kind": "outlier", "direction": "below", "ratio_gt": 1000}
    assert steps_that_fire([*steady, [1e-4], [1.0], [0.0]], **rule) == [6, 8]
    assert steps_that_fire([*steady, [0.01], [1e9]], **rule) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=16), st.floats(1e-6, 1e6))
def test_the_z_score_is_that_of_its_definition(history: list[float], now: float) -> None:
    rule = only(kind="outlier", ratio_gt=1.0001, z_gt=0, history=16).rules[0]

    def step(norm: float) -> StepValues:
        values = {"l2_norm": np.array([[norm]]), "count": np.ones((1, 1))}
        return StepValues(0, (0,), np.zeros((1, 1), np.int32), values, np.zeros((1, 1, 16), "u1"))

    key = TensorKey("", "", "Gradient", "x", "output", 0)
    window = StepWindow(step(now), [step(norm) for norm in history], [key])
    with np.errstate(all="ignore"):
        (hits,) = KINDS["outlier"].evaluate(rule, window)
    logs = np.log2(history)
    median = np.median(logs)
    spread = np.median(np.abs(logs - median))
    assert hits.values[0, 0] == pytest.approx(now / 2**median)
    off = math.log2(now) - median
    z = 0.6745 * off / spread if spread else math.copysign(math.inf, off) if off else math.nan
    described = float(hits.describe(0, 0).rpartition(" ")[2])
    assert described == pytest.approx(z, rel=1e-2, nan_ok=True)
    assert bool(hits.mask[0, 0]) == (hits.values[0, 0] > 1.0001 and z > 0)
