"""How much tensors may differ: by type, by name, and what is wrong with a file that says so."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare.mapping import load_mapping
from ingest.questions.compare.thresholds import (
    ThresholdLimits,
    ThresholdRule,
    Thresholds,
    default_limit,
    load_thresholds,
)
from workers.arrays.comparison import Metrics, no_difference
from workers.arrays.statistics import Statistics
from workers.errors import UsageError

FLOAT = ("float32", "float32")
SLIGHT = Metrics(100, 100, 0, 0, False, 1e-3, 1e-2, 1e-3, 1e-3, 0.999, 1e-2, 0.9, 0.95, 1.01)


def load(path: Path, text: str) -> Thresholds:
    path.write_text(text)
    return load_thresholds(path)


def test_a_whole_name_fits_although_it_has_brackets() -> None:
    rule = ThresholdRule(name="dump.layers[0]?.output.0", max_abs=1)
    assert rule.fits(("dump.layers[0]?.output.0", "z"), FLOAT)
    assert not rule.fits(("dump.layers[0].output.0", "z"), FLOAT)


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [
        ("float64", 1e-9),
        ("complex128", 1e-9),
        ("float32", 1e-4),
        ("complex64", 1e-4),
        ("float16", 2e-3),
        ("bfloat16", 1.6e-2),
        ("float8_e4m3fn", 0.25),
        ("float8_e5m2", 0.5),
        ("int32", 0),
        ("bool", 0),
        ("int4", 0),
        ("hifloat8", 0),
        ("<U5", 0),
        ("no such type", 0),
    ],
)
def test_a_type_says_what_is_rounding(dtype: str, limit: float) -> None:
    assert default_limit(dtype) == pytest.approx(limit, rel=0.05)


def test_the_coarser_type_counts() -> None:
    limits = Thresholds().limits(("x", "x"), ("float32", "bfloat16"))
    assert limits.relative_euclidean == pytest.approx(1.6e-2, rel=0.05)


@pytest.mark.parametrize(
    "defaults",
    [
        {"bfloat16": ThresholdLimits(cosine=0.99)},
        {"bfloat16": ThresholdLimits(cosine=0.99), "float32": ThresholdLimits(max_abs=1e-6)},
    ],
    ids=["of the coarser type", "of both types"],
)
def test_a_limit_on_another_metric_is_as_coarse_as_its_type(defaults: dict[str, ThresholdLimits]) -> None:
    thresholds = Thresholds(defaults=defaults)
    for dtypes in (("bfloat16", "float32"), ("float32", "bfloat16")):
        assert thresholds.limits(("a", "b"), dtypes) == ThresholdLimits(cosine=0.99)


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        (ThresholdLimits(), ""),
        (ThresholdLimits(max_abs=1e-3), ""),
        (ThresholdLimits(max_abs=9e-4), "max_abs 0.001 > 0.0009"),
        (ThresholdLimits(max_relative=1e-3), "max_relative"),
        (ThresholdLimits(mean_relative=1e-4), "mean_relative"),
        (ThresholdLimits(rmse=1e-4), "rmse"),
        (ThresholdLimits(relative_euclidean=1e-3), "relative_euclidean"),
        (ThresholdLimits(relative_euclidean=0), "100 of 100 elements differ"),
        (ThresholdLimits(cosine=0.9999), "cosine 0.999 < 0.9999"),
        (ThresholdLimits(within_1_per_mille=0.91), "within_1_per_mille"),
        (ThresholdLimits(within_5_per_mille=0.96), "within_5_per_mille"),
        (ThresholdLimits(norm_ratio=0.005), "norm_ratio 1.01 is not 1"),
        (ThresholdLimits(norm_ratio=0.02), ""),
        (ThresholdLimits(max_relative=0, negligible=1e-2), ""),
    ],
)
def test_the_limit_that_does_not_hold_is_named(limits: ThresholdLimits, broken: str) -> None:
    assert limits.broken(SLIGHT).startswith(broken)
    assert bool(limits.broken(SLIGHT)) == bool(broken)
    assert limits.broken(no_difference(5)) == ""


def test_a_figure_that_is_not_defined_is_not_within_a_limit() -> None:
    unknown = replace(SLIGHT, max_abs=math.nan, relative_euclidean=math.nan, cosine=math.nan)
    assert ThresholdLimits(cosine=0.1).broken(unknown)
    assert ThresholdLimits(relative_euclidean=1).broken(unknown)
    assert ThresholdLimits(negligible=1, max_abs=1).broken(unknown)


def test_nan_in_one_of_the_two_is_a_difference_unless_it_may_be() -> None:
    odd = replace(no_difference(5), nan_mismatch=1, inf_mismatch=1)
    assert ThresholdLimits().broken(odd) == "2 NaN or Inf in one of the two"
    assert ThresholdLimits(negligible=1).broken(odd)
    assert ThresholdLimits(nan_inf_mismatch=2).broken(odd) == ""


def test_the_first_rule_that_fits_counts_alone(tmp_path: Path) -> None:
    found = load(
        tmp_path / "t.yaml",
        """
