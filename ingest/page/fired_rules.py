"""What rules found in a step of a rank, as its commit counts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ingest.reader.step import Step
from workers.store.model import SEVERITIES


class FiredRule(NamedTuple):
    """A rule that found something in a step."""

    severity: int
    """Its place in `SEVERITIES`: the higher the worse."""
    rule: str
    findings: int
    step: int
    """0 for run files."""
    rank: int | None
    """None for a rule over several ranks."""


def rules_fired_in(opened: Step) -> Iterator[FiredRule]:
    """Yield the rules that found something in a step of one rank."""
    summary = opened.commit.summary
    for rule, count in summary.findings.items():
        severity = SEVERITIES.index(summary.severities.get(rule, "info"))
        yield FiredRule(severity, rule, count, opened.key.step or 0, opened.key.rank)
