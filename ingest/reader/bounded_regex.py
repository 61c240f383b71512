"""Regular expressions of users, in bounded time.

Python's `re` has no limit, and some expressions take longer than the age of the universe for a name of forty
letters. The module `regex` knows the same syntax, and ends after a given time.
"""

from __future__ import annotations

import time
from typing import Any

import regex  # type: ignore[import-untyped]  # it has none

from workers.errors import UsageError

#: For all names together. A million names take about a second with an expression that does not backtrack.
LIMIT_S = 10.0


class BoundedPattern:
    """A regular expression that may be searched for `LIMIT_S` seconds altogether."""

    def __init__(self, text: str, *, limit_s: float = LIMIT_S) -> None:
        """Compile it.

        Raises:
            UsageError: it is not a regular expression.
        """
        self._text = text
        self._left_s = limit_s
        try:
            self._pattern: Any = regex.compile(text)
        except (regex.error, RecursionError) as exc:
            raise UsageError(f"--regex {text[:200]!r}: {exc}") from exc

    def search(self, name: str) -> object | None:
        """Return what matches in a name, or None.

        Raises:
            UsageError: the time is used up.
        """
        begin = time.monotonic()
        try:
            found: object | None = self._pattern.search(name, timeout=max(self._left_s, 0.001))
        except TimeoutError as exc:
            raise UsageError(
                f"--regex {self._text[:200]!r} takes too long for {name[:200]!r}",
                hint="A repetition within a repetition, such as (a+)+, tries every way to split the name. "
                "Write it without, or use --name with a glob.",
            ) from exc
        self._left_s -= time.monotonic() - begin
        return found
