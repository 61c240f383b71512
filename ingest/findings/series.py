"""Evaluates rules over several steps or ranks: a step against those before it, ranks against each other.

If a step has a value that is not finite, or a tensor is absent, rules say nothing about it. The kinds of
rules over ranks, and the one over operators, look at one step: `divergence` with the three before it, `audit`
of a sample. To add one, add a function here and a model in `workers.rules.schema`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.findings.history import History, StepWindow, fulfilled
from ingest.findings.series_kinds import KINDS, TensorHits
from ingest.identities.audit import StepAudit
from ingest.questions.divergence.expectations import AGREED_BEFORE
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import named_ranges
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor import Tensor
from workers.errors import DamagedStore, StepRemoved, StoreError, UsageError
from workers.rules.names import is_chosen
from workers.rules.values import Rule, RuleSet, Scope, Selector, evaluated, why_failed
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Evaluated, Finding

if TYPE_CHECKING:
    from ingest.questions.divergence import Divergence
    from ingest.questions.divergence.result import Difference, Missing


NamedTensor: TypeAlias = tuple[str, str]
"""Graph and name of a tensor, or of an operator."""


@lru_cache(maxsize=512)
def chooser(selector: Selector) -> Callable[[TensorKey | Tensor], bool]:
    """Return what tells whether a rule with this selector is about a tensor, on a rank that it is about."""
    has_place, by_name = _place_chooser(selector), bool(selector.include or selector.exclude)
    # To spell a name takes longer than all else here.
    return lambda key: (
        has_place(key.op_type, key.io, key.graph)
        and (not by_name or is_chosen(selector.include, selector.exclude, key.name))
    )


@lru_cache(maxsize=512)
def _place_chooser(selector: Selector) -> Callable[[str, str, str], bool]:
    @lru_cache(maxsize=4096)  # a run has few of these
    def has_place(op_type: str, io: str, graph: str) -> bool:
        return (
            is_chosen(selector.op_type, selector.exclude_op_type, op_type)
            and is_chosen(selector.io, (), io)
            and is_chosen(selector.graph, (), graph)
        )

    return has_place


@dataclass(frozen=True, slots=True)
class _ComparedReplicas:
    """The replicas of one step, compared once for all rules."""

    answer: Divergence | None = None
    """None if there is nothing to compare, or comparing failed."""
    left_out: tuple[str, ...] = ()
    failed: str = ""
    fulfil: Mapping[str, frozenset[NamedTensor] | UsageError] = field(default_factory=dict)
    """By condition: the tensors and operators of the step that fulfil it on any rank, or why it cannot be
    evaluated."""

    @classmethod
    def of(
        cls, catalog: Catalog, step: int, before: Sequence[int], conditions: Collection[str] = ()
    ) -> _ComparedReplicas:
        """Compare the replicas of a step.

        Args:
            catalog: the store.
            step: the step.
            before: the steps before it that tell what usually agrees.
            conditions: those of the rules. If there are any, the step is read once more.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        if len(catalog.listed_ranks) < 2:
            return cls()  # nothing to compare
        # deferred: 0.1 s, which a single rank does not need
        from ingest.questions.divergence import divergence

        try:
            answer = divergence(catalog, step=[*before, step], layout=False)
            fulfil = _fulfilling(catalog, step, conditions) if conditions else {}
        except (DamagedStore, StepRemoved) as exc:
            return cls(failed=exc.message)
        except UsageError:
            # A step before is gone, or no two ranks have a complete step, so there is nothing to compare.
            left = _committed(catalog, before)
            if len(left) == len(before):
                return cls(left_out=_left_out_of(catalog, step))
            return cls.of(catalog, step, left, conditions)
        except StoreError:
            raise
        except Exception as exc:  # noqa: BLE001  (the cubes must not wait for it)
            return cls(failed=why_failed(exc))
        left_out = tuple(str(left) for left in answer.left_out if left.key.step == step)
        return cls(answer, left_out, fulfil=fulfil)

    def findings(self, rule: Rule, step: int) -> Iterator[Finding]:
        """Yield the findings of a rule in the comparison, in order of execution.

        A rule with a condition finds nothing about a step that is missing: no tensor of it fulfils anything.

        Raises:
            UsageError: the condition of the rule cannot be evaluated.
        """
        if self.answer is None:
            return
        fulfil = self.fulfil.get(rule.where)
        if isinstance(fulfil, UsageError):
            raise fulfil
        for finding in _of_replicas(rule, self.answer, step):
            if fulfil is None or (finding.graph, finding.name) in fulfil:
                yield finding


