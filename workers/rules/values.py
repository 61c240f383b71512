"""Rules as values: what passes from the settings to the workers.

`workers.rules.schema` reads rules from YAML and checks them. The values here are correct already, and need
neither YAML nor pydantic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from workers.errors import DumpIngestError
from workers.model import Positional
from workers.store.model import Evaluated, Finding

#: Characters of the reason why a rule could not be evaluated.
_REASON = 500

Parameter: TypeAlias = float | str | bool | tuple[str, ...] | None


class Scope(StrEnum):
    """What the rules of a kind look at."""

    STEP = "one step"
    """One step of one rank: the worker that commits it evaluates them."""
    STEPS = "several steps"
    """A tensor of a rank over several steps: the consolidator evaluates them."""
    RANKS = "several ranks"
    """The replicas of one step: the consolidator evaluates them."""
    OPERATORS = "a sample of operators"
    """What operators of a step read and wrote: the consolidator evaluates them."""


@dataclass(frozen=True, slots=True)
class Selector(Positional):
    """Which tensors a rule is about.

    Patterns are globs, or `re:` and a regular expression that is searched.
    """

    include: tuple[str, ...] = ()
    """Over the name of the tensor; empty for all."""
    exclude: tuple[str, ...] = ()
    op_type: tuple[str, ...] = ()
    exclude_op_type: tuple[str, ...] = ()
    io: tuple[str, ...] = ()
    graph: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    rank: tuple[tuple[int, int], ...] = ()
    """First and last of each span; empty for all."""

    def has_rank(self, rank: int) -> bool:
        """Return whether the rule is about a rank."""
        return not self.rank or any(first <= rank <= last for first, last in self.rank)


@dataclass(frozen=True, slots=True)
class Rule(Positional):
    """One rule."""

    name: str
    kind: str
    severity: str
    selector: Selector
    parameters: tuple[tuple[str, Parameter], ...]
    where: str = ""
    """A condition that a tensor must fulfil as well; "" for none."""
    limit: int = 1000
    """How many findings of one step are stored; further ones are only counted."""
    description: str = ""
    scope: Scope = Scope.STEP
    """Follows from the kind."""

    def __getitem__(self, name: str) -> Any:
        return next(value for parameter, value in self.parameters if parameter == name)

    def to_dict(self) -> dict[str, Any]:
        """Return the definition of the rule, without fields that are empty."""
        selector = {name: getattr(self.selector, name) for name in Selector.__match_args__}
        row: dict[str, Any] = {
            "kind": self.kind,
            "severity": self.severity,
            "description": self.description,
            **{name: value for name, value in self.parameters if value is not None},
            **{name: list(value) for name, value in selector.items() if value},
        }
        if self.where:
            row["where"] = self.where
        return {**row, "limit": self.limit}


@dataclass(frozen=True, slots=True)
class RuleSet(Positional):
    """Rules that are evaluated together. Not part of a fingerprint: other rules leave the bytes the same."""

    rules: tuple[Rule, ...]
    digest: str
    """Names the set: 16 hexadecimal digits over everything that decides what the rules find."""

    @property
    def definitions(self) -> dict[str, dict[str, Any]]:
        """The definition of each rule, by its name."""
        return {rule.name: rule.to_dict() for rule in self.rules}

    @property
    def step_rules(self) -> tuple[Rule, ...]:
        """Those that look at one step of one rank."""
        return tuple(rule for rule in self.rules if rule.scope is Scope.STEP)

    @property
    def series_rules(self) -> tuple[Rule, ...]:
        """Those that look at several steps or ranks."""
        return tuple(rule for rule in self.rules if rule.scope is not Scope.STEP)


def why_failed(error: Exception) -> str:
    """Return why a rule could not be evaluated, as commits and documents keep it."""
    reason = error.message if isinstance(error, DumpIngestError) else f"{type(error).__name__}: {error}"
    return reason[:_REASON]


def evaluated(
    rules: RuleSet,
    findings: Iterable[Sequence[Finding]],
    totals: Mapping[str, int],
    failed: Mapping[str, str],
) -> Evaluated:
    """Return the findings of the rules of a set, the worst first.

    Args:
        rules: the set.
        findings: by rule, its findings.
        totals: by rule, the number of its findings, including those that are not stored.
        failed: by rule that could not be evaluated, why.
    """
    ordered = sorted((finding for part in findings for finding in part), key=lambda finding: finding.order)
    return Evaluated(rules.digest, tuple(ordered), dict(totals), dict(failed))
