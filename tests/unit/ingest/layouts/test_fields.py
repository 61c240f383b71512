"""Fields of patterns: which step they tell, and which places they join to a series."""

import re

import pytest

from ingest.layouts.detect import LAYOUTS
from ingest.layouts.pattern import FIELDS, STEP_FIELDS, series_of, step_of


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({}, None),
        ({"step": "8"}, 8),
        ({"iteration": "8"}, 8),
        # The user's step, not what the graph engine counts.
        ({"iteration": "0", "step": "8"}, 8),
        # The directory is named after the next step.
        ({"previous_step": "9"}, 8),
        ({"previous_step": "0"}, 0),
        # GE has no step yet.
        ({"iteration": "2147483647"}, None),
        ({"step": "2147483647"}, None),
    ],
)
def test_step_is_that_of_the_user(fields: dict[str, str], step: int | None) -> None:
    assert step_of(fields) == step


def test_series_are_places_that_differ_in_step_and_start_of_the_job_only() -> None:
    place = {"rank": "0", "graph": "1", "net": "Net"}
    for other in (
        {"step": "1"},
        {"iteration": "7", "time": "20260101000000"},
        {"previous_step": "2", "pid": "4"},
    ):
        assert series_of(place | other) == (("graph", "1"), ("net", "Net"), ("rank", "0"))
    assert series_of(place | {"graph": "2"}) != series_of(place)


@pytest.mark.parametrize("name", ["rank", "device"])
@pytest.mark.parametrize(
    ("text", "fits"), [("0", True), ("17", True), ("01", False), ("", False), ("1" * 10, False)]
)
def test_numbers_of_ranks_have_one_spelling(name: str, text: str, fits: bool) -> None:
    """Else two directories would be one rank."""
    assert (re.fullmatch(FIELDS[name].expression, text) is not None) == fits


def test_every_field_that_tells_a_step_is_used_by_a_layout() -> None:
    used = {
        name
        for layout in LAYOUTS
        for pattern in layout.patterns
        for level in pattern.levels
        for name in level.groupindex
    }
    assert used >= STEP_FIELDS.keys()
