"""Which rows a rule is about, and the statistics that are derived for it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rule_sets import evaluated, numbers, rows, tables_of
from workers.arrays.statistics import FIELDS


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


def test_fields_of_statistics_are_those_that_conditions_name() -> None:
    assert rows(tables_of(numbers(1)), kind="condition", where=" and ".join(f"{f} >= 0" for f in FIELDS)) == [
        0
    ]


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
