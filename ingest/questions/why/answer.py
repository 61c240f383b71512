"""Why an operator produced NaN or Inf, as values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingest.reader.text import Plain, counted, value_text


@dataclass(frozen=True, slots=True)
class WhyRow(Plain):
    """The elements of an input that became one element of the output."""

    input: int
    """The place of the input in `WhyAnswer.inputs`."""
    at: str
    """Which elements these are, as numpy writes it: `1, 3, :`."""
    low: float
    """The least of them that is finite; NaN if none is."""
    high: float


@dataclass(frozen=True, slots=True)
class WhyElement(Plain):
    """One element of the output that is bad, and what the inputs held at its place."""

    index: tuple[int, ...]
    """Its place in the output."""
    value: float
    inputs: tuple[float | None, ...]
    """By input: the element that it was computed from; None if that is not one element, or not known."""
    reason: str
    """Why it is bad; "" if that is not known."""
    rows: tuple[WhyRow, ...] = ()
    """Of inputs with more axes, or longer ones: the rows from which the element was computed."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; numbers that are not finite as the texts `NaN`, `Inf`, `-Inf`."""
        inputs = [_plain(value) for value in self.inputs]
        return Plain.to_dict(self) | {"value": _plain(self.value), "inputs": inputs}


@dataclass(frozen=True, slots=True)
class WhyReason(Plain):
    """A reason by the definition of the operator, and for how many elements it holds."""

    reason: str
    """Such as `logarithm of a negative number`; "" if the reason is not known."""
    elements: int


@dataclass(frozen=True, slots=True)
class WhyAnswer(Plain):
    """Why an operator produced NaN or Inf."""

    tensor: str
    """The name of the tensor with the bad elements: an output, or an input that was bad already."""
    inputs: tuple[str, ...]
    """The names of the inputs, in the order of `WhyElement.inputs`."""
    reasons: tuple[WhyReason, ...]
    """The most frequent first."""
    elements: tuple[WhyElement, ...]
    """The first bad elements, at most 10."""
    bad: int
    """The number of bad elements in the part of the tensor that was looked at."""
    examined: int
    """The number of elements that were looked at, from the first one."""
    size: int
    """The number of elements of the tensor."""

    @property
    def summary(self) -> str:
        """The reasons with their numbers of elements, in one line; "" if none is known."""
        examined = counted(self.examined, "element")
        return "; ".join(f"{of.reason} ({of.elements} of {examined})" for of in self.reasons if of.reason)

    @property
    def first(self) -> str:
        """The first bad element and what the inputs held there, in one line."""
        return _element_line(self.elements[0], is_output=bool(self.inputs))

    def lines(self, elements: int) -> Iterator[str]:
        """Yield the reasons, then the first elements with what the inputs held at their places."""
        yield self.summary or f"{self.bad} of {counted(self.examined, 'element')} of {self.tensor}"
        if self.examined < self.size:
            yield f"the first {self.examined} of {counted(self.size, 'element')} were looked at"
        for element in self.elements[:elements]:
            yield _element_line(element, is_output=bool(self.inputs))
        if self.bad > elements:
            yield f"and {self.bad - min(elements, len(self.elements))} more"


def _element_line(element: WhyElement, *, is_output: bool) -> str:
    held = [f"input {at} = {value_text(of)}" for at, of in enumerate(element.inputs) if of is not None]
    held += [
        f"input {r.input} [{r.at}] from {value_text(r.low)} to {value_text(r.high)}" for r in element.rows
    ]
    held.append(f"{'output' if is_output else 'value'} = {value_text(element.value)}")
    return f"at [{', '.join(map(str, element.index))}]: {', '.join(held)}"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else value_text(value)