defaults:
  float32: {relative_euclidean: 0.5}
rules:
  - {name: "*Adam*", max_abs: 1e-3}
  - {regex: "^Dropout", ignore: true}
  - {dtype: "float16", cosine: 0.9}
""",
    )
    assert found.limits(("x.Adam.y", "z"), FLOAT) == ThresholdRule(name="*Adam*", max_abs=1e-3)
    assert found.limits(("z", "x.Adam.y"), FLOAT).max_abs == 1e-3
    dropped = found.limits(("Dropout.1", ""), FLOAT)
    assert isinstance(dropped, ThresholdRule)
    assert dropped.ignore
    assert found.limits(("x", "x"), ("float32", "float16")).cosine == 0.9
    assert found.limits(("x", "x"), FLOAT).relative_euclidean == 0.5
    assert found.limits(("x", "x"), ("int8", "int8")).relative_euclidean == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules:\n- {name: x, max_abss: 1}", r":2: rules\.0\.max_abss: is not known"),
        ("rules:\n- name: x\n  cosine: 2", r":3: rules\.0\.cosine: .*less than or equal to 1"),
        ("rules:\n- name: x\n\n  max_abs: __import__('os')", r":4: rules\.0\.max_abs: .*number"),
        ("rules: [{max_abs: 1}]", "needs `name`"),
        ("rules: [{regex: '['}]", "regex"),
        ("defaults: {float33: {max_abs: 1}}", "is not a type of elements"),
        # numpy knows these two; no tensor has a type of this name.
        ("defaults: {half: {max_abs: 1}}", "'half' is not a type of elements, such as float32"),
        ("defaults: {f4: {max_abs: 1}}", "'f4' is not a type of elements"),
        ("default: {}", ":1: default: is not known"),
        ("rules: [{name: x, max_abs: -1}]", "greater than or equal"),
        ("rules: [{name: x, max_abs: .nan}]", "max_abs"),
        ("5", "must hold names and values"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(tmp_path / "t.yaml", text)


@pytest.mark.parametrize("name", ["bool", "bfloat16", "complex32", "int4", "hifloat8", "<U3", "<f16"])
def test_any_type_that_tensors_have_may_have_limits(name: str) -> None:
    limits = ThresholdLimits(max_abs=1)
    assert Thresholds(defaults={name: limits}).limits(("a", "a"), (name, name)) == limits


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load(tmp_path / "t.yaml", "") == Thresholds()


def test_statistics_may_differ_by_rounding() -> None:
    a = Statistics(10, 0, 0, 0, 1, 4, 5, min=-2.0, max=3.0, mean=0.1, std=1.0, l2_norm=5.0)
    reasons = {
        replace(a, mean=0.1001, max=3.0002): "",
        replace(a, mean=0.2): "mean 0.1 and 0.2",
        replace(a, nan_count=1): "nan_count 0 and 1",
        replace(a, nan_count=1, min=-9.0): "nan_count 0 and 1",
        replace(a, l2_norm=math.nan, nan_count=math.nan): "",
        replace(a, max=math.inf): "max 3 and inf",
    }
    mine, theirs = (np.array([row.as_row() for row in rows]) for rows in ([a] * len(reasons), reasons))
    limits = ThresholdLimits(relative_euclidean=1e-4)
    assert limits.broken_by_statistics(mine, theirs) == list(reasons.values())
    slightly = np.array([replace(a, max=3.00001).as_row()])
    assert ThresholdLimits().broken_by_statistics(mine[:1], slightly) == [""]


def test_the_examples_of_the_page_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[5] / "docs" / "command-line.md").read_text()
    examples = re.findall(r"^```yml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    path = tmp_path / "example.yaml"
    for text in examples:
        path.write_text(text)
        if text.startswith("pairs"):
            assert len(load_mapping(path).rules) == 2
        else:
            assert len(load_thresholds(path).rules) == 4


def test_a_regular_expression_that_takes_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds = load(tmp_path / "limits.yml", "rules: [{regex: '^(a|aa)+[^a]$', ignore: true}]")
    monkeypatch.setattr(thresholds.rules[0]._pattern, "_left_s", 0.1)
    with pytest.raises(UsageError, match="takes too long for 'aaa"):
        thresholds.limits(("a" * 80, "b"), ("float32", "float32"))
