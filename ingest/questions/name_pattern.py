"""The names of tensors that an entry of a YAML file is about."""

from __future__ import annotations

from functools import cached_property

from pydantic import BaseModel, ConfigDict

from ingest.reader.bounded_regex import BoundedPattern
from workers.errors import UsageError


class NamePattern(BaseModel):
    """A glob, or a regular expression. Which of them are needed is up to the entry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    """Glob for the whole name."""
    regex: str | None = None
    """Regular expression that is searched in the name."""

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
