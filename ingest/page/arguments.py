"""What a URL asks for: parameters with types, and errors that name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from workers.errors import UsageError

Kind: TypeAlias = Literal["integer", "string", "boolean"]
#: The longest text of a parameter: names of tensors have up to 4 KB.
_MAX_TEXT = 8192
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class UrlParameter:
    """One parameter of a URL."""

    name: str
    kind: Kind
    words: str
    """What it means."""
    is_required: bool = False

    def refuse_other(self, value: str) -> None:
        """Refuse a value that is too long, or not of its kind.

        Raises:
            UsageError: it is.
        """
        if len(value) > _MAX_TEXT:
            raise UsageError(f"{self.name}: longer than {_MAX_TEXT} characters")
        if self.kind == "integer" and value and not _WHOLE.fullmatch(value):
            raise UsageError(f"{self.name}: {value[:80]!r} is not a whole number")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parameters that a URL has, checked against those that it may have."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, query: Mapping[str, str], parameters: tuple[UrlParameter, ...]) -> Arguments:
        """Check a query.

        Raises:
            UsageError: a parameter is unknown, missing, too long, or not of its kind.
        """
        known = {parameter.name: parameter for parameter in parameters}
        for name, value in query.items():
            if name not in known:
                names = ", ".join(known) or "none"
                raise UsageError(f"no parameter {name[:80]!r}", hint=f"Parameters: {names}.")
            known[name].refuse_other(value)
        for parameter in parameters:
            if parameter.is_required and not query.get(parameter.name):
                raise UsageError(f"the parameter {parameter.name} is missing", hint=parameter.words)
        return cls({name: value for name, value in query.items() if value})

    def text(self, name: str, default: str = "") -> str:
        """Return a text, or the default."""
        return self.given.get(name, default)

    def integer(self, name: str) -> int | None:
        """Return a whole number; None if it is not given."""
        return int(self.given[name]) if name in self.given else None

    def need(self, name: str) -> int:
        """Return a whole number that is required."""
        return int(self.given[name])

    def flag(self, name: str) -> bool:
        """Return whether something is asked for: `1` or `true`."""
        return self.given.get(name, "") in {"1", "true"}
