"""Evaluates the rules that look at one step of one rank, over the tables that its commit is made of.

Names are matched only for the rows that exceed a threshold, which in a healthy step are few.
"""

from __future__ import annotations

import numpy as np

from workers.model import StepKey
from workers.rules.step_columns import StepColumns, asks_sketches
from workers.rules.step_kinds import EVALUATORS, OF_HISTOGRAMS, RowHits
from workers.rules.values import Rule, RuleSet, evaluated, why_failed
from workers.store.model import Evaluated, Finding
from workers.store.sketches.step_sketches import StepSketches
from workers.store.tables import Tables


def evaluate(rules: RuleSet, tables: Tables, key: StepKey, sketches: StepSketches | None = None) -> Evaluated:
    """Evaluate rules on one step of one rank. A rule that fails is named; the others count.

    Memory: a few columns of float64, and the findings: at most the limit of each rule.

    Args:
        rules: the rules.
        tables: index and statistics of the step.
        key: the step.
        sketches: the sketches of the step; None if it has none.
    """
    columns = StepColumns(tables, key, sketches)
    findings: list[list[Finding]] = []
    totals: dict[str, int] = {}
    failed: dict[str, str] = {}
    for rule in rules.step_rules:
        try:
            of_rule, total = _evaluate(rule, columns)
        except Exception as exc:  # noqa: BLE001  (a rule must not stop a commit, whatever is wrong with it)
            failed[rule.name] = why_failed(exc)
            continue
        if total:
            findings.append(of_rule)
            totals[rule.name] = total
    return evaluated(rules, findings, totals, failed)


def needs_sketches(rules: RuleSet) -> bool:
    """Return whether any rule needs sketches, so that the caller must read them first."""
    return any(rule.kind in OF_HISTOGRAMS or asks_sketches(rule.where) for rule in rules.step_rules)


def _evaluate(rule: Rule, columns: StepColumns) -> tuple[list[Finding], int]:
    """Return the findings of one rule that are stored, and the number of all its findings."""
    if not rule.selector.has_rank(columns.key.rank):
        return [], 0
    hits_of: dict[int, RowHits] = {}
    with np.errstate(all="ignore"):
        for hits in EVALUATORS[rule.kind](rule, columns):
            for row in columns.chosen(rule, np.flatnonzero(hits.mask)).tolist():
                hits_of.setdefault(row, hits)
    stored = sorted(hits_of)[: rule.limit]
    names = columns.names(np.array(stored, np.int64))
    findings = [
        _finding(rule, columns, row, name, hits_of[row]) for row, name in zip(stored, names, strict=True)
    ]
    return findings, len(hits_of)


def _finding(rule: Rule, columns: StepColumns, row: int, name: str, hits: RowHits) -> Finding:
    value = float(hits.values[row])
    return Finding(
        rule=rule.name,
        severity=rule.severity,
        rank=columns.key.rank,
        step=columns.key.step or 0,
        row=row,
        graph=str(columns.tables.label("graph")[row]),
        name=name,
        value=value,
        threshold=hits.threshold,
        reason=hits.describe(row, value),
    )
