"""Conditions: whole columns in, a mask out, and nothing of Python beyond that."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.filter import Filter
from workers.errors import UsageError

COLUMNS = {
    "nan_count": np.array([0.0, 3.0, np.nan, 7.0]),
    "max": np.array([1.0, -5.0, np.nan, 1e30]),
    "slot": np.array([0, 1, 2, 3]),
    "op_type": np.array(["Log", "Add", "", "Log"], object),
    "rank": 2,
}


def mask(text: str) -> list[bool]:
    return [bool(value) for value in Filter(text, frozenset(COLUMNS)).mask(COLUMNS, 4)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("nan_count > 0", [1, 3]),
        ("nan_count > 0 and op_type == 'Log'", [3]),
        ("nan_count > 0 or slot == 0", [0, 1, 3]),
        ("not nan_count > 0", [0, 2]),
        ("op_type in ['Log', 'Sub']", [0, 3]),
        ("op_type not in ('Log',)", [1, 2]),
        ("1 <= slot < 3", [1, 2]),
        ("abs(max) >= 5", [1, 3]),
        ("max != max", [2]),
        ("max < inf and max > -inf", [0, 1, 3]),
        ("slot * 2 + 1 == 3", [1]),
        ("nan_count / slot > 2", [1, 3]),
        ("rank == 2", [0, 1, 2, 3]),
        ("rank == 1", []),
        ("slot > 99999999999999999999999", []),
        ("1 / (slot - 1) > 0", [1, 2, 3]),
        ("  slot == 0\n", [0]),
    ],
)
def test_rows_that_fulfil_a_condition(text: str, rows: list[int]) -> None:
    assert [row for row, value in enumerate(mask(text)) if value] == rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slot",
        "slot + 1",
        "'text'",
        "slot ==",
        "slot = 1",
        "unknown > 1",
        "op_type > 1",
        "-op_type == 1",
        "abs(op_type) > 1",
        "__import__('os').system('true')",
        "slot.__class__",
        "slot[0] > 1",
        "(lambda: 1)() == 1",
        "[x for x in slot]",
        "slot ** 99 > 1",
        "f'{slot}' == ''",
        "slot if slot else slot",
        "abs(slot, 1) > 0",
        "abs(*slot) > 0",
        "print(slot) > 1",
        "slot > None",
        "slot > b'x'",
        "slot > ...",
        "slot is 1",
        "slot & 1 > 0",
        "(" * 500,
        "not " * 5000 + "slot",
        "slot + 99999999999999999999999 > 1",
        "nan_count and",
        "slot > 1; slot",
        "1 < 2 < 'a'",
    ],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    """The condition comes from a command line or a web form; nothing of it is ever run."""
    with pytest.raises(UsageError, match="where"):
        mask(text)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("nan_count = 2", "character 11 is '='; use '=='", "For example"),
        ("op_type == '=' && slot > 1", "character 16 is '&&'; use 'and'", "For example"),
        ("!slot == 1", "character 1 is '!'; use 'not'", "For example"),
        ("nan_count >", "something is missing after 'nan_count >'", "For example"),
        ("", "it is empty", "For example"),
        ("nan_count > > 2", "at character 13, '> 2'", "For example"),
        ("nan_cout > 0", "names 'nan_cout', which is not a column", "Did you mean nan_count?"),
        (
            "op_type == Sqrt",
            "names 'Sqrt' at character 12, which is not a column",
            "Quote it if it is text: op_type == 'Sqrt'.",
        ),
        ("weight > 0", "names 'weight', which is not a column", "Columns: rank, op_type, nan_count, max"),
        (
            "nan_count > 'a'",
            "cannot be evaluated: \"nan_count > 'a'\" takes text for a number",
            "For example",
        ),
        ("1 < slot < 'a'", "\"slot < 'a'\" at character 5 takes text for a number", "For example"),
        (
            "slot > 1 and max > 6.5GB",
            "'6.5GB' at character 20 is not a number; numbers have no unit",
            "For example",
        ),
        ("max == nan", "compares with nan at character 8, which no number equals", "Use nan_count > 0"),
        ("1 < slot != NaN", "compares with nan at character 13, which no number", "Use nan_count > 0"),
    ],
)
def test_a_message_names_the_place_and_the_remedy(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        mask(text)
    assert message in error.value.message
    assert hint in error.value.hint
    assert "ufunc" not in error.value.message


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert len(mask(text)) == 4


@pytest.mark.parametrize(
    "text", ["'a' * 10000000000 == 'b'", "op_type * 10000000000 == 'b'", "[1] * 10000000000 == 1"]
)
def test_text_and_lists_are_not_repeated(text: str) -> None:
    """Python would fill the memory with them."""
    condition = Filter(text, frozenset(["op_type"]))
    with pytest.raises(UsageError, match="only numbers can be"):
        condition.mask({"op_type": np.array(["Log", "Exp"], object)}, 2)


def test_a_condition_of_a_megabyte_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="characters, which is more than"):
        Filter("1 == 1 or " * 100_000 + "1 == 1", frozenset())


def test_a_sum_of_counts_is_a_column_where_its_parts_are() -> None:
    counts = {
        "nan_count": np.array([0.0, 0.0, 0.0, 5.0]),
        "pos_inf_count": np.array([0.0, 2.0, np.nan, 0.0]),
        "neg_inf_count": np.array([0.0, 1.0, 4.0, 0.0]),
    }
    condition = Filter("inf_count > 0", frozenset(counts))
    assert condition.names == {"pos_inf_count", "neg_inf_count"}
    assert condition.mask(counts, 4).tolist() == [False, True, False, False]
    assert Filter("non_finite_count == 5", frozenset(counts)).mask(counts, 4).tolist() == [False] * 3 + [True]
    with pytest.raises(UsageError, match="'inf_count', which is not a column"):
        Filter("inf_count > 0", frozenset({"pos_inf_count"}))
