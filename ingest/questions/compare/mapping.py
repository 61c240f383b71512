r"""A mapping file: which name of A is which name of B, where two frameworks name things differently.

pairs:
  - {a: "Cell.conv.Conv2d.forward.*", b: "Module.conv.Conv2d.forward.*"}
  - {regex: 'Cell\.(\w+)\.Dense\.(.*)', b: 'Module.\1.Linear.\2'}

In a glob, what `*` and `?` stand for in `a` is put in the places of `*` and `?` in `b`, one after the other.
A regular expression must fit the whole name; `\1` or `\g<name>` in `b` are its groups. The first pair that
fits counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from workers.rules.yaml_file import load_model

_HINT = "A mapping file holds `pairs:`, a list of {a: GLOB, b: GLOB} or {regex: REGEX, b: TEMPLATE}."
_WILD = re.compile(r"[*?]")


class NamePair(BaseModel):
    """One line of a mapping file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    a: str | None = None
    regex: str | None = None
    b: str

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.a is None) == (self.regex is None):
            message = "give either `a` or `regex`"
            raise ValueError(message)
        self.compiled()
        return self

    def compiled(self) -> NameRule:
        """Return what applies it.

        Raises:
            ValueError: it cannot be applied.
        """
        if self.regex is not None:
            try:
                rule = NameRule(re.compile(self.regex), self.b)
                # What the template refers to must exist, whatever fits later.
                re.compile(f"{self.regex}|").fullmatch("").expand(self.b)  # type: ignore[union-attr]
            except (re.error, IndexError, OverflowError) as exc:
                message = f"regex {self.regex!r} with {self.b!r}: {exc}"
                raise ValueError(message) from exc
            return rule
        a = self.a or ""
        wild_a, wild_b = _WILD.findall(a), _WILD.findall(self.b)
        if wild_b and len(wild_a) != len(wild_b):
            message = f"{a!r} has {len(wild_a)} wildcards, {self.b!r} has {len(wild_b)}"
            raise ValueError(message)
        # No two wildcards that stand side by side: these could take ages.
        parts = [
            "(.*?)" if part == "*" else "(.)" if part == "?" else re.escape(part)
            for part in re.split(r"([*?])", a)
        ]
        groups = iter(range(1, len(wild_b) + 1))
        template = "".join(
            f"\\g<{next(groups)}>" if part in {"*", "?"} else part.replace("\\", r"\\")
            for part in re.split(r"([*?])", self.b)
        )
        return NameRule(re.compile("".join(parts), re.DOTALL), template)


class MappingFile(BaseModel):
    """A whole mapping file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pairs: list[NamePair]


@dataclass(frozen=True, slots=True)
class NameRule:
    """One line of a mapping file, ready to be applied."""

    pattern: re.Pattern[str]
    template: str

    def of(self, name: str) -> str | None:
        """Return the name in B of a name in A; None where the rule does not fit."""
        found = self.pattern.fullmatch(name)
        return found.expand(self.template) if found else None


@dataclass(frozen=True, slots=True)
class NameMapping:
    """Names of B by names of A."""

    rules: tuple[NameRule, ...] = ()

    def of(self, name: str) -> str | None:
        """Return the name in B of a name in A; None where no rule fits."""
        return next((mapped for mapped in self._all(name) if mapped is not None), None)

    def unused(self, names: Sequence[str]) -> list[int]:
        """Return the places of the rules that fit none of `names`."""
        return [
            n for n, rule in enumerate(self.rules) if not any(rule.of(name) is not None for name in names)
        ]

    def _all(self, name: str) -> Iterator[str | None]:
        return (rule.of(name) for rule in self.rules)


def load_mapping(path: Path) -> NameMapping:
    """Read a mapping file.

    Raises:
        UsageError: it cannot be read, or says something else than pairs of names.
    """
    return NameMapping(tuple(pair.compiled() for pair in load_model(path, MappingFile, _HINT).pairs))
