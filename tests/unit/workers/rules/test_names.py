"""Patterns over names, and suggestions for names that do not exist."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.errors import UsageError
from workers.rules.names import compiled, fits, is_chosen, matching, near

NAMES = ["Conv2D.net_conv1.output.0", "Conv2D.net_conv2.output.0", "ReLU.net_relu.output.0"]


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        ((), (), NAMES),
        (("Conv2D*",), (), NAMES[:2]),
        (("Conv2D",), (), []),
        (("re:conv[12]",), ("*conv1*",), NAMES[1:2]),
        ((), ("re:^Conv",), NAMES[2:]),
        (("*relu*", "re:2.output"), (), NAMES[1:]),
    ],
)
def test_patterns_of_a_rule_choose_names(
    include: tuple[str, ...], exclude: tuple[str, ...], chosen: list[str]
) -> None:
    """A glob matches the whole name; a regular expression is searched."""
    assert [name for name in NAMES if is_chosen(include, exclude, name)] == chosen


def test_a_wrong_expression_is_refused() -> None:
    with pytest.raises(re.error):
        compiled(("re:(",))


@pytest.mark.parametrize("name", ["op[0]", "a*b", "what?"])
def test_a_name_with_wildcards_in_it_matches_itself(name: str) -> None:
    assert fits(name)(name)


def test_a_glob_gives_the_places_of_what_it_matches() -> None:
    assert matching("Conv2D*", NAMES) == [0, 1]


@pytest.mark.parametrize(
    ("what", "pattern", "hint"),
    [
        ("tensor", "*relu2*", "Near: ReLU.net_relu.output.0"),
        ("tensor", "xyzzy", "`dump-ingest find STORE` lists the names."),
        ("rule", "xyzzy", "`dump-ingest rules list` lists the names."),
    ],
)
def test_a_pattern_that_matches_nothing_is_answered_with_a_hint(what: str, pattern: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"no {what} is named like") as raised:
        matching(pattern, NAMES, what)
    assert raised.value.hint == hint


def test_a_part_of_a_name_is_near_it_in_any_case() -> None:
    assert near("CONV2", NAMES) == [NAMES[0], NAMES[1]]
    assert near("conv1", NAMES) == [NAMES[0]]


def test_at_most_five_names_are_near() -> None:
    assert len(near("*", [f"op{i}" for i in range(100)])) == 5
    assert len(near("op", [f"op{i}" for i in range(100)])) == 5


@given(st.text("ab*?[]!.", max_size=8), st.text("ab[].", max_size=8))
def test_a_glob_of_a_rule_is_a_glob(pattern: str, name: str) -> None:
    assert is_chosen((pattern,), (), name) == fnmatch.fnmatchcase(name, pattern)
    assert is_chosen((), (pattern,), name) != fnmatch.fnmatchcase(name, pattern)