def _committed(catalog: Catalog, steps: Sequence[int]) -> list[int]:
    fresh, damages = catalog.reopened(), list[Damage]()
    opened = fresh.committed(fresh.listed(step=steps), damages)
    keys = [step.key for step in opened] + [damage.key for damage in damages]
    return sorted({key.step for key in keys if key.step is not None})


def _left_out_of(catalog: Catalog, step: int) -> tuple[str, ...]:
    try:
        return tuple(map(str, take_snapshot(catalog, step=step, allow_empty=True).left_out))
    except DamagedStore as exc:
        return (exc.message,)
    except UsageError:
        return ()  # the step is gone


def _fulfilling(
    catalog: Catalog, step: int, conditions: Collection[str]
) -> dict[str, frozenset[NamedTensor] | UsageError]:
    """Return the tensors that fulfil each condition in a step, on any rank, and their operators.

    A condition that cannot be evaluated has the reason instead.
    """
    statistics = StepStatistics(take_snapshot(catalog, step=step), digests=False)
    masks = fulfilled(conditions, statistics.block(step), statistics.axis)
    names: dict[str, frozenset[NamedTensor] | UsageError] = {}
    for condition, mask in masks.items():
        if isinstance(mask, UsageError):
            names[condition] = mask
            continue
        keys = [statistics.axis[place] for place in np.flatnonzero(mask.any(axis=0)).tolist()]
        of_operators = [
            f"{key.op_type}.{key.op_name}" + f"#{key.occurrence}" * bool(key.occurrence) for key in keys
        ]
        graphs = [key.graph for key in keys]
        names[condition] = frozenset(zip(graphs * 2, [key.name for key in keys] + of_operators, strict=True))
    return names


def _of_replicas(rule: Rule, answer: Divergence, step: int) -> Iterator[Finding]:
    for ranks, graph, name, reason in _parted(rule, answer, step):
        if any(map(rule.selector.has_rank, ranks)):
            rank = ranks[0] if len(ranks) == 1 else None
            yield Finding(rule.name, rule.severity, rank, step, -1, graph, name, math.nan, math.nan, reason)


def _parted(rule: Rule, answer: Divergence, step: int) -> Iterator[tuple[tuple[int, ...], str, str, str]]:
    if rule.kind == "divergence":
        for each in answer.differences:
            if each.last_step == step and chooser(rule.selector)(each.key):
                yield each.ranks, each.key.graph, each.name, _describe_difference(each)
        return
    for missing in answer.missing:
        is_asked = missing.last_step == step and missing.what in rule["of"]
        if is_asked and _chooses_missing(rule.selector, missing):
            yield missing.ranks, missing.graph, missing.name, _describe_missing(missing)


def _chooses_missing(selector: Selector, missing: Missing) -> bool:
    """Return whether a rule is about what is missing: an operator by its name, or by any of its tensors.

    A step has no tensors: only a rule that names none to include is about it.
    """
    if not missing.keys:
        return not (selector.include or selector.op_type or selector.io or selector.graph)
    if not is_chosen((), selector.exclude, missing.name):
        return False
    is_named = is_chosen(selector.include, (), missing.name)
    return any(
        _place_chooser(selector)(key.op_type, key.io, key.graph)
        and is_chosen((), selector.exclude, key.name)
        and (is_named or is_chosen(selector.include, (), key.name))
        for key in missing.keys
    )


def _describe_difference(difference: Difference) -> str:
    ranks, others = named_ranges("rank", difference.ranks), named_ranges("rank", difference.others)
    verb = "differs" if len(difference.ranks) == 1 else "differ"
    majority = f" from {others}" if difference.has_majority else ", no majority"
    since = f" since step {difference.first_step}" if difference.first_step < difference.last_step else ""
    return f"{difference.why}: {ranks} {verb}{majority}{since}, by {difference.by}"


def _describe_missing(missing: Missing) -> str:
    ranks = named_ranges("rank", missing.ranks)
    others = named_ranges("rank", missing.others) if missing.others else "the others"
    if missing.state == "missing":
        return f"{missing.what} missing on {ranks}, present on {others}"
    return f"{missing.what} only on {ranks}, missing on {others}"


