"""Operators of a step in a row."""

import re

from ingest.page.drawing.ribbon import ribbon_picture


def test_operators_have_colours_by_level_and_a_mark_if_they_are_bad() -> None:
    drawn = ribbon_picture([-1, 0, 3, 3], [False, False, True, False], "operators")
    assert set(re.findall(r'<path[^>]* class="(\w+)"', drawn)) == {"unknown", "zero", "lv3", "mark"}
    assert 'data-total="4"' in drawn


def test_many_operators_share_a_stripe_and_the_worst_is_seen() -> None:
    levels = [0] * 5000
    levels[1234] = 7
    bad = [level == 7 for level in levels]
    drawn = ribbon_picture(levels, bad, "operators")
    paths = dict(re.findall(r'<path d="([^"]*)" class="(\w+)"', drawn))
    count = {css: path.count("M") for path, css in paths.items()}
    assert count == {"zero": 1079, "lv7": 1, "mark": 1}


def test_a_step_without_operators_is_an_empty_picture() -> None:
    drawn = ribbon_picture([], [], "operators")
    assert "<path" not in drawn
    assert 'data-total="0"' in drawn
