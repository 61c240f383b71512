"""Which ranks, steps and names a question is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from workers.errors import UsageError

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
        UsageError: it has a text that is not a place.
    """
    members = [choice] if isinstance(choice, int | str) or not isinstance(choice, Iterable) else list(choice)
    places = [member for member in members if isinstance(member, str)]
    for place in places:
        if "=" not in place:
            raise _not_a_number(place)
    return {int(member) for member in members if not isinstance(member, str)}, places


def _not_a_number(text: str) -> UsageError:
    return UsageError(
        f"{text!r:.80} is not a rank or a step, which are whole numbers",
        hint=f"A name: store.tensors(name={text!r:.80}).",
    )
