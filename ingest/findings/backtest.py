"""Backtests: how often rules would have fired in the steps of a store, and on what. Nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ingest.findings.series import SeriesRules
from ingest.findings.stored import beyond_limits, describe_unknown_ranks, generation_of, of_ranks
from ingest.questions.question import Answer, Note, Part, Table
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice, as_names, format_ranges
from ingest.reader.snapshot import LeftOut, Snapshot, take_snapshot
from ingest.reader.step_tables import read_sketches
from ingest.reader.text import counted
from workers.model import grouped
from workers.rules.schema import load_rules, rules_like
from workers.rules.step import evaluate, needs_sketches
from workers.rules.values import RuleSet
from workers.store.model import Evaluated, Finding

if TYPE_CHECKING:
    import pandas as pd

#: Findings of each rule that are shown.
_SHOWN = 5
#: Reasons for which a rule could not be evaluated, of those that are told.
_REASONS = 3


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """What one rule would have found."""

    rule: str
    kind: str
    severity: str
    places: Counter[tuple[int | None, int]] = field(default_factory=Counter)
    """How much, by rank and step. Rank None: findings about several ranks, or beyond the limit."""
    first: list[Finding] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, known: list[Finding], total: int, rank: int | None, step: int) -> None:
        """Count findings of one step, of one rank or of all (None); only the `known` ones have a rank."""
        self.first.extend(known[: _SHOWN - len(self.first)])
        if rank is None:
            self.places.update((finding.rank, finding.step) for finding in known)
            total -= len(known)
        if total:
            self.places[rank, step] += total

    @property
    def findings(self) -> int:
        """How much it would have found."""
        return self.places.total()

    @property
    def ranks(self) -> str:
        """The ranks on which it fired, such as `0-3`; "" for none."""
        ranks = sorted({rank for rank, _ in self.places if rank is not None})
        return format_ranges(ranks) if ranks else ""

    @property
    def steps(self) -> str:
        """The steps in which it fired, such as `0-3`; "" for none."""
        return format_ranges(sorted({step for _, step in self.places})) if self.places else ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as one object of plain values."""
        return {
            "rule": self.rule,
            "kind": self.kind,
            "severity": self.severity,
            "findings": self.findings,
            "places": [
                {"rank": rank, "step": step, "findings": count} for (rank, step), count in self.places.items()
            ],
            "first": [finding.to_dict() for finding in self.first],
            "failed": self.failed,
        }


@dataclass(frozen=True, slots=True, repr=False)
class RuleTest(Answer):
    """What a set of rules would have found in a store."""

    noun: ClassVar = "rule"

    store: str
    steps: int
    """Steps of single ranks that were looked at."""
    rules: tuple[BacktestResult, ...]
    """Those that fire most come first."""
    left_out: tuple[LeftOut, ...]

    def table(self) -> Table[BacktestResult]:
        """Return a row for each rule."""
        return Table(
            {
                **{name: attrgetter(name) for name in ("rule", "severity", "findings")},
                "ranks": lambda result: result.ranks or "-",
                "steps": lambda result: result.steps or "-",
                "first": _first_text,
            },
            self.rules,
            right=("findings",),
        )

    def report(self) -> Iterator[Part]:
        """Yield the rules, and which of them could not be evaluated."""
        yield self.table()
        yield Note(f"{counted(self.steps, 'step')} of single ranks evaluated", "")
        for result in self.rules:
            yield from (Note(f"{result.rule}: {reason}", "failed") for reason in result.failed[:_REASONS])

    def to_pandas(self) -> pd.DataFrame:
        """Return how often each rule fires: one row for each rule, rank and step."""
        import pandas as pd  # deferred: pandas takes 0.4 s

        rows = [
            (result.rule, result.severity, rank, step, count)
            for result in self.rules
            for (rank, step), count in result.places.items()
        ]
        return pd.DataFrame(rows, columns=["rule", "severity", "rank", "step", "findings"])


