"""Why an operator produced NaN or Inf, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ingest.questions.why.answer import number_of

if TYPE_CHECKING:
    from ingest.questions.why import Why, WhyElement


def why_lines(why: Why | None, *, elements: int) -> Iterator[str]:
    """Yield the reasons, then the first elements with what the inputs held at their places."""
    if why is None:
        return
    if why.summary:
        yield why.summary
    else:
        yield f"{why.bad} of {why.examined} elements of {why.tensor}"
    if why.examined < why.size:
        yield f"the first {why.examined} of {why.size} elements were looked at"
    for element in why.elements[:elements]:
        yield _element_line(element, is_output=bool(why.inputs))
    if why.bad > elements:
        yield f"and {why.bad - min(elements, len(why.elements))} more"


def _element_line(element: WhyElement, *, is_output: bool) -> str:
    index = f"[{', '.join(map(str, element.index))}]"
    inputs = [
        f"input {number} = {number_of(value)}"
        for number, value in enumerate(element.inputs)
        if value is not None
    ]
    what = "output" if is_output else "value"
    return f"at {index}: {', '.join([*inputs, f'{what} = {number_of(element.value)}'])}"