def recomputed(rule: Rule, catalog: Catalog, step: int) -> Iterator[Finding]:
    """Yield outputs of a step that do not follow from their inputs, of operators at random on one rank.

    Each step, it is the turn of another rank. Their bytes are about the share of the rank that the rule says.

    Raises:
        DamagedStore: no rank of the step can be read.
        UsageError: the condition of the rule cannot be evaluated, or the step is gone.
    """
    snapshot = take_snapshot(catalog, step=step, include_partial=True)
    opened = {rank: each for rank, each in snapshot.of_step(step).items() if rule.selector.has_rank(rank)}
    if not opened:
        return
    rank = sorted(opened)[step % len(opened)]
    fulfil = _fulfilling(catalog, step, [rule.where])[rule.where] if rule.where else None
    if isinstance(fulfil, UsageError):
        raise fulfil
    chooses = chooser(rule.selector)
    for checked in StepAudit(opened[rank]).sampled(rule["share"], np.random.default_rng(step)):
        shape, tensor = checked.outcome.difference, Tensor(opened[rank], checked.row)
        if checked.outcome.status != "fails" or shape is None or not chooses(tensor):
            continue
        if fulfil is not None and (tensor.graph, tensor.name) not in fulfil:
            continue
        times, (cause, level) = checked.outcome.times, checked.outcome.named
        is_known = math.isfinite(times)
        size = f", up to {times:.3g} times the limit of rounding" if is_known else ""
        yield Finding(
            rule=rule.name,
            severity=rule.severity,
            rank=rank,
            step=step,
            row=checked.row,
            graph=tensor.graph,
            name=tensor.name,
            value=times if is_known else math.nan,
            threshold=1.0,
            reason=f"does not follow from its inputs by {checked.kind}: {shape}{size}",
            cause=cause,
            level=level,
            since=step,
        )


@dataclass(frozen=True, slots=True)
class StepFindings:
    """What rules over several steps or ranks found in one step, of all ranks."""

    step: int
    result: Evaluated
    not_evaluated: tuple[str, ...] = ()


def _of_scope(rules: RuleSet, scope: Scope) -> list[Rule]:
    return [rule for rule in rules.rules if rule.scope is scope]


class SeriesRules:
    """Evaluates the rules of a set that look at several steps or ranks, one step after the other.

    Memory: that of `History`, four steps of all ranks as `divergence` has them, and the arrays of one rule
    over its history, or of one operator of at most 16 million elements in float64, some times.
    """

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self._over_steps = _of_scope(rules, Scope.STEPS)
        self._over_ranks = _of_scope(rules, Scope.RANKS)
        self._over_operators = _of_scope(rules, Scope.OPERATORS)
        kinds = [(KINDS[rule.kind], rule) for rule in self._over_steps]
        selectors = dict.fromkeys(rule.selector for rule in self._over_steps)
        choosers = (*map(chooser, selectors), *dict.fromkeys(kind.reads for kind, _ in kinds))
        self._history = History(
            cache(lambda key: any(chooses(key) for chooses in choosers)),  # asked in each step
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
        compared = _ComparedReplicas()
        if self._over_steps:
            try:
                window = self._history.window(catalog, step, before, generation)
            except DamagedStore as exc:
                failed |= dict.fromkeys((rule.name for rule in self._over_steps), exc.message)
        if self._over_ranks:
            conditions = frozenset(rule.where for rule in self._over_ranks if rule.where)
            compared = _ComparedReplicas.of(catalog, step, sorted(before)[-AGREED_BEFORE:], conditions)
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
        findings: list[Finding] = []
        total = 0
        with np.errstate(all="ignore"):
            for hits in KINDS[rule.kind].evaluate(rule, window):
                places = self._places(rule, window, hits)
                total += len(places)
                ranks = places[:, 0]
                limit = rule.limit - len(findings)
                turn = np.arange(len(ranks)) - np.searchsorted(ranks, ranks)
                shared = places[np.sort(np.lexsort((ranks, turn))[:limit])].tolist()
                findings += [self._finding(rule, window, hits, *place) for place in shared]
        return findings, total

    def _places(self, rule: Rule, window: StepWindow, hits: TensorHits) -> npt.NDArray[np.int64]:
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

    def _mask(self, rule: Rule) -> npt.NDArray[np.bool_]:
        mask = self._masks.setdefault(rule.selector, [])
        mask += map(chooser(rule.selector), self._history.axis.keys[len(mask) :])
        return np.array(mask, bool)
