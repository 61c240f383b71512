"""Evaluating the rules over one step: what is stored and counted, and that nothing stops a commit."""

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ingest
from ingest.findings.backtest import backtest
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.rule_sets import KEY, evaluated, numbers, only, rows, tables_of
from workers.arrays.dtypes import LIMITS
from workers.arrays.statistics import FIELDS
from workers.rules.step import evaluate
from workers.rules.values import Rule, RuleSet, Selector
from workers.store.tables import LABELS


def test_a_limit_bounds_what_is_stored_and_not_what_is_counted() -> None:
    result = evaluated(tables_of(*[numbers(np.nan)] * 9), kind="not_finite", limit=4)
    assert [finding.row for finding in result.findings] == [0, 1, 2, 3]
    assert result.totals == {"mine": 9}


def test_a_rule_that_fails_is_named_and_the_others_are_evaluated() -> None:
    """Whatever a rule holds that nobody thought of: the step is committed."""
    broken = Rule("broken", "too_large", "info", Selector(), (("max_gt", 0.0),), where="nan_count == 'x' + 1")
    worse = Rule("worse", "no_such_kind", "info", Selector(), ())
    fine = only(kind="not_finite").rules
    result = evaluate(RuleSet((broken, worse, *fine), "d"), tables_of(numbers(np.nan, 1)), KEY)
    assert result.totals == {"mine": 1}
    assert set(result.failed) == {"broken", "worse"}


def test_selectors_choose_by_name_type_and_rank() -> None:
    made = tables_of(*[numbers(np.nan)] * 3)
    name = "MatMul.op1.output.0"
    assert rows(made, kind="not_finite", include="*op1*") == [1]
    assert rows(made, kind="not_finite", include=["re:^MatMul.op[02]"]) == [0, 2]
    assert rows(made, kind="not_finite", exclude=name) == [0, 2]
    assert rows(made, kind="not_finite", include=["*op1*", "*op2*"], exclude="re:2.output") == [1]
    assert rows(made, kind="not_finite", op_type="Conv*") == []
    assert rows(made, kind="not_finite", exclude_op_type="Mat*") == []
    assert rows(made, kind="not_finite", io="input") == []
    assert rows(made, kind="not_finite", graph="0", dtype="float32") == [0, 1, 2]
    assert rows(made, kind="not_finite", dtype=["float16", "b*"]) == []
    assert rows(made, kind="not_finite", rank="0-2,4") == []
    assert rows(made, kind="not_finite", rank=[3]) == [0, 1, 2]


def test_where_is_asked_beside_and_alone() -> None:
    made = tables_of(numbers(np.nan, 5), numbers(np.nan, 1), numbers(9))
    assert rows(made, kind="not_finite", where="max > 2") == [0]
    assert rows(made, kind="condition", where="max > 2") == [0, 2]
    assert rows(
        made, kind="condition", where="name == 'MatMul.op1.output.0' and rank == 3 and step == 7"
    ) == [1]
    assert rows(made, kind="condition", where="role == 'activation'") == [0, 1, 2]
    assert rows(made, kind="condition", where="role == 'gradient'") == []


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_rms_is_that_of_the_elements_and_no_less_than_the_mean_of_their_magnitude(
    values: list[float],
) -> None:
    """So `rms_lt` never fires where the definition by the mean of |x| would not."""
    array = np.array(values)
    rms = float(np.sqrt(np.mean(array**2)))
    (finding,) = evaluated(tables_of(array), kind="too_large", rms_gt=-1).findings
    assert finding.value == pytest.approx(rms, rel=1e-9, abs=1e-300)
    assert finding.value >= np.abs(array).mean() * (1 - 1e-9)


def test_not_finite_counts_what_it_is_asked_for() -> None:
    made = tables_of(
        numbers(1, 2), numbers(np.nan, 1), numbers(np.inf, -np.inf), numbers(np.nan, np.nan, -np.inf)
    )
    assert rows(made, kind="not_finite") == [1, 2, 3]
    assert rows(made, kind="not_finite", of=["nan"]) == [1, 3]
    assert rows(made, kind="not_finite", of=["neg_inf"]) == [2, 3]
    assert rows(made, kind="not_finite", count_gt=2) == [3]
    assert evaluated(made, kind="not_finite").findings[2].reason == "2 NaN, 1 -Inf of 3 elements"


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_headroom_is_the_share_of_the_largest_number_of_the_type(dtype: str) -> None:
    limit = LIMITS[dtype]
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    half, most = (np.array([1, -x], np.float64).astype(kind) for x in (limit / 2, limit))
    made = tables_of(half, most)
    assert rows(made, kind="headroom", share_gt=0.5) == [1]
    assert rows(made, kind="headroom", share_ge=0.5) == [0, 1]
    assert rows(made, kind="headroom", share_ge=1) == [1]


def test_too_large_and_too_small_compare_what_they_are_given() -> None:
    made = tables_of(numbers(-100, 1), numbers(3, 4), numbers(1e-9, -1e-9))
    assert rows(made, kind="too_large", abs_max_gt=50) == [0]
    assert rows(made, kind="too_large", max_gt=3.5) == [1]
    assert rows(made, kind="too_large", max_gt=3.5, rms_gt=50) == [0, 1]
    assert rows(made, kind="too_large", l2_norm_gt=4.99, mean_gt=1e9) == [0, 1]
    assert rows(made, kind="too_small", rms_lt=1e-7) == [2]
    assert rows(made, kind="too_small", mean_lt=-1) == [0]


