"""The steps that a dump configuration asks for."""

import pytest

from ingest.layouts.mindspore import parse_iterations


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("0|5-8|100-101", {0, 5, 6, 7, 8, 100, 101}),
        ("3", {3}),
        ("all", None),
        ("", None),
        ("5-", None),
        ("8-5", None),
        ("0-99999999999", None),
        ("9" * 5000, None),
        ("|".join(["0-499999"] * 3), None),
        ("|".join(["0-999999", *(f"{i}000000-{i}999999" for i in range(1, 50))]), None),
    ],
)
def test_iterations_of_a_configuration(text: str, steps: set[int] | None) -> None:
    assert parse_iterations(text) == steps
