"""Conditions of rules, checked when they are loaded."""

import re

import pytest

from workers.rules.condition import checked_condition
from workers.rules.step_columns import COLUMNS
from workers.store.consolidated.blocks import BLOCK_COLUMNS


@pytest.mark.parametrize("columns", [COLUMNS, BLOCK_COLUMNS])
def test_every_column_can_be_compared_with_what_it_holds(columns: frozenset[str]) -> None:
    wrong = set()
    for column in columns:
        try:
            assert checked_condition(f"{column} > 0", columns)
        except ValueError:
            assert checked_condition(f"{column} == 'x' and {column} in ['y']", columns)
            wrong.add(column)
    assert {"name", "op_type", "role", "graph"} <= wrong
    assert not wrong & {"nan_count", "slot", "rank", "step", "max"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan_cout > 0", "names 'nan_cout', which is not a column. Did you mean nan_count"),
        ("max", "'max' is a value, not a condition"),
        ("io > 3", "'io > 3' takes text for a number"),
        ("op_type == Sqrt", "Quote it if it is text: op_type == 'Sqrt'."),
    ],
)
def test_a_mistake_is_told_at_once(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        checked_condition(text, COLUMNS)