def _first_text(result: BacktestResult) -> str:
    if not result.first:
        return "-"
    finding = result.first[0]
    where = f"step {finding.step}" if finding.rank is None else f"rank {finding.rank} step {finding.step}"
    return f"{where}: {finding.name + ': ' if finding.name else ''}{finding.reason}"


def backtest(
    store: Catalog,
    rules: str | Path | RuleSet | None = None,
    rank: Choice = None,
    step: Choice = None,
    *,
    rule: str | Iterable[str] | None = None,
) -> RuleTest:
    """Evaluate rules over the steps of a store as if they had applied from the start.

    Memory: that of `SeriesRules`, the index of one step, and a number for each rule, rank and step.

    Args:
        store: the store; nothing is written to it.
        rules: a file of rules, or rules; None for the built-in ones.
        rank: one rank, or several; None for all.
        step: one step, or several; None for all. Steps before them are not looked at.
        rule: only these of the rules, by name or glob.

    Raises:
        UsageError: a rule is wrong, or a rank, step or rule does not exist.
        DamagedStore: no step can be read.
    """
    chosen = _chosen(rules if isinstance(rules, RuleSet) else load_rules(rules).enabled, rule)
    snapshot = take_snapshot(store, rank, step, include_partial=True)
    results = {rule.name: BacktestResult(rule.name, rule.kind, rule.severity) for rule in chosen.rules}
    snapshot = _evaluate_steps(chosen, snapshot, results)
    _evaluate_series(chosen, snapshot, results)
    most_first = sorted(results.values(), key=lambda result: (-result.findings, result.rule))
    return RuleTest(store.url, len(snapshot.keys), tuple(most_first), snapshot.left_out)


def _chosen(rules: RuleSet, patterns: str | Iterable[str] | None) -> RuleSet:
    if patterns is None:
        return rules
    names = rules_like(as_names(patterns), [rule.name for rule in rules.rules])
    return RuleSet(tuple(rule for rule in rules.rules if rule.name in names), rules.digest)


def _evaluate_steps(rules: RuleSet, snapshot: Snapshot, results: Mapping[str, BacktestResult]) -> Snapshot:
    if not rules.step_rules:
        return snapshot.without_damaged()
    asks = needs_sketches(rules)
    readable = snapshot.without_damaged(lambda step: (step.tables, read_sketches(step) if asks else None))
    for key in readable.keys:
        step = readable.chosen[key]
        found = evaluate(rules, step.tables, key, read_sketches(step) if asks else None)
        _count(results, found, str(key), key.rank, key.step or 0)
        step.forget_tables()
    return readable


def _evaluate_series(rules: RuleSet, snapshot: Snapshot, results: Mapping[str, BacktestResult]) -> None:
    if not rules.series_rules:
        return
    series, before = SeriesRules(rules), dict[int, str]()
    for number in snapshot.steps:
        fingerprints = {rank: step.fingerprint for rank, step in snapshot.of_step(number).items()}
        generation = generation_of(fingerprints)
        result = series.evaluate(snapshot.store, number, before, generation).result
        findings = of_ranks(result.findings, snapshot.ranks)
        if len(findings) < len(result.findings):
            totals = Counter(finding.rule for finding in findings)
            beyond = beyond_limits(result.findings, result.totals)
            failed = {rule: describe_unknown_ranks(count) for rule, count in beyond.items()}
            result = replace(result, findings=findings, totals=totals, failed={**result.failed, **failed})
        _count(results, result, f"step {number}", None, number)
        before[number] = generation


def _count(
    results: Mapping[str, BacktestResult], result: Evaluated, where: str, rank: int | None, step: int
) -> None:
    stored = grouped((finding.rule, finding) for finding in result.findings)
    for name, total in result.totals.items():
        results[name].add(stored.get(name, []), total, rank, step)
    for name, reason in result.failed.items():
        results[name].failed.append(f"{where}: {reason}")
