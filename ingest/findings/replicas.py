"""The kinds of rules that compare ranks: what `divergence` finds in a step and the three before it.

To add a kind, add a function here and a model in `workers.rules.schema`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ingest.findings.history import fulfilled
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import named_ranges
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor import Tensor as DumpedTensor
from workers.errors import DamagedStore, StepRemoved, StoreError, UsageError
from workers.rules.names import is_chosen
from workers.rules.values import Rule, Selector, why_failed
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Finding

if TYPE_CHECKING:
    from ingest.questions.divergence import Divergence
    from ingest.questions.divergence.result import Difference, Missing

Tensor: TypeAlias = tuple[str, str]
"""Graph and name of a tensor, or of an operator."""


@lru_cache(maxsize=512)
def chooser(selector: Selector) -> Callable[[TensorKey | DumpedTensor], bool]:
    """Return what tells whether a rule with this selector is about a tensor, on a rank that it is about."""
    has_place, by_name = _place_chooser(selector), bool(selector.include or selector.exclude)
    # To spell a name takes longer than all else here.
    return lambda key: (
        has_place(key.op_type, key.io, key.graph)
        and (not by_name or is_chosen(selector.include, selector.exclude, key.name))
    )


@lru_cache(maxsize=512)
def _place_chooser(selector: Selector) -> Callable[[str, str, str], bool]:
    """Return what tells whether a tensor is where a rule looks, whatever its name."""

    @lru_cache(maxsize=4096)  # a run has few of these
    def has_place(op_type: str, io: str, graph: str) -> bool:
        return (
            is_chosen(selector.op_type, selector.exclude_op_type, op_type)
            and is_chosen(selector.io, (), io)
            and is_chosen(selector.graph, (), graph)
        )

    return has_place


@dataclass(frozen=True, slots=True)
class ComparedReplicas:
    """The replicas of one step, compared once for all rules."""

    answer: Divergence | None = None
    """None if there is nothing to compare, or comparing failed."""
    left_out: tuple[str, ...] = ()
    failed: str = ""
    """Why comparing failed; "" if it did not."""
    fulfil: Mapping[str, frozenset[Tensor] | UsageError] = field(default_factory=dict)
    """By condition: the tensors and operators of the step that fulfil it on any rank, or why it cannot be
    evaluated."""

    @classmethod
    def of(
        cls, catalog: Catalog, step: int, before: Sequence[int], conditions: Collection[str] = ()
    ) -> ComparedReplicas:
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
        from ingest.questions.divergence import (
            divergence,  # deferred: 0.1 s, which a single rank does not need
        )

        try:
            answer = divergence(catalog, step=[*before, step], layout=False)
            fulfil = fulfilling(catalog, step, conditions) if conditions else {}
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
        for finding in KINDS[rule.kind](rule, self.answer, step):
            if fulfil is None or (finding.graph, finding.name) in fulfil:
                yield finding


def _committed(catalog: Catalog, steps: Sequence[int]) -> list[int]:
    """Return the steps that any rank still has."""
    fresh, damages = catalog.reopened(), list[Damage]()
    opened = fresh.committed(fresh.listed(step=steps), damages)
    keys = [step.key for step in opened] + [damage.key for damage in damages]
    return sorted({key.step for key in keys if key.step is not None})


def _left_out_of(catalog: Catalog, step: int) -> tuple[str, ...]:
    """Return which ranks of a step cannot be compared, and why."""
    try:
        return tuple(map(str, take_snapshot(catalog, step=step, allow_empty=True).left_out))
    except DamagedStore as exc:
        return (exc.message,)
    except UsageError:
        return ()  # the step is gone


def fulfilling(
    catalog: Catalog, step: int, conditions: Collection[str]
) -> dict[str, frozenset[Tensor] | UsageError]:
    """Return the tensors that fulfil each condition in a step, on any rank, and their operators.

    A condition that cannot be evaluated has the reason instead.
    """
    statistics = StepStatistics(take_snapshot(catalog, step=step), digests=False)
    masks = fulfilled(conditions, statistics.block(step), statistics.axis)
    names: dict[str, frozenset[Tensor] | UsageError] = {}
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


def _names_of(key: TensorKey) -> tuple[str, str]:
    """Return the name of a tensor, and of its operator as `divergence` names one that is missing."""
    operator = f"{key.op_type}.{key.op_name}" + (f"#{key.occurrence}" if key.occurrence else "")
    return key.name, operator


def _divergence(rule: Rule, answer: Divergence, step: int) -> Iterator[Finding]:
    for difference in answer.differences:
        if difference.last_step == step and chooser(rule.selector)(difference.key):
            tensor = difference.key.graph, difference.name
            yield from _finding(rule, step, difference.ranks, tensor, _describe_difference(difference))


def _missing(rule: Rule, answer: Divergence, step: int) -> Iterator[Finding]:
    for missing in answer.missing:
        is_asked = missing.last_step == step and missing.what in rule["of"]
        if is_asked and _chooses_missing(rule.selector, missing):
            tensor = missing.graph, missing.name
            yield from _finding(rule, step, missing.ranks, tensor, _describe_missing(missing))


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


KINDS: Mapping[str, Callable[[Rule, Divergence, int], Iterator[Finding]]] = {
    "divergence": _divergence,
    "missing": _missing,
}


def _finding(
    rule: Rule, step: int, ranks: tuple[int, ...], tensor: tuple[str, str], reason: str
) -> Iterator[Finding]:
    """Yield a finding if the rule is about any of these ranks."""
    if any(map(rule.selector.has_rank, ranks)):
        rank = ranks[0] if len(ranks) == 1 else None
        yield Finding(rule.name, rule.severity, rank, step, -1, *tensor, math.nan, math.nan, reason)


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
