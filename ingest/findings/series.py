"""Evaluates rules over several steps or ranks: a step against those before it, ranks against each other.

If a step has a value that is not finite, or a tensor is absent, rules say nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.findings import series_kinds, training
from ingest.findings.history import History, StepWindow
from ingest.findings.recomputed import recomputed
from ingest.findings.replicas import ComparedReplicas, chooser
from ingest.findings.series_kinds import TensorHits
from ingest.questions.divergence.expectations import AGREED_BEFORE
from ingest.reader.catalog import Catalog
from workers.errors import DamagedStore
from workers.rules.values import Rule, RuleSet, Scope, Selector, evaluated, why_failed
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Evaluated, Finding

KINDS = {**series_kinds.KINDS, **training.KINDS}


@dataclass(frozen=True, slots=True)
class StepFindings:
    """What rules over several steps or ranks found in one step, of all ranks."""

    step: int
    result: Evaluated
    not_evaluated: tuple[str, ...] = ()
    """Steps of single ranks that were left out, and why."""


def _of_scope(rules: RuleSet, scope: Scope) -> list[Rule]:
    return [rule for rule in rules.rules if rule.scope is scope]


class SeriesRules:
    """Evaluates the rules of a set that look at several steps or ranks, one step after the other.

    Memory: that of `History`, four steps of all ranks as `divergence` has them, and the arrays of one rule
    over its history, or of one operator of at most 16 million elements in float64, some times.
    """

    def __init__(self, rules: RuleSet) -> None:
        """Evaluate `rules`; nothing is read yet."""
        self.rules = rules
        self._over_steps = _of_scope(rules, Scope.STEPS)
        self._over_ranks = _of_scope(rules, Scope.RANKS)
        self._over_operators = _of_scope(rules, Scope.OPERATORS)
        selectors = dict.fromkeys(rule.selector for rule in self._over_steps)
        reads = dict.fromkeys(KINDS[rule.kind].reads for rule in self._over_steps)
        self._choosers = (*map(chooser, selectors), *reads)
        kinds = [(KINDS[rule.kind], rule) for rule in self._over_steps]
        self._history = History(
            self._is_chosen,
            needs_histograms=any(kind.needs_histograms for kind, _ in kinds),
            steps_before=max((kind.steps_before(rule) for kind, rule in kinds), default=1),
            conditions=frozenset(rule.where for rule in self._over_steps if rule.where),
        )
        self._masks: dict[Selector, list[bool]] = {}
        """By selector, over the axis of the history: whether its rules are about a tensor."""

    def evaluate(
        self, catalog: Catalog, step: int, before: Mapping[int, str], generation: str
    ) -> StepFindings:
        """Return the findings in one step.

        Args:
            catalog: the store.
            step: the step.
            before: the steps before it, with what tells one generation of them from another.
            generation: the same of the step.

        Raises:
            StoreUnavailable: the store did not answer; try again.
        """
        found: list[list[Finding]] = []
        totals: dict[str, int] = {}
        failed: dict[str, str] = {}
        left_out: tuple[str, ...] = ()
        window: StepWindow | None = None
        compared = ComparedReplicas()
        if self._over_steps:
            try:
                window = self._history.window(catalog, step, before, generation)
            except DamagedStore as exc:
                failed |= dict.fromkeys((rule.name for rule in self._over_steps), exc.message)
        if self._over_ranks:
            conditions = frozenset(rule.where for rule in self._over_ranks if rule.where)
            compared = ComparedReplicas.of(catalog, step, sorted(before)[-AGREED_BEFORE:], conditions)
            left_out = compared.left_out
            if compared.failed:
                failed |= dict.fromkeys((rule.name for rule in self._over_ranks), compared.failed)
        for rule in (*self._over_steps, *self._over_ranks, *self._over_operators):
            if rule.name in failed:
                continue
            try:
                if rule.scope is not Scope.STEPS:
                    is_compared = rule.scope is Scope.RANKS
                    whole = list(
                        compared.findings(rule, step) if is_compared else recomputed(rule, catalog, step)
                    )
                    findings, total = whole[: rule.limit], len(whole)
                else:
                    assert window is not None  # noqa: S101  (for mypy: else all these rules failed)
                    findings, total = self._findings(rule, window)
            except Exception as exc:  # noqa: BLE001  (the cubes must not wait for what a rule stumbles over)
                failed[rule.name] = why_failed(exc)
                continue
            if total:
                found.append(findings)
                totals[rule.name] = total
        return StepFindings(step, evaluated(self.rules, found, totals, failed), left_out)

    def _findings(self, rule: Rule, window: StepWindow) -> tuple[list[Finding], int]:
        """Return the findings of one rule over several steps: those that are stored, and their number."""
        findings: list[Finding] = []
        total = 0
        with np.errstate(all="ignore"):
            for hits in KINDS[rule.kind].evaluate(rule, window):
                places = self._places(rule, window, hits)
                total += len(places)
                for rank, tensor in places[_shared_out(places[:, 0], rule.limit - len(findings))].tolist():
                    findings.append(self._finding(rule, window, hits, rank, tensor))
        return findings, total

    def _places(self, rule: Rule, window: StepWindow, hits: TensorHits) -> npt.NDArray[np.int64]:
        """Return the rank and tensor of hits that the rule is about, in order of ranks and execution."""
        has_rank = np.array([rule.selector.has_rank(rank) for rank in window.now.ranks], bool)
        row = window.row(window.now)
        chosen = self._mask(rule) & has_rank[:, None] & (row >= 0)
        mask = hits.mask & chosen
        if hits.compared is not None:
            among = (hits.compared & chosen).sum(axis=1)
            mask &= (mask.sum(axis=1) >= rule["share_ge"] * among)[:, None]
        if rule.where:
            mask &= window.fulfils(rule.where)
        places = np.argwhere(mask)
        return places[np.lexsort((row[mask], places[:, 0]))]

    def _finding(self, rule: Rule, window: StepWindow, hits: TensorHits, rank: int, tensor: int) -> Finding:
        key = self._history.axis[tensor]
        return Finding(
            rule=rule.name,
            severity=rule.severity,
            rank=window.now.ranks[rank],
            step=window.now.number,
            row=int(window.row(window.now)[rank, tensor]),
            graph=key.graph,
            name=key.name,
            value=float(hits.values[rank, tensor]),
            threshold=hits.threshold,
            reason=hits.describe(rank, tensor),
            cause=hits.cause,
            level=hits.level,
            since=hits.since,
        )

    def _is_chosen(self, key: TensorKey) -> bool:
        return any(chooses(key) for chooses in self._choosers)

    def _mask(self, rule: Rule) -> npt.NDArray[np.bool_]:
        mask = self._masks.setdefault(rule.selector, [])
        mask += map(chooser(rule.selector), self._history.axis.keys[len(mask) :])
        return np.array(mask, bool)


def _shared_out(ranks: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    """Choose findings: the first of each rank, then the second of each, and so on up to the limit.

    Args:
        ranks: the rank of each finding, ascending.
        limit: how many to choose, at most.

    Returns:
        The places of the chosen ones, ascending.
    """
    turn = np.arange(len(ranks)) - np.searchsorted(ranks, ranks)
    return np.sort(np.lexsort((ranks, turn))[:limit])
