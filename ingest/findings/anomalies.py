"""What rules have found, as it is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest.findings.stored import SeriesDocument, read_series
from ingest.reader.catalog import Catalog, Choice, Damage
from ingest.reader.ranges import format_ranges
from ingest.reader.step_findings import findings_of
from workers.errors import DamagedStore, UsageError
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
    """By rule: how much was found, what was not stored for its limit included."""
    severities: Mapping[str, str]
    """By the same rules."""
    not_evaluated: tuple[str, ...]
    """Steps and rules of which nothing is known, and why: no finding there means nothing."""

    @property
    def by_severity(self) -> dict[str, int]:
        """How much was found, by severity; the worst first."""
        counts: Counter[str] = Counter()
        for rule, count in self.totals.items():
            counts[self.severities[rule]] += count
        return {one: counts[one] for one in reversed(SEVERITIES) if counts[one]}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as one object of plain values."""
        return {
            "store": self.store,
            "findings": [one.to_dict() for one in self.findings],
            "totals": dict(self.totals),
            "by_severity": self.by_severity,
            "not_evaluated": list(self.not_evaluated),
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return the findings as a table, one row for each."""
        import pandas as pd

        return pd.DataFrame([one.to_dict() for one in self.findings], columns=list(Finding.__match_args__))


def anomalies(
    store: Catalog,
    rank: Choice = None,
    step: Choice = None,
    *,
    rule: str | Sequence[str] | None = None,
    severity: str | None = None,
) -> Anomalies:
    """Return what rules have found, without looking at any tensor.

    Memory: the findings, of which a rule stores no more than its limit for each step and rank.

    Args:
        store: the store, which is asked anew.
        rank: one rank, or several; all where None. What is about no one rank is always there.
        step: one step, or several; all where None.
        rule: names or globs of rules.
        severity: the mildest: `info`, `warning` or `critical`.

    Raises:
        UsageError: a rank, a step or a rule is not there, or it is no severity.
    """
    if severity is not None and severity not in SEVERITIES:
        raise UsageError(f"{severity!r} is no severity", hint=f"It is one of {', '.join(SEVERITIES)}.")
    return _Search(store.reopened()).run(rank, step, rule, severity)


class _Search:
    """One search through what is stored."""

    def __init__(self, store: Catalog) -> None:
        self.store = store
        self.findings: list[Finding] = []
        self.totals: Counter[str] = Counter()
        self.severities: dict[str, str] = {}
        self.unknown: list[str] = []
        """What was not evaluated, beside whole steps."""

    def run(
        self, rank: Choice, step: Choice, rule: str | Sequence[str] | None, severity: str | None
    ) -> Anomalies:
        damages: list[Damage] = []
        steps = [one for one in self.store.select(rank, step, damages=damages) if one.key.step is not None]
        self.unknown += [f"{one.key}: {one.reason}" for one in damages]
        without: list[StepKey] = []
        for one in steps:
            summary = one.commit.summary
            try:
                found = findings_of(one)
            except DamagedStore as exc:
                self.unknown.append(exc.message)
                continue
            if found is None:
                without.append(one.key)
                continue
            self._take(found, summary.findings)
            self.unknown += [f"{one.key}: rule {name}: {why}" for name, why in summary.failed_rules.items()]
        numbers = sorted({one.key.step for one in steps if one.key.step is not None})
        damaged: list[str] = []
        documents = read_series(self.store.objects, numbers, damaged)
        ranks = None if rank is None else {one.key.rank for one in steps}
        for document in documents.values():
            self._take_series(document, ranks)
        unseen = [number for number in numbers if number not in documents]
        self.unknown = [*_without(without, unseen), *damaged, *self.unknown]
        return self._answer(rule, severity)

    def _take(self, found: Iterable[Finding], totals: Mapping[str, int]) -> None:
        for one in found:
            self.severities[one.rule] = one.severity
            self.findings.append(one)
        self.totals.update({name: count for name, count in totals.items() if name in self.severities})

    def _take_series(self, document: SeriesDocument, ranks: set[int] | None) -> None:
        chosen = [one for one in document.findings if ranks is None or one.rank is None or one.rank in ranks]
        totals = document.totals if ranks is None else Counter(one.rule for one in chosen)
        self._take(chosen, totals)
        self.unknown += [f"step {document.step}: rule {name}: {why}" for name, why in document.failed.items()]
        self.unknown += [f"{one}; not compared" for one in document.not_evaluated]

    def _answer(self, rule: str | Sequence[str] | None, severity: str | None) -> Anomalies:
        wanted = set(self.totals)
        if rule is not None:
            known = sorted({*self.totals, *(one.name for one in load_rules().rules)})
            patterns = [rule] if isinstance(rule, str) else rule
            wanted = rules_like(patterns, known)
        if severity is not None:
            worst = SEVERITIES[SEVERITIES.index(severity) :]
            wanted = {name for name in wanted if self.severities.get(name) in worst}
        chosen = sorted((one for one in self.findings if one.rule in wanted), key=lambda one: one.order)
        return Anomalies(
            self.store.url,
            tuple(chosen),
            {name: count for name, count in self.totals.most_common() if name in wanted},
            {name: self.severities[name] for name in self.totals if name in wanted},
            tuple(self.unknown),
        )


def _without(keys: Sequence[StepKey], steps: Sequence[int]) -> list[str]:
    """Say of which steps no rule was evaluated, in few lines."""
    by_steps: dict[tuple[int, ...], list[int]] = {}
    of: dict[int, list[int]] = {}
    for key in keys:
        of.setdefault(key.rank, []).append(key.step or 0)
    for rank, numbers in of.items():
        by_steps.setdefault(tuple(numbers), []).append(rank)
    said = [
        f"rank {format_ranges(ranks)} step {format_ranges(numbers)}: no rules were evaluated when it was committed"
        for numbers, ranks in by_steps.items()
    ]
    if steps:
        said.append(
            f"step {format_ranges(steps)}: no rules over steps and ranks were evaluated, `consolidate` does it"
        )
    return said
