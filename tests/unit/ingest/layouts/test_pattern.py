"""Patterns of directories, level by level."""

import pytest

from ingest.layouts.pattern import parse


def test_level_gives_the_fields_in_its_name() -> None:
    pattern = parse("worldsize{world:[0-9]{1,3}}_rank{rank}!/{graph}/step{step}")
    assert pattern.match(0, "worldsize16_rank3") == {"world": "16", "rank": "3"}
    assert pattern.match(0, "worldsize1600_rank3") is None
    assert pattern.match(1, "any.thing\nat all") == {"graph": "any.thing\nat all"}
    assert pattern.match(2, "step8") == {"step": "8"}
    assert pattern.match(2, "8") is None
    assert pattern.proof == 1


def test_without_a_mark_only_the_whole_pattern_is_proof() -> None:
    assert parse("a/b/c").proof == 3


def test_literal_text_is_no_regular_expression() -> None:
    assert parse("a.b+{step}").match(0, "a.b+1") == {"step": "1"}
    assert parse("a.b+{step}").match(0, "aab1") is None


@pytest.mark.parametrize("text", ["rank_{rank}", "{time}"])
def test_digits_are_those_of_ascii(text: str) -> None:
    assert parse(text).match(0, text.replace("{rank}", "\u0663").replace("{time}", "\u0663" * 14)) is None


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("rank_3/Net/8", {"rank": "3", "net": "Net", "step": "8"}),
        ("rank_3/Net", None),
        ("rank_3/Net/8/more", None),
        ("rank_3/Net/last", None),
        ("rank_x/Net/8", None),
    ],
)
def test_path_fits_from_the_root_to_its_end(path: str, fields: dict[str, str] | None) -> None:
    assert parse("rank_{rank}!/{net}/{step}").match_path(path) == fields
