"""Rules and findings as values: what passes from the settings to the workers, and from them to the store.

Reading rules from YAML, and checking them, is up to `ingest.rules`; here everything is right already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from workers.model import Positional
from workers.store.model import Evaluated, Finding

#: Kinds that look at one step of one rank: they are evaluated when it is committed.
STEP_KINDS = frozenset(
    [
        "not_finite",
        "headroom",
        "too_large",
        "too_small",
        "zeros",
        "range",
        "disagreement",
        "overflow",
        "condition",
    ]
)
#: Kinds that look at several steps or ranks: the consolidator evaluates them.
SERIES_KINDS = frozenset(["unchanged", "change", "outlier", "divergence", "missing"])

Parameter: TypeAlias = float | str | bool | tuple[str, ...] | None


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
        """Whether it is about a rank."""
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
    """A condition that a tensor must fulfil beside; "" for none."""
    limit: int = 1000
    """Findings that are stored of one step; more are counted."""
    description: str = ""

    def __getitem__(self, name: str) -> Any:
        return next(value for parameter, value in self.parameters if parameter == name)

    def to_dict(self) -> dict[str, Any]:
        """Return what it says, without what it leaves at nothing."""
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
    """Rules that are evaluated together. They are no part of a fingerprint: other rules, same bytes."""

    rules: tuple[Rule, ...]
    digest: str
    """Names the set: 16 hexadecimal digits over everything that decides what is found."""

    @property
    def definitions(self) -> dict[str, dict[str, Any]]:
        """What each rule says, by its name."""
        return {rule.name: rule.to_dict() for rule in self.rules}

    @property
    def of_steps(self) -> tuple[Rule, ...]:
        """Those that look at one step of one rank."""
        return tuple(rule for rule in self.rules if rule.kind in STEP_KINDS)

    @property
    def of_series(self) -> tuple[Rule, ...]:
        """Those that look at several steps or ranks."""
        return tuple(rule for rule in self.rules if rule.kind in SERIES_KINDS)


def evaluated(
    rules: RuleSet,
    findings: Iterable[Sequence[Finding]],
    totals: Mapping[str, int],
    failed: Mapping[str, str],
) -> Evaluated:
    """Put together what each rule of a set found."""
    every = sorted((one for part in findings for one in part), key=lambda one: one.order)
    return Evaluated(rules.digest, tuple(every), dict(totals), dict(failed))
