"""Text of values from dumps."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.text import (
    counted,
    counted_steps,
    number_text,
    printable,
    shape_text,
    shortened,
    table_lines,
)
from workers.model import StepKey


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    lines = table_lines(("name", "NaN"), [("a", "1"), ("longer\x1b", "200")], right=("NaN",))
    assert list(lines) == ["name        NaN", "a             1", "longer\\x1b  200"]


@given(st.text())
def test_printable_text_has_nothing_that_a_terminal_would_obey(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_values_are_written_in_few_characters() -> None:
    assert [number_text(value) for value in (None, math.nan, math.inf, 1 / 3, 2, 1e300)] == [
        "-",
        "-",
        "inf",
        "0.333333",
        "2",
        "1e+300",
    ]
    assert [shape_text(shape) for shape in ((), (2, 3), (0,), None)] == ["()", "2x3", "0", ""]
    assert [counted(count, "step") for count in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_steps_count_once_for_each_rank() -> None:
    keys = [StepKey(rank, step) for rank in (0, 1) for step in (1, 2, 3)]
    assert counted_steps(keys) == "6 steps of 2 ranks"
    assert counted_steps(keys[:3]) == "3 steps"
    assert counted_steps([]) == "0 steps"


def test_short_names_differ_where_names_do() -> None:
    names = [f"Net_{'layer' * 20}-{number}-{'block' * 20}.output.0" for number in range(30)]
    names += ["short", names[0], "a" * 200, "a" * 201]
    short = shortened(names, 40)
    assert len(set(short)) == len(set(names))
    assert all(len(text) <= 40 for text in short)
    assert (short[30], short[31]) == ("short", short[0])
    assert shortened([], 40) == []


def test_short_names_keep_their_ends_if_they_differ_in_two_places() -> None:
    names = [
        f"MatMul.Default_net-LogLoss_net-Mlp_l{n}-Dense_MatMul-op0.input.{m}" for n in (1, 2) for m in (0, 1)
    ]
    short = shortened(names, 30)
    assert len(set(short)) == 4
    assert [text[-7:] for text in short] == ["input.0", "input.1"] * 2
    assert all(len(text) <= 30 and f"l{n}-" in text for text, n in zip(short, (1, 1, 2, 2), strict=True))
