"""A reason as it is printed."""

import pytest

from ingest.questions.why import WhyAnswer, WhyElement, WhyReason

NAN = float("nan")


@pytest.mark.parametrize(("inputs", "what"), [(("a",), "output"), ((), "value")])
def test_what_is_not_known_and_not_looked_at_is_told(inputs: tuple[str, ...], what: str) -> None:
    element = WhyElement((0,), NAN, (None,) * len(inputs), "")
    why = WhyAnswer("Op.x.output.0", inputs, (WhyReason("", 5),), (element,) * 5, 5, 10, 100)
    assert list(why.lines(1)) == [
        "5 of 10 elements of Op.x.output.0",
        "the first 10 of 100 elements were looked at",
        f"at [0]: {what} = NaN",
        "and 4 more",
    ]
