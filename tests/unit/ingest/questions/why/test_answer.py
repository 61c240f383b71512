"""A reason as it is printed."""

from pathlib import Path

import pytest

from ingest.questions.why import Why, WhyElement, WhyReason
from tests.cli import Answer

NAN = float("nan")


def test_origin_prints_the_elements_and_the_reason(nan_store: Path, answer: Answer) -> None:
    lines = answer("origin", nan_store).stdout.splitlines()
    place = lines.index("Why")
    assert lines[place + 1 : place + 4] == [
        "  logarithm of a number that is not positive (2 of 24 elements)",
        "  at [2, 1]: input 0 = -1.55312, output = NaN",
        "  at [4, 3]: input 0 = -4.4891, output = NaN",
    ]
    why = answer("origin", nan_store, "--json").json["why"]
    assert why["elements"][0]["index"] == [2, 1]
    assert why["elements"][0]["value"] == "NaN"


@pytest.mark.parametrize(("inputs", "what"), [(("a",), "output"), ((), "value")])
def test_what_is_not_known_and_not_looked_at_is_told(inputs: tuple[str, ...], what: str) -> None:
    element = WhyElement((0,), NAN, (None,) * len(inputs), "")
    why = Why("Op.x.output.0", inputs, (WhyReason("", 5),), (element,) * 5, 5, 10, 100)
    assert list(why.lines(1)) == [
        "5 of 10 elements of Op.x.output.0",
        "the first 10 of 100 elements were looked at",
        f"at [0]: {what} = NaN",
        "and 4 more",
    ]
