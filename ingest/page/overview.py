"""What the list of runs says of each run: how far it is, and the worst that its newest steps show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ingest.findings.stored import SeriesDocument, read_series
from ingest.page.fired_rules import FiredRule, rules_fired_in
from ingest.reader.damage import Damage
from ingest.reader.dump_store import DumpStore
from ingest.reader.step import Step
from workers.model import StepKey
from workers.store.model import SEVERITIES

#: The most commits that are read of a run: those of its newest steps, at least one step.
MAX_COMMITS = 256
#: What stands in the place of rules in a step of which no rule was evaluated.
NOT_FINITE = "NaN or Inf"


@dataclass(frozen=True, slots=True)
class Worst:
    """What rules of the highest severity that fired have found."""

    severity: str
    rules: tuple[str, ...]
    """Those with the most findings first."""
    ranks: tuple[int, ...]
    """Empty for rules over several ranks."""
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """A run, as far as it can be told from its listings and its newest commits."""

    ranks: tuple[int, ...] = ()
    steps: int = 0
    """How many steps the store lists."""
    examined: int = 0
    """How many of them, the newest ones, were looked at."""
    last_step: int | None = None
    """The last one that a rank has committed."""
    committed_at: str = ""
    """When the newest of these commits was made; "" if there is none."""
    worst: Worst | None = None
    """None if no rule fired in the steps that were looked at."""
    damaged: int = 0
    """How many of their commits, and of the findings beside them, are damaged."""
    problem: str = ""
    """Why the run cannot be read; "" if it can."""

    @classmethod
    def of(cls, store: DumpStore) -> Overview:
        """Look at a run: list each rank, and read the commits of the newest steps, 256 or those of one step.

        Raises:
            StoreError: the store cannot be read.
        """
        listed = store.listed()
        keys = _newest(listed)
        damages: list[Damage] = []
        steps = store.committed(keys, damages)
        numbers = {opened.key.step for opened in steps if opened.key.step is not None}
        unread: list[str] = []
        series = read_series(store.objects, numbers, unread)
        return cls(
            ranks=tuple(sorted({key.rank for key in listed})),
            steps=len({key.step for key in listed}),
            examined=len({key.step for key in keys}),
            last_step=max(numbers, default=None),
            committed_at=max((opened.commit.record.committed_at for opened in steps), default=""),
            worst=_worst([*_of_steps(steps), *_of_series(series.values())]),
            damaged=len(damages) + len(unread),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, for the API."""
        worst = self.worst
        return {
            "ranks": list(self.ranks),
            "steps": self.steps,
            "examined_steps": self.examined,
            "last_step": self.last_step,
            "committed_at": self.committed_at or None,
            "severity": worst and worst.severity,
            "rules": list(worst.rules) if worst else [],
            "rule_steps": list(worst.steps) if worst else [],
            "rule_ranks": list(worst.ranks) if worst else [],
            "damaged": self.damaged,
            "problem": self.problem or None,
        }


def _newest(listed: Sequence[StepKey]) -> list[StepKey]:
    """Return the keys of the newest steps, as many as may be read."""
    counts = Counter(key.step for key in listed)
    taken = 0
    wanted: set[int | None] = set()
    for step in sorted(counts, key=lambda step: -(step or 0)):
        taken += counts[step]
        if wanted and taken > MAX_COMMITS:
            break
        wanted.add(step)
    return [key for key in listed if key.step in wanted]


def _of_steps(steps: Sequence[Step]) -> Iterator[FiredRule]:
    critical = SEVERITIES.index("critical")
    for opened in steps:
        yield from rules_fired_in(opened)
        summary, key = opened.commit.summary, opened.key
        if not summary.rules and summary.anomalous_tensors:
            yield FiredRule(critical, NOT_FINITE, summary.anomalous_tensors, key.step or 0, key.rank)


def _of_series(documents: Iterable[SeriesDocument]) -> Iterator[FiredRule]:
    for document in documents:
        for finding in document.findings:
            yield FiredRule(SEVERITIES.index(finding.severity), finding.rule, 1, finding.step, finding.rank)


def _worst(fired: Sequence[FiredRule]) -> Worst | None:
    severity = max((each.severity for each in fired), default=None)
    if severity is None:
        return None
    chosen = [each for each in fired if each.severity == severity]
    counts: Counter[str] = Counter()
    for each in chosen:
        counts[each.rule] += each.findings
    return Worst(
        SEVERITIES[severity],
        tuple(rule for rule, _ in counts.most_common()),
        tuple(sorted({each.rank for each in chosen if each.rank is not None})),
        tuple(sorted({each.step for each in chosen})),
    )
