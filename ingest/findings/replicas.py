"""Rules that compare ranks: what `dump-ingest divergence` finds in a step and the three before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingest.questions.divergence import Divergence, divergence
from ingest.questions.divergence.result import Difference, Missing
from ingest.reader.catalog import Catalog
from ingest.reader.ranges import format_ranges
from workers.errors import DamagedStore, StoreError, UsageError
from workers.rules.names import is_chosen
from workers.rules.values import Rule, Selector
from workers.store.blocks import TensorKey
from workers.store.model import Finding


def chooses(selector: Selector, key: TensorKey) -> bool:
    """Whether a rule with this selector is about a tensor, on a rank that it is about."""
    return (
        is_chosen(selector.op_type, selector.exclude_op_type, key.op_type)
        and is_chosen(selector.io, (), key.io)
        and is_chosen(selector.graph, (), key.graph)
        and is_chosen(selector.include, selector.exclude, key.name)
    )


@dataclass(slots=True)
class Compared:
    """The replicas of one step, compared once for all rules."""

    answer: Divergence | None = None
    left_out: tuple[str, ...] = ()
    failed: str = ""

    @classmethod
    def of(cls, store: Catalog, step: int, before: Sequence[int]) -> Compared:
        """Compare them.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        try:
            answer = divergence(store, step=[*before, step])
        except UsageError:
            return cls()  # one rank, or no complete step: nothing to compare
        except DamagedStore as exc:
            return cls(failed=exc.message)
        except StoreError:
            raise
        except Exception as exc:  # noqa: BLE001  (the view must not wait for it)
            return cls(failed=f"{type(exc).__name__}: {exc}"[:500])
        return cls(answer, tuple(str(one) for one in answer.left_out if one.key.step == step))

    def findings(self, rule: Rule, step: int) -> Iterator[Finding]:
        """Yield what a rule makes of the comparison, in order of execution."""
        if self.answer is None:
            return
        if rule.kind == "divergence":
            for one in self.answer.differences:
                chosen = chooses(rule.selector, one.key) and any(map(rule.selector.has_rank, one.ranks))
                if one.last_step == step and chosen:
                    tensor = (one.key.graph, one.name)
                    yield _finding(rule, step, one.ranks, tensor, _differs(one))
            return
        for lack in self.answer.missing:
            is_named = is_chosen(rule.selector.include, rule.selector.exclude, lack.name)
            is_asked = lack.last_step == step and lack.what in rule["of"]
            if is_asked and is_named and any(map(rule.selector.has_rank, lack.ranks)):
                yield _finding(rule, step, lack.ranks, (lack.graph, lack.name), _lacks(lack))


def _finding(rule: Rule, step: int, ranks: tuple[int, ...], tensor: tuple[str, str], reason: str) -> Finding:
    rank = ranks[0] if len(ranks) == 1 else None
    return Finding(rule.name, rule.severity, rank, step, -1, *tensor, math.nan, math.nan, reason)


def _differs(one: Difference) -> str:
    who = f"rank{'s' * (len(one.ranks) != 1)} {format_ranges(one.ranks)}"
    others = f" from ranks {format_ranges(one.others)}" if one.has_majority else ", no majority"
    since = f" since step {one.first_step}" if one.first_step < one.last_step else ""
    return f"{one.why}: {who} differ{'s' * (len(one.ranks) == 1)}{others}{since}, by {one.by}"


def _lacks(lack: Missing) -> str:
    who = f"rank{'s' * (len(lack.ranks) != 1)} {format_ranges(lack.ranks)}"
    others = f"ranks {format_ranges(lack.others)}" if lack.others else "the others"
    word = {"missing": "not there", "extra": "there alone", "only here": "there alone"}[lack.state]
    return f"{lack.what} {word} of {who}; the opposite is true of {others}"
