"""What rules have found, as it is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest.findings.severities import at_least
from ingest.findings.stored import SeriesDocument, read_series
from ingest.reader import notebook
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice, as_names
from ingest.reader.damage import Damage
from ingest.reader.ranges import named_ranges
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of
from ingest.reader.text import counted
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.rules.load import load_rules, rules_like
from workers.store.model import SEVERITIES, Finding

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Anomalies:
    """Findings, and how far they can be trusted to be all."""

    store: str
    findings: tuple[Finding, ...]
    """The worst first; of those, by step, rank and order of execution."""
    totals: Mapping[str, int]
    """By rule: how much was found, including what its limit kept from being stored."""
    severities: Mapping[str, str]
    """By the same rules; the worst of a rule whose severity was changed."""
    not_evaluated: tuple[str, ...]
    """Steps and rules about which nothing is known, and why: having no findings there means nothing."""
    damaged: tuple[str, ...] = ()
    """Those of them that are damaged in the store."""

    @property
    def by_severity(self) -> dict[str, int]:
        """How much was found, by severity; the worst first."""
        counts: Counter[str] = Counter()
        for rule, count in self.totals.items():
            counts[self.severities[rule]] += count
        return {severity: counts[severity] for severity in reversed(SEVERITIES) if counts[severity]}

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {severity}" for severity, count in self.by_severity.items())
        return f"<Anomalies {self.store}: {counts or 'none'}>"

    def _repr_html_(self) -> str:
        columns = ("severity", "rule", "rank", "step", "name", "reason")
        rows = ([getattr(finding, name) for name in columns] for finding in self.findings)
        title = f"{counted(sum(self.totals.values()), 'finding')}: {self.store}"
        return notebook.table(title, columns, rows, total=len(self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as one object of plain values."""
        return {
            "store": self.store,
            "findings": [finding.to_dict() for finding in self.findings],
            "totals": dict(self.totals),
            "by_severity": self.by_severity,
            "not_evaluated": list(self.not_evaluated),
            "damaged": list(self.damaged),
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return the findings as a table, one row for each."""
        import pandas as pd  # deferred: pandas takes 0.4 s

        return pd.DataFrame(
            [finding.to_dict() for finding in self.findings], columns=list(Finding.__match_args__)
        )


def anomalies(
    store: Catalog,
    rank: Choice = None,
    step: Choice = None,
    *,
    rule: str | Sequence[str] | None = None,
    severity: str | None = None,
) -> Anomalies:
    """List the findings of rules, without reading any tensor.

    Memory: the findings, of which a rule stores no more than its limit for each step and rank.

    Args:
        store: the store, which is listed again.
        rank: one rank, or several; None for all. Findings about several ranks together are always included.
        step: one step, or several; None for all.
        rule: names or globs of rules.
        severity: the mildest to return: `info`, `warning` or `critical`.

    Raises:
        UsageError: a rank, a step or a rule does not exist, or the severity is not one of these.
    """
    severe = at_least(severity)
    listing = _CollectedFindings()
    listing.collect(store.reopened(), rank, step)
    return listing.chosen(store.url, rule, severe)


class _CollectedFindings:
    """The findings of some steps, as they are collected from the store."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._totals: Counter[tuple[str, str]] = Counter()
        """By rule and severity, which may be another one in later steps."""
        self._not_evaluated: list[str] = []
        self._damaged: list[str] = []

    def collect(self, catalog: Catalog, rank: Choice, step: Choice) -> None:
        """Collect the findings of each step and rank, then those over several steps and ranks."""
        damages: list[Damage] = []
        steps = [
            chosen for chosen in catalog.select(rank, step, damages=damages) if chosen.key.step is not None
        ]
        self._damaged = [f"{damage.key}: {damage.reason}" for damage in damages]
        failures: list[str] = []
        without_rules: list[StepKey] = []
        for chosen in steps:
            self._collect_step(chosen, without_rules, failures)
        numbers = sorted({chosen.key.step for chosen in steps if chosen.key.step is not None})
        damaged_documents: list[str] = []
        documents = read_series(catalog.objects, numbers, damaged_documents)
        ranks = None if rank is None else {chosen.key.rank for chosen in steps}
        for document in documents.values():
            self._collect_document(document, ranks, failures)
        without_series = [number for number in numbers if number not in documents]
        self._not_evaluated = [
            *_describe_not_evaluated(without_rules, without_series),
            *failures,
        ]
        self._damaged += damaged_documents

    def _collect_step(self, step: Step, without_rules: list[StepKey], failures: list[str]) -> None:
        """Collect the findings of one step of one rank, or why they are not known."""
        summary = step.commit.summary
        try:
            findings = findings_of(step)
        except DamagedStore as exc:
            self._damaged.append(exc.message)
            return
        if findings is None:
            without_rules.append(step.key)
            return
        self._add(findings, summary.findings)
        failures += [f"{step.key}: rule {name}: {reason}" for name, reason in summary.failed_rules.items()]

    def _collect_document(
        self, document: SeriesDocument, ranks: set[int] | None, failures: list[str]
    ) -> None:
        """Collect the findings of one step over several steps or ranks."""
        if ranks is None:
            self._add(document.findings, document.totals)
        else:
            chosen = of_ranks(document.findings, ranks)
            self._add(chosen, Counter(finding.rule for finding in chosen))
            failures += [
                f"step {document.step}: rule {rule}: {describe_unknown_ranks(count)}"
                for rule, count in beyond_limits(document.findings, document.totals).items()
            ]
        failures += [f"step {document.step}: rule {name}: {why}" for name, why in document.failed.items()]
        failures += [f"{step}; not compared" for step in document.not_evaluated]

    def _add(self, findings: Sequence[Finding], totals: Mapping[str, int]) -> None:
        """Add what one evaluation of a rule set found."""
        severities = {finding.rule: finding.severity for finding in findings}
        self._findings += findings
        self._totals.update(
            {(rule, severities[rule]): count for rule, count in totals.items() if rule in severities}
        )

    def _names(self, rule: str | Sequence[str] | None) -> set[str]:
        """Return the names of some rules, those that found something or are built in."""
        names = {name for name, _ in self._totals}
        if rule is None:
            return names
        return rules_like(as_names(rule), sorted({*names, *(known.name for known in load_rules().rules)}))

    def chosen(self, store: str, rule: str | Sequence[str] | None, severe: Container[str]) -> Anomalies:
        """Return the findings of some rules, of some severities.

        Raises:
            UsageError: a rule does not exist.
        """
        names = self._names(rule)
        findings = [known for known in self._findings if known.rule in names and known.severity in severe]
        totals, severities = Counter[str](), dict[str, str]()
        for name, severity in sorted(self._totals, key=lambda pair: SEVERITIES.index(pair[1])):
            if name in names and severity in severe:
                totals[name] += self._totals[name, severity]
                severities[name] = severity
        return Anomalies(
            store,
            tuple(sorted(findings, key=lambda finding: finding.order)),
            dict(totals.most_common()),
            severities,
            (*self._not_evaluated, *self._damaged),
            tuple(self._damaged),
        )


def of_ranks(findings: Iterable[Finding], ranks: Iterable[int]) -> tuple[Finding, ...]:
    """Return the findings about one of these ranks, and those about several ranks together."""
    chosen = set(ranks)
    return tuple(finding for finding in findings if finding.rank is None or finding.rank in chosen)


def beyond_limits(findings: Iterable[Finding], totals: Mapping[str, int]) -> dict[str, int]:
    """Return by rule how much it found that its limit kept from being stored; only rules with any."""
    return dict(Counter(totals) - Counter(finding.rule for finding in findings))


def describe_unknown_ranks(count: int) -> str:
    """Say that findings beyond a limit cannot be told by rank."""
    return f"{counted(count, 'further finding')} on any rank, of which only the number is known"


def _describe_not_evaluated(without_rules: Sequence[StepKey], without_series: Sequence[int]) -> list[str]:
    """Return a few lines that say for which steps no rules were evaluated."""
    steps_of: dict[int, list[int]] = {}
    for key in without_rules:
        steps_of.setdefault(key.rank, []).append(key.step or 0)
    ranks_of: dict[tuple[int, ...], list[int]] = {}
    for rank, steps in steps_of.items():
        ranks_of.setdefault(tuple(steps), []).append(rank)
    lines = [
        f"{named_ranges('rank', ranks)}, {named_ranges('step', steps)}: "
        "no rules were evaluated when it was committed"
        for steps, ranks in ranks_of.items()
    ]
    if without_series:
        lines.append(
            f"{named_ranges('step', without_series)}: rules over several steps or ranks were not evaluated; "
            "`consolidate` does that"
        )
    return lines
