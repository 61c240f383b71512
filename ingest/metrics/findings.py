"""What rules have found: how often, and where last.

A series for each tensor or step would be unbounded. So the step is a value: an alert shows it, and with it
and the rank, `dump-ingest` shows the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.dispatch.outcomes import StepCommitted
from ingest.findings.stored import SeriesRead
from ingest.metrics.common import OTHER, Declare
from ingest.steps.events import AnomalousCommitRead
from workers.events import Event
from workers.store.model import Totals

#: How many rules have series of their own. Further ones count as one.
MAX_RULES = 256
#: How many pairs of a rank and a rule have series of their own.
MAX_PLACES = 1024
#: The rank of a finding about several ranks together.
ALL_RANKS = "all"


class FindingMetrics:
    """Findings by rule, and the step of the last one by rank and rule.

    At most MAX_RULES + 1 series, and two for each of MAX_PLACES + MAX_RULES + 1.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        rules: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Register everything.

        Args:
            registry: where.
            clock: returns Unix time.
            rules: names and severities of rules whose series exist from the first scrape.
        """
        self._clock = clock
        self._rules: set[tuple[str, str]] = set()
        self._places: set[tuple[str, str, str]] = set()
        self._found_at: dict[tuple[str, str, str], float] = {}
        """By rank, rule and severity, as the labels name them: when something was found last."""
        declare = Declare(registry, "dump_ingest_")
        self._total = declare.counter("findings", "Findings of rules.", "rule", "severity")
        labels = ("rank", "rule", "severity")
        self._step = declare.gauge(
            "last_finding_step",
            "Step of the last finding of a rule at a rank; -1 if it belongs to no step.",
            *labels,
        )
        self._time = declare.gauge(
            "last_finding_timestamp_seconds", "Unix time of the last finding of a rule at a rank.", *labels
        )
        self._failures = declare.counter(
            "rule_failures", "Evaluations of rules that failed; the steps were committed without them."
        )
        for rule, severity in rules:
            self._total.labels(rule=self._rule(rule, severity), severity=severity)

    def observe(self, event: Event) -> None:
        """Count the findings of a commit, or of a round of the consolidator."""
        match event:
            case StepCommitted(summary=summary):
                totals = totals_of(summary)
                self._count(totals, len(summary.failed_rules))
                self._record_places(summary.key.step, _places_of(summary.key.rank, totals))
            case AnomalousCommitRead(key=key, summary=earlier, committed_at=at):
                self._record_places(key.step, _places_of(key.rank, totals_of(earlier)), at)
            case SeriesRead(step=number, findings=findings, found_at=at):
                self._record_places(number, {(row.rank, row.rule, row.severity) for row in findings}, at)
            case StepsConsolidated(findings=steps):
                for step in steps:
                    result, severity_of = step.result, step.result.severities
                    totals = [
                        (rule, severity_of.get(rule, "warning"), total)
                        for rule, total in result.totals.items()
                    ]
                    self._count(totals, len(result.failed))
                    # Findings that were not stored have no rank.
                    places = {(row.rank, row.rule, row.severity) for row in result.findings}
                    self._record_places(step.step, places)

    def _count(self, totals: Iterable[tuple[str, str, int]], failed: int) -> None:
        for rule, severity, findings in totals:
            self._total.labels(rule=self._rule(rule, severity), severity=severity).inc(max(findings, 0))
        self._failures.inc(failed)

    def _record_places(
        self, step: int | None, places: Iterable[tuple[int | None, str, str]], at: float | None = None
    ) -> None:
        """Record where rules found something.

        Args:
            step: in which step; None for run files.
            places: rank, rule and severity; None for several ranks together.
            at: when; None for now. What is known of a later time stands.
        """
        at = self._clock() if at is None else at
        for rank, rule, severity in places:
            name = self._rule(rule, severity)
            place = (self._rank(rank, name, severity), name, severity)
            if at >= self._found_at.get(place, at):
                self._found_at[place] = at
                self._step.labels(*place).set(-1 if step is None else step)
                self._time.labels(*place).set(at)

    def _rule(self, rule: str, severity: str) -> str:
        """Return the label of a rule."""
        if (rule, severity) not in self._rules:
            if len(self._rules) >= MAX_RULES:
                return OTHER
            self._rules.add((rule, severity))
        return rule

    def _rank(self, rank: int | None, rule: str, severity: str) -> str:
        """Return the label of a rank at which a rule found something."""
        if rank is None:
            return ALL_RANKS
        place = (str(rank), rule, severity)
        if place not in self._places:
            if len(self._places) >= MAX_PLACES:
                return OTHER
            self._places.add(place)
        return str(rank)


#: Counted in place of rules if no rules are evaluated.
COUNTED = (
    ("nan", "critical"),
    ("inf", "critical"),
    ("overflow", "warning"),
    ("disagreement", "warning"),
)


def totals_of(summary: Totals) -> list[tuple[str, str, int]]:
    """Return rule, severity and number of findings in a step of a rank.

    Without rules, they are what its commit counts anyway.
    """
    if summary.rules:
        severity_of = summary.severities
        return [
            (rule, severity_of.get(rule, "warning"), findings) for rule, findings in summary.findings.items()
        ]
    counts = (summary.nan_tensors, summary.pos_inf_tensors, summary.overflows, summary.disagreements)
    return [(*rule, count) for rule, count in zip(COUNTED, counts, strict=True)]


def _places_of(rank: int, totals: Iterable[tuple[str, str, int]]) -> list[tuple[int | None, str, str]]:
    return [(rank, rule, severity) for rule, severity, findings in totals if findings > 0]
