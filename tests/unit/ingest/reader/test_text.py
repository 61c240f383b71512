"""Text of values from dumps."""

from ingest.reader.text import number_text, shape_text, table_lines


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    lines = table_lines(("name", "NaN"), [("a", "1"), ("longer\x1b", "200")], right=("NaN",))
    assert list(lines) == ["name        NaN", "a             1", "longer\\x1b  200"]


def test_unknown_numbers_and_scalars_have_signs_of_their_own() -> None:
    assert (number_text(None), number_text(float("nan")), number_text(1 / 3)) == ("-", "-", "0.333333")
    assert (shape_text((2, 3)), shape_text(())) == ("2x3", "()")
