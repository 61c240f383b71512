"""Values as JSON has them: objects, lists, texts, numbers, None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar


class Plain:
    """A dataclass that JSON has as an object of its fields."""

    __slots__ = ()

    also: ClassVar[tuple[str, ...]] = ()
    """Properties that JSON has besides the fields."""
    hidden: ClassVar[tuple[str, ...]] = ()
    """Fields that it does not have."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        names = [field.name for field in fields(self) if field.name not in self.hidden]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in (*names, *self.also)}


def plain(value: Any) -> Any:
    """Return a value as JSON has it; NaN and infinities, which become null there, stay."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        return [plain(member) for member in value]
    return value
