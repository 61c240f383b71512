"""Words and templates."""

from __future__ import annotations

import math
from importlib.resources import files

import pytest
from jinja2 import UndefinedError

from ingest.page import rendering as words
from ingest.page.rendering import asset, environment, prose
from workers import __version__

UNKNOWN, MINUS, THIN = "\u2013", "\u2212", "\u202f"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, UNKNOWN),
        (math.nan, UNKNOWN),
        (math.inf, "Inf"),
        (-math.inf, f"{MINUS}Inf"),
        (0.0, "0"),
        (-1234, f"{MINUS}1{THIN}234"),
        (999_999, f"999{THIN}999"),
        (1e6, "1e+06"),
        (1 / 3, "0.333333"),
        (-1.5e-9, f"{MINUS}1.5e{MINUS}09"),
    ],
)
def test_numbers_have_up_to_six_digits(value: float | None, text: str) -> None:
    assert words.number(value) == text


def test_limits_of_colours_have_fewer_digits_and_powers_are_raised() -> None:
    assert (words.number(0.449917, 3), words.number(-7.76869e-9, 3)) == ("0.45", f"{MINUS}7.77e{MINUS}09")
    assert (words.power_of_two(0), words.power_of_two(-126)) == ("2⁰", "2⁻¹²⁶")


def test_an_element_may_be_nan_and_a_count_is_whole() -> None:
    assert (words.exact(math.nan), words.exact(None)) == ("NaN", UNKNOWN)
    assert (words.whole(1234567.0), words.whole(math.nan)) == (f"1{THIN}234{THIN}567", UNKNOWN)
    counts = [words.counted(count, "step") for count in (0, 1, 2000)]
    assert counts == ["0 steps", "1 step", f"2{THIN}000 steps"]
    assert (words.shape([2, 3]), words.shape([])) == ("2 \u00d7 3", "scalar")


def test_statistics_that_are_counts_are_written_in_full() -> None:
    assert words.statistic(20_000_001, "nan_count") == f"20{THIN}000{THIN}001"
    assert words.statistic(20_000_001, "l2_norm") == "2e+07"


@pytest.mark.parametrize("length", [1, 56, 57, 400])
def test_a_long_name_keeps_both_ends(length: int) -> None:
    name = "".join(chr(ord("a") + place % 26) for place in range(length))
    short = words.short(name)
    assert len(short) == min(length, 56)
    begin, _, end = short.partition("…")
    assert name.startswith(begin)
    assert name.endswith(end)


def test_times_are_in_utc() -> None:
    assert words.clock(86399.9) == "23:59:59 UTC"
    assert words.date_and_time(86399.9) == "1970-01-01 23:59:59 UTC"
    assert words.time_of_commit("2030-01-31T10:20:30.123+00:00") == "2030-01-31 10:20:30 UTC"


@pytest.mark.parametrize(
    ("low", "high", "text"), [(0, 0, "0"), (0.01234, 0.01234, "1.23 %"), (0, 0.5, "0 to 50 %")]
)
def test_shares_are_percentages_or_ranges_of_them(low: float, high: float, text: str) -> None:
    assert words.share(low, high) == text


def test_a_heading_begins_with_a_capital_letter_but_a_name_stays() -> None:
    assert words.sentence("mean of the loss") == "Mean of the loss"
    assert words.sentence("l2_norm of x") == "l2_norm of x"
    assert words.sentence("") == ""


def test_names_of_tensors_are_escaped() -> None:
    template = environment().from_string('<a title="{{ name }}">{{ name | short }}</a> {{ version }}')
    assert template.render(name='"><script>') == (
        f'<a title="&#34;&gt;&lt;script&gt;">&#34;&gt;&lt;script&gt;</a> {__version__}'
    )


def test_backquotes_of_a_message_are_code_and_names_in_it_are_escaped() -> None:
    assert prose("`verify <a>` names all; it's one ` here") == (
        "<code>verify &lt;a&gt;</code> names all; it&#39;s one ` here"
    )


def test_what_a_view_does_not_give_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'answer' is undefined"):
        environment().from_string("{{ answer }}").render()


@pytest.mark.parametrize(
    "name", sorted(path.name for path in files("ingest.page").joinpath("templates").iterdir())
)
def test_every_template_is_read_with_the_filters_that_there_are(name: str) -> None:
    assert environment().get_template(name).name == name


def test_files_of_the_page_are_those_that_it_comes_with() -> None:
    assert asset("page.js")
    with pytest.raises(FileNotFoundError):
        asset("missing.js")
