"""Text of values from dumps."""

from ingest.reader.text import number_text, shape_text, shortened, table_lines


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    lines = table_lines(("name", "NaN"), [("a", "1"), ("longer\x1b", "200")], right=("NaN",))
    assert list(lines) == ["name        NaN", "a             1", "longer\\x1b  200"]


def test_unknown_numbers_and_scalars_have_signs_of_their_own() -> None:
    assert (number_text(None), number_text(float("nan")), number_text(1 / 3)) == ("-", "-", "0.333333")
    assert (shape_text((2, 3)), shape_text(())) == ("2x3", "()")


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
