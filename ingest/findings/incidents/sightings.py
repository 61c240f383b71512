"""How often each rule fired, by step and rank: from commits and from documents, without reading findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ingest.findings.stored import SeriesDocument, read_series
from ingest.reader.choice import named_ranges
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of
from workers.store import findings
from workers.store.model import SEVERITIES, Finding

#: Documents of findings over steps and ranks that are read at once; this bounds the memory.
_DOCUMENTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """What incidents need to know of a rule."""

    kind: str
    severity: str
    """By its first definition: commits of earlier versions do not have the severity with which it fired."""


@dataclass(slots=True)
class Sighting:
    """A rule fired in a step."""

    step: int
    ranks: set[int] = field(default_factory=set)
    """Empty if it is about several ranks together."""
    count: int = 0
    """How often, including what its limit kept from being stored."""
    severity: str = SEVERITIES[0]
    """The worst that it had."""
    first: Finding | None = None
    """For rules over several steps or ranks: the first finding."""


@dataclass(slots=True)
class _Failure:
    """Where a rule could not be evaluated."""

    where: str
    """The first step, and its rank if it is about one alone."""
    reason: str
    steps: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        reason = self.reason.removeprefix(f"{self.where}: ")
        return f"{named_ranges('step', self.steps)}; at first in {self.where}: {reason}"


@dataclass(slots=True)
class Sightings:
    """All sightings of a snapshot. Memory: one for each rule and step."""

    by_rule: dict[str, dict[int, Sighting]] = field(default_factory=dict)
    facts: dict[str, RuleFacts] = field(default_factory=dict)
    without_rules: list[str] = field(default_factory=list)
    """What rules tell nothing about, and why."""
    damaged: list[str] = field(default_factory=list)
    _failures: dict[str, _Failure] = field(default_factory=dict)
    """By rule, or by what else was not evaluated."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Sightings:
        """Collect them: from the commits, which are read already, and the documents over steps and ranks."""
        sightings = cls()
        unruled: dict[int, list[int]] = {}
        for key, step in snapshot.chosen.items():
            if not sightings._add_step(step):
                unruled.setdefault(key.rank, []).append(key.step or 0)
        sightings.without_rules = [
            f"rank {rank}, {named_ranges('step', steps)}: no rules were evaluated when it was committed"
            for rank, steps in unruled.items()
        ]
        without_series = sightings._add_documents(snapshot)
        if without_series:
            sightings.without_rules.append(
                f"{named_ranges('step', without_series)}: rules over several steps or ranks were not "
                "evaluated; `consolidate` does that"
            )
        sightings.without_rules += [f"{what}: {failure}" for what, failure in sightings._failures.items()]
        return sightings

    def first_finding(self, snapshot: Snapshot, rule: str, step: int) -> Finding | None:
        """Return the first finding of a rule in a step; None if it cannot be read.

        Raises:
            DamagedStore: the findings are missing or damaged.
        """
        sighting = self.by_rule[rule][step]
        if sighting.first is not None:
            return sighting.first
        for rank in sorted(sighting.ranks):
            opened = snapshot.step(rank, step)
            for finding in (findings_of(opened) if opened is not None else None) or ():
                if finding.rule == rule:
                    return finding
        return None

    def _add_step(self, step: Step) -> bool:
        """Add what was found in one step of one rank; return whether rules were evaluated."""
        summary = step.commit.summary
        if not summary.rules:
            return False
        if not summary.findings.keys() <= self.facts.keys():
            # Of each rule the first definition counts: the metadata of other steps stays packed.
            document = step.commit.nodes.get(f"{findings.GROUP}/{summary.rules}", {})
            definitions = document.get("attributes", {}).get("rules", {})
            for rule, definition in definitions.items():
                self.facts.setdefault(rule, _facts(definition))
        for rule, count in summary.findings.items():
            sighting = self._sighting(rule, summary.key.step or 0, summary.severities.get(rule))
            sighting.ranks.add(summary.key.rank)
            sighting.count += count
        for rule, reason in summary.failed_rules.items():
            self._add_failure(f"rule {rule}", summary.key.step or 0, str(summary.key), reason)
        return True

    def _add_documents(self, snapshot: Snapshot) -> list[int]:
        """Add what was found over steps and ranks; return the steps that have no document."""
        steps, without = snapshot.steps, []
        for start in range(0, len(steps), _DOCUMENTS_AT_ONCE):
            part = steps[start : start + _DOCUMENTS_AT_ONCE]
            documents = read_series(snapshot.store.objects, part, self.damaged)
            for document in documents.values():
                self._add_document(document)
            without += [step for step in part if step not in documents]
        return without

    def _add_document(self, document: SeriesDocument) -> None:
        severities = {finding.rule: finding.severity for finding in document.findings}
        for rule, severity in severities.items():
            self.facts.setdefault(rule, RuleFacts(document.kinds.get(rule, ""), severity))
        for finding in sorted(document.findings, key=lambda finding: finding.order):
            sighting = self._sighting(finding.rule, document.step, finding.severity)
            sighting.first = sighting.first or finding
            if finding.rank is not None:
                sighting.ranks.add(finding.rank)
        for rule, count in document.totals.items():
            if rule in severities:
                self._sighting(rule, document.step, severities[rule]).count += count
        step, where = document.step, f"step {document.step}"
        for rule, reason in document.failed.items():
            self._add_failure(f"rule {rule}", step, where, reason)
        for left_out in document.not_evaluated:
            self._add_failure("replicas not compared", step, where, left_out)

    def _add_failure(self, what: str, step: int, where: str, reason: str) -> None:
        self._failures.setdefault(what, _Failure(where, reason)).steps.add(step)

    def _sighting(self, rule: str, step: int, severity: str | None) -> Sighting:
        facts = self.facts.setdefault(rule, RuleFacts("", "warning"))
        sighting = self.by_rule.setdefault(rule, {}).setdefault(step, Sighting(step))
        sighting.severity = max(sighting.severity, severity or facts.severity, key=SEVERITIES.index)
        return sighting


def _facts(definition: Mapping[str, object]) -> RuleFacts:
    return RuleFacts(str(definition.get("kind", "")), str(definition.get("severity", "warning")))


def worst_of(sightings: Iterable[Sighting]) -> str:
    """Return the worst severity of some sightings."""
    return max((sighting.severity for sighting in sightings), key=SEVERITIES.index)


def runs(steps: Iterable[int], all_steps: Iterable[int]) -> Iterator[list[int]]:
    """Yield runs of these steps that are in a row among all steps."""
    chosen, run = set(steps), list[int]()
    for step in all_steps:
        if step in chosen:
            run.append(step)
        elif run:
            yield run
            run = []
    if run:
        yield run
