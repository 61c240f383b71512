"""What rules have found, as it is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar

from ingest.findings.severities import BySeverity, Severity, at_least
from ingest.findings.stored import SeriesDocument, read_series
from ingest.questions.question import Part, Table
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice, as_names, named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of
from ingest.reader.text import counted
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.rules.schema import load_rules, rules_like
from workers.store.model import SEVERITIES, Finding


@dataclass(frozen=True, slots=True, repr=False)
class Anomalies(BySeverity):
    """Findings, and how far they can be trusted to be all."""

    noun: ClassVar = "finding"
    keys: ClassVar = Finding.__match_args__
    hidden: ClassVar = ("severities", "left_out")
    also: ClassVar = ("by_severity",)

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
    left_out: tuple[LeftOut, ...] = ()

    def totals_by_severity(self) -> Mapping[str, int]:
        """Return how much was found of each severity, also beyond what is stored."""
        counts: Counter[str] = Counter()
        for rule, count in self.totals.items():
            counts[self.severities[rule]] += count
        return counts

    def table(self) -> Table[Finding]:
        """Return a row for each finding."""
        return Table(
            {
                **{name: attrgetter(name) for name in ("severity", "rule", "rank", "step")},
                "name": lambda finding: finding.name or "-",
                "what": lambda finding: finding.reason,
            },
            self.findings,
        )

    def report(self) -> Iterator[Part]:
        """Yield the findings, and what is not known."""
        if self.findings:
            yield self.table()
        yield from self.unknown()


def _by_rule(
    totals: Mapping[tuple[str, str], int], names: Collection[str], severe: Collection[str]
) -> tuple[Counter[str], dict[str, str]]:
    of_rules, severities = Counter[str](), dict[str, str]()
    for name, severity in sorted(totals, key=lambda pair: SEVERITIES.index(pair[1])):
        if name in names and severity in severe:
            of_rules[name] += totals[name, severity]
            severities[name] = severity
    return of_rules, severities


def anomalies(
    store: Catalog,
    rank: Choice = None,
    step: Choice = None,
    *,
    rule: str | Sequence[str] | None = None,
    severity: Severity = None,
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
    severe, catalog = at_least(severity), store.reopened()
    damages: list[Damage] = []
    steps = [one for one in catalog.select(rank, step, damages=damages) if one.key.step is not None]
    known = _CollectedFindings([f"{damage.key}: {damage.reason}" for damage in damages])
    without_rules = [chosen.key for chosen in steps if not known.add_step(chosen)]
    numbers = sorted({chosen.key.step for chosen in steps if chosen.key.step is not None})
    documents = read_series(catalog.objects, numbers, known.damaged)
    ranks = None if rank is None else {chosen.key.rank for chosen in steps}
    for document in documents.values():
        known.add_document(document, ranks)
    without_series = [number for number in numbers if number not in documents]
    names = {name for name, _ in known.totals}
    if rule is not None:
        names = rules_like(as_names(rule), sorted({*names, *(one.name for one in load_rules().rules)}))
    totals, severities = _by_rule(known.totals, names, severe)
    findings = [one for one in known.findings if one.rule in names and one.severity in severe]
    return Anomalies(
        store.url,
        tuple(sorted(findings, key=lambda finding: finding.order)),
        dict(totals.most_common()),
        severities,
        (*_describe_not_evaluated(without_rules, without_series), *known.failures, *known.damaged),
        tuple(known.damaged),
    )


@dataclass(slots=True)
class _CollectedFindings:
    damaged: list[str]
    findings: list[Finding] = field(default_factory=list)
    totals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By rule and severity, which may be another one in later steps."""
    failures: list[str] = field(default_factory=list)

    def add_step(self, step: Step) -> bool:
        """Add the findings of one step of one rank; return False if no rules were evaluated."""
        try:
            findings = findings_of(step)
        except DamagedStore as exc:
            self.damaged.append(exc.message)
            return True
        summary = step.commit.summary
        if findings is not None:
            self._add(findings, summary.findings)
            self.failures += [f"{step.key}: rule {name}: {why}" for name, why in summary.failed_rules.items()]
        return findings is not None

    def add_document(self, document: SeriesDocument, ranks: set[int] | None) -> None:
        where = f"step {document.step}"
        if ranks is None:
            self._add(document.findings, document.totals)
        else:
            chosen = of_ranks(document.findings, ranks)
            self._add(chosen, Counter(finding.rule for finding in chosen))
            self.failures += [
                f"{where}: rule {rule}: {describe_unknown_ranks(count)}"
                for rule, count in beyond_limits(document.findings, document.totals).items()
            ]
        self.failures += [f"{where}: rule {name}: {why}" for name, why in document.failed.items()]
        self.failures += [f"{step}; not compared" for step in document.not_evaluated]

    def _add(self, findings: Sequence[Finding], totals: Mapping[str, int]) -> None:
        severities = {finding.rule: finding.severity for finding in findings}
        self.findings += findings
        for rule in totals.keys() & severities.keys():
            self.totals[rule, severities[rule]] += totals[rule]


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
