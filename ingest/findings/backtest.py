"""Rules against what is stored already: how often they would have fired, and on what. Nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.findings.series import Series
from ingest.findings.stored import generation_of
from ingest.reader.catalog import Catalog, Choice
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import LeftOut, take_snapshot
from workers.rules.load import load_rules, rules_like
from workers.rules.step import evaluate
from workers.rules.values import Rule, RuleSet
from workers.store.model import Evaluated, Finding

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """What one rule would have found."""

    rule: str
    kind: str
    severity: str
    findings: int
    places: Mapping[tuple[int | None, int], int]
    """How much, by rank and step; rank None for what is about no one rank, or of more than its limit."""
    first: tuple[Finding, ...]
    """The first few."""
    failed: tuple[str, ...]
    """Where it could not be evaluated, and why."""

    @property
    def ranks(self) -> str:
        """The ranks on which it fired, such as `0-3`; "" for none."""
        ranks = sorted({rank for rank, _ in self.places if rank is not None})
        return format_ranges(ranks) if ranks else ""

    @property
    def steps(self) -> str:
        """The steps in which it fired."""
        return format_ranges(sorted({step for _, step in self.places})) if self.places else ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as an object of plain values."""
        return {
            "rule": self.rule,
            "kind": self.kind,
            "severity": self.severity,
            "findings": self.findings,
            "places": [
                {"rank": rank, "step": step, "findings": count} for (rank, step), count in self.places.items()
            ],
            "first": [one.to_dict() for one in self.first],
            "failed": list(self.failed),
        }


@dataclass(frozen=True, slots=True)
class RuleTest:
    """What a set of rules would have found in a store."""

    store: str
    steps: int
    """Steps of single ranks that were looked at."""
    rules: tuple[BacktestResult, ...]
    """Those that fire most first."""
    left_out: tuple[LeftOut, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as one object of plain values."""
        return {
            "store": self.store,
            "steps": self.steps,
            "rules": [one.to_dict() for one in self.rules],
            "left_out": [
                {"rank": one.key.rank, "step": one.key.step, "reason": one.reason} for one in self.left_out
            ],
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return how often each rule fires: one row for each rule, rank and step."""
        import pandas as pd

        rows = [
            (one.rule, one.severity, rank, step, count)
            for one in self.rules
            for (rank, step), count in one.places.items()
        ]
        return pd.DataFrame(rows, columns=["rule", "severity", "rank", "step", "findings"])


@dataclass(slots=True)
class _Tally:
    findings: int = 0
    places: Counter[tuple[int | None, int]] = field(default_factory=Counter)
    first: list[Finding] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def backtest(
    store: Catalog,
    rules: str | Path | RuleSet | None = None,
    rank: Choice = None,
    step: Choice = None,
    *,
    rule: str | Iterable[str] | None = None,
) -> RuleTest:
    """Evaluate rules over the steps of a store as if they had been there from the start.

    Memory: that of `Series`, the index of one step, and a number for each rule, rank and step.

    Args:
        store: the store; nothing is written to it.
        rules: a file of rules, or rules; the built-in ones where None.
        rank: one rank, or several; all where None.
        step: one step, or several; all where None. Steps before them are not looked at.
        rule: only these of the rules, by name or glob.

    Raises:
        UsageError: a rule is wrong, or a rank, step or rule is not there.
        DamagedStore: the index of a step is damaged.
    """
    chosen = _chosen(rules if isinstance(rules, RuleSet) else load_rules(rules).enabled, rule)
    snapshot = take_snapshot(store, rank, step, include_partial=True)
    tallies = {one.name: _Tally() for one in chosen.rules}
    if chosen.of_steps:
        for key in snapshot.keys:
            one = snapshot.chosen[key]
            _take(tallies, evaluate(chosen, one.tables, key), str(key), (key.rank, key.step or 0))
            one.forget_tables()
    if chosen.of_series:
        generations = {
            number: generation_of({r: one.fingerprint for r, one in snapshot.of_step(number).items()})
            for number in snapshot.steps
        }
        series, before = Series(chosen), dict[int, str]()
        for number, generation in generations.items():
            found = series.evaluate(snapshot.store, number, before, generation).found
            _take(tallies, _of_ranks(found, snapshot.ranks), f"step {number}", (None, number))
            before[number] = generation
    rehearsed = [_rehearsed(one, tallies[one.name]) for one in chosen.rules]
    rehearsed.sort(key=lambda one: (-one.findings, one.rule))
    return RuleTest(store.url, len(snapshot.keys), tuple(rehearsed), snapshot.left_out)


#: The public name, that of the command; a function called so would look like a test of its own.
test_rules = backtest


def _chosen(rules: RuleSet, wanted: str | Iterable[str] | None) -> RuleSet:
    if wanted is None:
        return rules
    names = [one.name for one in rules.rules]
    patterns = [wanted] if isinstance(wanted, str) else wanted
    found = rules_like(patterns, names)
    return RuleSet(tuple(one for one in rules.rules if one.name in found), rules.digest)


def _of_ranks(found: Evaluated, ranks: list[int]) -> Evaluated:
    """Return what is about these ranks: series are evaluated over all of them."""
    chosen = tuple(one for one in found.findings if one.rank is None or one.rank in ranks)
    if len(chosen) == len(found.findings):
        return found
    return Evaluated(found.rules, chosen, Counter(one.rule for one in chosen), found.failed)


def _take(tallies: Mapping[str, _Tally], found: Evaluated, where: str, place: tuple[int | None, int]) -> None:
    stored: dict[str, list[Finding]] = {}
    for finding in found.findings:
        stored.setdefault(finding.rule, []).append(finding)
    for name, total in found.totals.items():
        tally, known = tallies[name], stored.get(name, [])
        tally.findings += total
        tally.first += known[: _SHOWN - len(tally.first)]
        if place[0] is not None:
            tally.places[place] += total
            continue
        tally.places.update(Counter((one.rank, one.step) for one in known))
        if total > len(known):
            tally.places[place] += total - len(known)
    for name, why in found.failed.items():
        tallies[name].failed.append(f"{where}: {why}")


def _rehearsed(rule: Rule, tally: _Tally) -> BacktestResult:
    return BacktestResult(
        rule.name,
        rule.kind,
        rule.severity,
        tally.findings,
        dict(tally.places),
        tuple(tally.first),
        tuple(tally.failed),
    )
