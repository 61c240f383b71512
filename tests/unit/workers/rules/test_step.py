"""Rules over one step: each kind by its definition, and nothing that goes wrong with one stops the others."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps import make_tables
from workers.arrays.statistics import FIELDS, summarise
from workers.model import StepKey
from workers.rules.load import rule_set
from workers.rules.schema import RULE
from workers.rules.step import LIMITS, evaluate
from workers.rules.values import Rule, RuleSet, Selector
from workers.store.model import Evaluated
from workers.store.tables import LABELS, Tables

KEY = StepKey(3, 7)
Array = np.ndarray[Any, Any]


def tables_of(*tensors: Array, **labels: str) -> Tables:
    """Return the tables of a step with these tensors, named op0, op1, ..."""
    made = make_tables(KEY, [f"op{i}" for i in range(len(tensors))])
    for row, values in enumerate(tensors):
        made.statistics[row] = summarise(values.reshape(-1)).as_row()
        made.labels[row, LABELS.index("dtype")] = values.dtype.name
    for name, text in labels.items():
        made.labels[:, LABELS.index(name)] = text
    return made


def found(made: Tables, **rule: Any) -> Evaluated:
    return evaluate(rule_set([RULE.validate_python({"name": "mine", **rule})]), made, KEY)


def rows(made: Tables, **rule: Any) -> list[int]:
    result = found(made, **rule)
    assert not result.failed
    return [one.row for one in result.findings]


def numbers(*values: float, dtype: str = "f4") -> Array:
    return np.array(values, dtype)


def test_not_finite_counts_what_it_is_asked_for() -> None:
    made = tables_of(
        numbers(1, 2), numbers(np.nan, 1), numbers(np.inf, -np.inf), numbers(np.nan, np.nan, -np.inf)
    )
    assert rows(made, kind="not_finite") == [1, 2, 3]
    assert rows(made, kind="not_finite", of=["nan"]) == [1, 3]
    assert rows(made, kind="not_finite", of=["neg_inf"]) == [2, 3]
    assert rows(made, kind="not_finite", count_gt=2) == [3]
    assert found(made, kind="not_finite").findings[2].reason == "2 NaN, 1 -Inf of 3 elements"


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_headroom_is_the_share_of_the_largest_number_of_the_type(dtype: str) -> None:
    limit = LIMITS[dtype]
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    half, most = (np.array([1, -x], np.float64).astype(kind) for x in (limit / 2, limit))
    made = tables_of(half, most)
    assert rows(made, kind="headroom", share_gt=0.5) == [1]
    assert rows(made, kind="headroom", share_ge=0.5) == [0, 1]
    assert rows(made, kind="headroom", share_ge=1) == [1]


def test_headroom_of_float16_ends_at_65504() -> None:
    assert LIMITS["float16"] == 65504
    assert LIMITS["float8_e4m3fn"] == 448
    assert LIMITS["float8_e5m2"] == 57344


def test_too_large_and_too_small_compare_what_they_are_given() -> None:
    made = tables_of(numbers(-100, 1), numbers(3, 4), numbers(1e-9, -1e-9))
    assert rows(made, kind="too_large", abs_max_gt=50) == [0]
    assert rows(made, kind="too_large", max_gt=3.5) == [1]
    assert rows(made, kind="too_large", max_gt=3.5, rms_gt=50) == [0, 1]
    assert rows(made, kind="too_large", l2_norm_gt=4.99, mean_gt=1e9) == [0, 1]
    assert rows(made, kind="too_small", rms_lt=1e-7) == [2]
    assert rows(made, kind="too_small", mean_lt=-1) == [0]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_rms_is_that_of_the_elements_and_no_less_than_the_mean_of_their_magnitude(
    values: list[float],
) -> None:
    """So `rms_lt` never fires where the definition by the mean of |x| would not."""
    array = np.array(values)
    rms = float(np.sqrt(np.mean(array**2)))
    (finding,) = found(tables_of(array), kind="too_large", rms_gt=-1).findings
    assert finding.value == pytest.approx(rms, rel=1e-9, abs=1e-300)
    assert finding.value >= np.abs(array).mean() * (1 - 1e-9)


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


def test_a_file_is_no_tensor() -> None:
    assert rows(tables_of(numbers(np.nan), kind="file"), kind="not_finite") == []


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


def test_a_limit_bounds_what_is_stored_and_not_what_is_counted() -> None:
    result = found(tables_of(*[numbers(np.nan)] * 9), kind="not_finite", limit=4)
    assert [one.row for one in result.findings] == [0, 1, 2, 3]
    assert result.totals == {"mine": 9}


def test_a_rule_that_fails_is_named_and_the_others_are_evaluated() -> None:
    """Whatever a rule holds that nobody thought of: the step is committed."""
    broken = Rule("broken", "too_large", "info", Selector(), (("max_gt", 0.0),), where="nan_count == 'x' + 1")
    worse = Rule("worse", "no_such_kind", "info", Selector(), ())
    fine = rule_set([RULE.validate_python({"name": "fine", "kind": "not_finite"})]).rules
    result = evaluate(RuleSet((broken, worse, *fine), "d"), tables_of(numbers(np.nan, 1)), KEY)
    assert result.totals == {"fine": 1}
    assert set(result.failed) <= {"broken", "worse"}
    assert "broken" in result.failed


def test_a_finding_says_where_and_what() -> None:
    (one,) = found(tables_of(numbers(4)), kind="too_large", max_gt=2, severity="critical").findings
    assert (one.rule, one.severity, one.rank, one.step, one.row) == ("mine", "critical", 3, 7, 0)
    assert (one.name, one.graph, one.value, one.threshold) == ("MatMul.op0.output.0", "0", 4.0, 2.0)
    assert one.reason == "max 4 > 2"


def test_an_overflow_record_and_a_disagreement_are_found_by_their_rows() -> None:
    made = tables_of(numbers(1), numbers(2))
    made.labels[0, LABELS.index("kind")] = "overflow"
    made.labels[0, LABELS.index("record")] = '{"failed": [{"op_type": "Mul", "op_name": "x"}], "record": {}}'
    made.labels[1, LABELS.index("problem")] = "s.csv disagrees: max: 3 is reported, 2 computed"
    (record,) = found(made, kind="overflow").findings
    assert record.reason == "the hardware recorded an overflow in Mul.x"
    assert math.isnan(record.value)
    assert rows(made, kind="disagreement") == [1]
    made.labels[0, LABELS.index("record")] = "no JSON"
    assert rows(made, kind="overflow") == [0]


def test_fields_of_statistics_are_those_that_conditions_name() -> None:
    assert rows(tables_of(numbers(1)), kind="condition", where=" and ".join(f"{f} >= 0" for f in FIELDS)) == [
        0
    ]
