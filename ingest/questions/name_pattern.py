"""The names of tensors that people mean: entries of a YAML file, and regular expressions in bounded time.

Python's `re` has no limit, and some expressions take longer than the age of the universe for a name of forty
letters. The module `regex` knows the same syntax, and ends after a given time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import regex  # type: ignore[import-untyped]  # it has none
from pydantic import BaseModel, ConfigDict

from workers.errors import UsageError

#: For all names together. A million names take about a second with an expression that does not backtrack.
LIMIT_S = 10.0


class BoundedPattern:
    """A regular expression that may be searched for `LIMIT_S` seconds altogether."""

    def __init__(self, text: str, *, limit_s: float = LIMIT_S, said_by: str = "--regex") -> None:
        """Compile it.

        Args:
            text: the expression.
            limit_s: how many seconds all searches may take together.
            said_by: where the user wrote it, for error messages.

        Raises:
            UsageError: it is not a regular expression.
        """
        self.pattern = text
        self._said_by = said_by
        self._left_s = limit_s
        try:
            self._pattern: Any = regex.compile(text)
        except (regex.error, RecursionError) as exc:
            raise UsageError(f"{said_by} {text[:200]!r}: {exc}") from exc

    def search(self, name: str) -> Any:
        """Search a name; return the match, or None.

        Raises:
            UsageError: the time is used up.
        """
        return self._timed(self._pattern.search, name)

    def fullmatch(self, name: str) -> Any:
        """Return the match of a whole name, or None.

        Raises:
            UsageError: the time is used up.
        """
        return self._timed(self._pattern.fullmatch, name)

    def check_template(self, template: str) -> None:
        """Raise ValueError if a template refers to groups that the expression does not have."""
        # Whatever name comes: this one matches everything.
        try:
            regex.compile(f"{self.pattern}|").fullmatch("").expand(template)
        except (regex.error, IndexError, OverflowError) as exc:
            raise ValueError(str(exc)) from exc

    def _timed(self, method: Callable[..., Any], name: str) -> Any:
        begin = time.monotonic()
        try:
            match = method(name, timeout=max(self._left_s, 0.001))
        except TimeoutError as exc:
            raise UsageError(
                f"{self._said_by} {self.pattern[:200]!r} takes too long for {name[:200]!r}",
                hint="A repetition within a repetition, such as (a+)+, tries every way to split the name. "
                "Write it without, or use a glob.",
            ) from exc
        self._left_s -= time.monotonic() - begin
        return match


class NamePattern(BaseModel):
    """A glob, or a regular expression. Which of them are needed is up to the entry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    regex: str | None = None

    def refuse_bad_regex(self) -> None:
        """Compile the regular expression, if there is one.

        Raises:
            ValueError: it is not a regular expression.
        """
        try:
            _ = self._pattern
        except UsageError as exc:
            raise ValueError(exc.message) from exc

    @cached_property
    def _pattern(self) -> BoundedPattern | None:
        return None if self.regex is None else BoundedPattern(self.regex, said_by="regex")