def test_the_largest_magnitude_is_no_less_than_what_is_known_of_it() -> None:
    """A table of statistics may have the maximum alone."""
    made = tables_of(numbers(-100, 1), numbers(-1, 6e4, dtype="f2"), numbers(1e-9, -1e-9))
    made.statistics[:, FIELDS.index("min")] = np.nan
    assert rows(made, kind="too_large", abs_max_gt=50) == [1]
    assert rows(made, kind="headroom", share_gt=0.5) == [1]
    assert rows(made, kind="too_small", abs_max_lt=10) == []


def test_zeros_by_share_of_tensors_that_are_large_enough() -> None:
    made = tables_of(np.zeros(3), np.array([0, 0, 0, 1.0]), np.ones(4), np.zeros(100))
    assert rows(made, kind="zeros") == [0, 3]
    assert rows(made, kind="zeros", share_ge=0.75) == [0, 1, 3]
    assert rows(made, kind="zeros", elements_ge=16) == [3]


def test_range_on_either_side_and_by_spread() -> None:
    made = tables_of(numbers(-2, 0), numbers(0, 2), numbers(0.5, 0.5))
    assert rows(made, kind="range", min_ge=-1) == [0]
    assert rows(made, kind="range", max_le=1) == [1]
    assert rows(made, kind="range", min_ge=-1, max_le=1) == [0, 1]
    assert rows(made, kind="range", spread_lt=0.1) == [2]


def test_an_overflow_record_and_a_disagreement_are_found_by_their_rows() -> None:
    made = tables_of(numbers(1), numbers(2))
    made.labels[0, LABELS.index("kind")] = "overflow"
    made.labels[0, LABELS.index("record")] = '{"failed": [{"op_type": "Mul", "op_name": "x"}], "record": {}}'
    made.labels[1, LABELS.index("problem")] = "s.csv disagrees: max: 3 is reported, 2 computed"
    (record,) = evaluated(made, kind="overflow").findings
    assert record.reason == "the hardware recorded an overflow in Mul.x"
    assert math.isnan(record.value)
    assert rows(made, kind="disagreement") == [1]
    made.labels[0, LABELS.index("record")] = "no JSON"
    assert rows(made, kind="overflow") == [0]


def test_nothing_is_said_of_what_is_not_known() -> None:
    made = tables_of(numbers(np.nan))
    made.statistics[:] = np.nan
    for rule in (
        {"kind": "not_finite"},
        {"kind": "headroom", "share_ge": 0},
        {"kind": "too_small", "max_lt": 1e30},
        {"kind": "zeros", "share_ge": 0},
        {"kind": "range", "min_ge": 0},
    ):
        assert rows(made, **rule) == []


#: Half of the elements vanish in e4m3; the 50th percentile lies in (1, 2], and the largest is 512.
VALUES = np.array([2.0**-20] * 5 + [1.5] * 4 + [512], "<f4")


@pytest.fixture
def filled(made: MadeDump, store: Path) -> ingest.DumpStore:
    """A step with histograms, and one without."""
    made.add(VALUES, tensor_name(time=1), step=0)
    ingest_directly(made.root, store, sketches=True)
    return ingest.open_store(store)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"kind": "cast", "format": "e4m3", "underflow_gt": 0.4}, 0.5),
        ({"kind": "cast", "format": "e4m3", "underflow_gt": 0.5}, None),
        ({"kind": "cast", "format": "e4m3", "overflow_gt": 0.05}, 0.1),
        ({"kind": "cast", "format": "e4m3", "scaling": "current", "overflow_gt": 0.0}, None),
        ({"kind": "cast", "format": "float16", "overflow_gt": 0.0}, None),
        ({"kind": "percentile", "percent": 60, "gt": 0.9}, 1.0),
        ({"kind": "percentile", "percent": 60, "gt": 1.2}, None),  # it is 1.5, and may be 1.1
        ({"kind": "percentile", "percent": 100, "gt": 511}, 512.0),
        ({"kind": "percentile", "percent": 20, "lt": 1e-5}, 2.0**-20),
    ],
)
def test_what_is_certain_is_found(
    filled: ingest.DumpStore, fields: dict[str, object], value: float | None
) -> None:
    (result,) = backtest(filled, only(**fields)).rules
    assert not result.failed
    assert [finding.value for finding in result.first] == ([] if value is None else [value])


def test_findings_are_made_at_the_commit_and_said_in_words(made: MadeDump, store: Path) -> None:
    made.add(VALUES, tensor_name(time=1), step=0)
    chosen = only(kind="cast", format="e4m3", underflow_gt=0.01)
    (summary,) = ingest_directly(made.root, store, rules=chosen, sketches=True)
    (finding,) = summary.first_findings
    assert finding.reason == "50.000% of its elements would underflow in float8_e4m3fn"


def test_a_step_without_histograms_fails_the_rule_and_no_other(made: MadeDump, store: Path) -> None:
    made.add(VALUES, tensor_name(time=1), step=0)
    chosen = only(kind="percentile", percent=50, gt=1)
    (summary,) = ingest_directly(made.root, store, rules=chosen)
    assert "1 tensor has no histogram" in summary.failed_rules["mine"]
    (result,) = backtest(ingest.open_store(store), chosen).rules
    assert "no histogram" in result.failed[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "cast", "format": "float9", "overflow_gt": 0},
        {"kind": "cast", "format": "nvfp4", "underflow_gt": 0},
        {"kind": "cast", "format": "e4m3"},
        {"kind": "percentile", "percent": 50},
        {"kind": "percentile", "percent": 101, "gt": 1},
    ],
)
def test_impossible_rules_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"format|blocks|needs at least one|100"):
        only(**fields)
