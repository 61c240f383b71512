"""What rules have found, as metrics: how often, and where it was last.

A series for each tensor or step would be without bound. So the step is a value: the alert shows it, and with
it and the rank, `dump-ingest` shows the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from ingest.metrics.ranks import OTHER
from workers.store.model import CommitSummary

#: Rules that have series of their own. More of them count as one.
MAX_RULES = 256
#: Ranks and rules, in pairs, that have series of their own.
MAX_PLACES = 1024
#: What alerts on findings of several ranks together say of the rank.
ALL_RANKS = "all"


class RuleTotal(NamedTuple):
    """How often a rule found something in one step."""

    rule: str
    severity: str
    """`critical`, `warning` or `info`."""
    found: int


class FindingMetrics:
    """Findings by rule, and the step of the last one by rank and rule.

    Bound of series: MAX_RULES + 1, and two for each of MAX_PLACES + MAX_RULES + 1.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        rules: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Register; `rules` are names and severities, so that each is there from the first scrape."""
        self._clock = clock
        self._rules: set[tuple[str, str]] = set()
        self._places: set[tuple[str, str, str]] = set()
        self._total = Counter(
            "dump_ingest_findings", "What rules found.", ["rule", "severity"], registry=registry
        )
        labels = ["rank", "rule", "severity"]
        self._step = Gauge(
            "dump_ingest_last_finding_step",
            "Highest step of what a rule found last at a rank; -1 for what belongs to no step.",
            labels,
            registry=registry,
        )
        self._time = Gauge(
            "dump_ingest_last_finding_timestamp_seconds",
            "Unix time at which a rule last found something at a rank.",
            labels,
            registry=registry,
        )
        self._failures = Counter(
            "dump_ingest_rule_failures",
            "Evaluations of rules that failed; the steps were committed without them.",
            registry=registry,
        )
        for rule, severity in rules:
            self._total.labels(rule=self._rule(rule, severity), severity=severity)

    def observe(self, rank: int, step: int | None, totals: Iterable[RuleTotal]) -> None:
        """Count what rules found in a step of one rank, and note where it was."""
        for total in totals:
            self.count(total)
            if total.found > 0:
                self.note_place(rank, step, total.rule, total.severity)

    def count(self, total: RuleTotal) -> None:
        """Count what a rule found."""
        name = self._rule(total.rule, total.severity)
        self._total.labels(rule=name, severity=total.severity).inc(max(total.found, 0))

    def note_place(self, rank: int | None, step: int | None, rule: str, severity: str) -> None:
        """Note where a rule found something: at one rank, or at several together (None)."""
        name = self._rule(rule, severity)
        labels = {"rank": self._place(rank, name, severity), "rule": name, "severity": severity}
        self._step.labels(**labels).set(-1 if step is None else step)
        self._time.labels(**labels).set(self._clock())

    def count_failures(self, failures: int) -> None:
        """Count rules that could not be evaluated."""
        self._failures.inc(failures)

    def _rule(self, rule: str, severity: str) -> str:
        if (rule, severity) not in self._rules:
            if len(self._rules) >= MAX_RULES:
                return OTHER
            self._rules.add((rule, severity))
        return rule

    def _place(self, rank: int | None, rule: str, severity: str) -> str:
        if rank is None:
            return ALL_RANKS
        place = (str(rank), rule, severity)
        if place not in self._places:
            if len(self._places) >= MAX_PLACES:
                return OTHER
            self._places.add(place)
        return str(rank)


#: What stands for rules where none are evaluated.
COUNTED = (
    ("nan", "critical"),
    ("inf", "critical"),
    ("overflow", "warning"),
    ("disagreement", "warning"),
)


def totals_of(summary: CommitSummary) -> list[RuleTotal]:
    """Return what rules found in a step of a rank; where none were evaluated, what is counted anyway."""
    if summary.rules:
        severity_of = summary.severities
        return [
            RuleTotal(rule, severity_of.get(rule, "warning"), found)
            for rule, found in summary.findings.items()
        ]
    counts = (summary.nan_tensors, summary.pos_inf_tensors, summary.overflows, summary.disagreements)
    return [RuleTotal(*rule, count) for rule, count in zip(COUNTED, counts, strict=True)]
