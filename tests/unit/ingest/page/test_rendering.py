"""Words and templates."""

from __future__ import annotations

import math

import pytest

from ingest.page import rendering as words
from ingest.page.rendering import asset, environment
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


@pytest.mark.parametrize("length", [1, 56, 57, 400])
def test_a_long_name_keeps_both_ends(length: int) -> None:
    name = "".join(chr(ord("a") + place % 26) for place in range(length))
    short = words.short(name)
    assert len(short) == min(length, 56)
    begin, _, end = short.partition("…")
    assert name.startswith(begin)
    assert name.endswith(end)


def test_names_of_tensors_are_escaped() -> None:
    template = environment().from_string('<a title="{{ name }}">{{ name | short }}</a> {{ version }}')
    assert template.render(name='"><script>') == (
        f'<a title="&#34;&gt;&lt;script&gt;">&#34;&gt;&lt;script&gt;</a> {__version__}'
    )


def test_files_of_the_page_are_those_that_it_comes_with() -> None:
    assert asset("page.js")
    with pytest.raises(FileNotFoundError):
        asset("missing.js")
