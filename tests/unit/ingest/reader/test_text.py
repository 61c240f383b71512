"""Text of values from dumps."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.text import printable, shortened, table_lines


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    lines = table_lines(("name", "NaN"), [("a", "1"), ("longer\x1b", "200")], right=("NaN",))
    assert list(lines) == ["name        NaN", "a             1", "longer\\x1b  200"]


@given(st.text())
def test_printable_text_has_nothing_that_a_terminal_would_obey(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_short_names_differ_where_names_do() -> None:
    names = [f"Net_{'layer' * 20}-{number}-{'block' * 20}.output.0" for number in range(30)]
    names += ["short", names[0], "a" * 200, "a" * 201]
    short = shortened(names, 40)
    assert len(set(short)) == len(set(names))
    assert all(len(text) <= 40 for text in short)
    assert (short[30], short[31]) == ("short", short[0])
    assert shortened([], 40) == []
