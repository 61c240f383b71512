"""How well a statement is backed: the same words in every answer, in JSON, terminal, page and report."""

from __future__ import annotations

from enum import StrEnum

from ingest.identities.difference import DifferenceShape


class Level(StrEnum):
    """What backs a cause that an answer states."""

    SHOWN = "shown"
    """An identity of stored values holds, or fails by more than rounding; its numbers are given."""
    LIKELY = "likely"
    """Values of this run speak for it, and the reason is named; they do not exclude every other cause."""
    OPEN = "open"
    """Something is wrong at this place; the cause is not known, and none is stated."""


#: What a difference in such a place is called.
_PLACES = {"element": "one element", "row": "one row", "block": "one block"}


def named_difference(difference: DifferenceShape) -> str:
    """Return what a difference of few elements is called; "" if most of them differ."""
    if difference.where in _PLACES and difference.how in ("bit", "not finite"):
        return "flipped bit" if difference.how == "bit" else "NaN or Inf born"
    return _PLACES.get(difference.where, "")
