"""Small pickles, for the values of which a step has thousands."""

from __future__ import annotations

from typing import Any


class Positional:
    """Pickles its fields by position: by name, as slotted dataclasses do it, takes twice as long."""

    __slots__ = ()
    __match_args__: tuple[str, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)
