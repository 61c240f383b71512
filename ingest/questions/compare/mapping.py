r"""A mapping file: which name of A is which name of B, for frameworks that name tensors differently.

pairs:
  - {a: "Cell.conv.Conv2d.forward.*", b: "Module.conv.Conv2d.forward.*"}
  - {regex: 'Cell\.(\w+)\.Dense\.(.*)', b: 'Module.\1.Linear.\2'}

In a glob, the text that each `*` and `?` of `a` matches replaces the wildcards of `b`, in order. A regular
expression must match the whole name; `\1` and `\g<name>` in `b` are its groups. The first pair that matches
counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from ingest.questions.name_pattern import BoundedPattern
from ingest.reader.text import counted
from workers.errors import UsageError
from workers.host.yaml_file import load_model

_HINT = "A mapping file holds `pairs:`, a list of {a: GLOB, b: GLOB} or {regex: REGEX, b: TEMPLATE}."
WILD = re.compile(r"[*?]")


class NameRule(BaseModel):
    """One pair of a mapping file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    a: str | None = None
    regex: str | None = None
    b: str

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.a is None) == (self.regex is None):
            message = "give either `a` or `regex`"
            raise ValueError(message)
        _ = self._compiled
        return self

    @cached_property
    def _compiled(self) -> tuple[Any, str, str]:
        """A pattern in bounded time, the template of names in B, and what all names begin with that fit."""
        return _compile_regex(self.regex, self.b) if self.a is None else _compile_glob(self.a, self.b)

    def name_in_b(self, name: str) -> str | None:
        """Return the name in B of a name in A; None if the rule does not match it.

        Raises:
            UsageError: a regular expression takes too long.
        """
        pattern, template, beginning = self._compiled
        match = pattern.fullmatch(name) if name.startswith(beginning) else None
        return str(match.expand(template)) if match else None


class MappingFile(BaseModel):
    """A whole mapping file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pairs: list[NameRule]


@dataclass(frozen=True, slots=True)
class NameMapping:
    """Names of B by names of A."""

    rules: tuple[NameRule, ...] = ()
    _known: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)
    """Names of B by names that were asked for: every step repeats them."""

    def name_in_b(self, name: str) -> str | None:
        """Return the name in B of a name in A; None if no rule matches it."""
        if name not in self._known:
            mapped = (rule.name_in_b(name) for rule in self.rules)
            self._known[name] = next((name_b for name_b in mapped if name_b is not None), None)
        return self._known[name]

    def unused(self, names: Sequence[str]) -> list[int]:
        """Return the places of the rules that match none of `names`."""
        return [
            place
            for place, rule in enumerate(self.rules)
            if all(rule.name_in_b(name) is None for name in names)
        ]


def _compile_regex(text: str | None, template: str) -> tuple[Any, str, str]:
    try:
        pattern = BoundedPattern(text or "", said_by="regex")
        pattern.check_template(template)
    except (UsageError, ValueError) as exc:
        message = f"regex {text!r} with {template!r}: {exc}"
        raise ValueError(message) from exc
    return pattern, template, ""


def _compile_glob(a: str, b: str) -> tuple[Any, str, str]:
    wild_a, wild_b = WILD.findall(a), WILD.findall(b)
    if wild_b and len(wild_a) != len(wild_b):
        message = f"{a!r} has {counted(len(wild_a), 'wildcard')}, {b!r} has {len(wild_b)}"
        raise ValueError(message)
    numbers = iter(range(1, len(wild_b) + 1))
    template = "".join(
        f"\\g<{next(numbers)}>" if part in ("*", "?") else part.replace("\\", r"\\")
        for part in re.split(r"([*?])", b)
    )
    return re.compile(_linear(a), re.DOTALL), template, WILD.split(a, maxsplit=1)[0]


def _linear(glob: str) -> str:
    """Return a glob as a regular expression that tries no `*` twice.

    What comes between two `*` is looked for where it first is: if the rest of the name does not match then,
    it does not match after a later place either. That is why each part may be atomic.
    """
    head, *parts = ["".join("(.)" if c == "?" else re.escape(c) for c in part) for part in glob.split("*")]
    if not parts:
        return head
    middle = "".join(f"(?>(.*?){part})" for part in parts[:-1])
    return f"{head}{middle}(.*){parts[-1]}"


def load_mapping(path: Path) -> NameMapping:
    """Read a mapping file.

    Raises:
        UsageError: the file cannot be read, or holds anything but pairs of names; the message has the line.
    """
    return NameMapping(tuple(load_model(path, MappingFile, _HINT).pairs))
