"""Which ranks, steps and names a question is about, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from workers.errors import UsageError
from workers.model import ranges_text

#: One rank or step, several of them, or None for all. A text is a place in the mesh of the job: `tp=0,dp=1`.
Choice: TypeAlias = int | str | Iterable[int | str] | None


def as_set(choice: Choice) -> set[int] | None:
    """Return the chosen ranks or steps; None for all.

    Raises:
        UsageError: the choice is a text, or has one.
    """
    if choice is None:
        return None
    numbers, texts = numbers_and_places(choice)
    if texts:
        raise _not_a_number(texts[0])
    return numbers


def numbers_and_places(choice: int | str | Iterable[int | str]) -> tuple[set[int], list[str]]:
    """Return the numbers of a choice, and its places in the mesh as they are written.

    Raises:
        UsageError: it has something that is neither a whole number nor a place.
    """
    members = [choice] if isinstance(choice, int | str) or not isinstance(choice, Iterable) else list(choice)
    places = [member for member in members if isinstance(member, str)]
    for place in places:
        if "=" not in place:
            raise _not_a_number(place)
    return {whole_number(member) for member in members if not isinstance(member, str)}, places


def as_names(names: str | Iterable[str]) -> list[str]:
    """Return names of which there may be only one. A text is a sequence of texts, too: of its letters."""
    return [names] if isinstance(names, str) else list(names)


def whole_number(member: object) -> int:
    """Return a number of Python, numpy or pandas as an integer.

    Raises:
        UsageError: it is not a whole number.
    """
    try:
        number = int(member)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):  # an array of several; NaN and infinity
        raise _not_a_number(member) from None
    if member != number:
        raise _not_a_number(member)
    return int(number)


def _not_a_number(member: object) -> UsageError:
    if not isinstance(member, str):
        hint = "For example: rank=1, step=[2, 3]."
    elif member.isdecimal():
        hint = f"Without quotes: {member}."
    else:
        hint = f"A name: store.tensors(name={member!r:.80})."
    return UsageError(f"{member!r:.80} is not a rank or a step, which are whole numbers", hint=hint)


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers in ascending order, neighbours as a range: `0-3, 7`; `none` for no numbers."""
    return ranges_text(numbers, ", ") or "none"


def named_ranges(noun: str, numbers: Iterable[int]) -> str:
    """Write numbers after their noun: `step 3`, `steps 1-3, 7`."""
    listed = list(numbers)
    return f"{noun}{'s' * (len(listed) != 1)} {format_ranges(listed)}"
