"""Settles what is open about a tensor by others of its kind: the same operator in other layers and steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ingest.questions.placement.decide import Certainty, Decision, describe, simplicity
from workers.arrays.sharded.placement import Held
from workers.arrays.sharded.placement_search import ScoredWay
from workers.store.consolidated.blocks import TensorKey

Kind: TypeAlias = Hashable
Kinds: TypeAlias = tuple[str, str]

_SETTLED = frozenset({Certainty.CERTAIN, Certainty.TOLD, Certainty.MAPPED})
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])|-op\d+")
#: The types that stand for parameters and their gradients where a dump has no operators.
PARAMETER, GRADIENT = "Parameter", "Gradient"
#: How many tensors of a kind must be held in one way for another way to be odd.
MANY = 2


def kind_of(key: TensorKey, ndim: int) -> Kind:
    """Return the key that tensors of the same operator share in all layers and steps."""
    return key.op_type, _NUMBER.sub("#", key.op_name), key.io, key.slot, ndim


@dataclass(slots=True)
class Agreements:
    """How tensors of each kind are held, as far as that is certain."""

    _certain: dict[Kind, Counter[Kinds]] = field(default_factory=dict)

    def learn(self, kinds: Sequence[Kind], decision: Decision) -> None:
        """Count a decision that is certain; and where all ranks hold the same, whatever the values."""
        if decision.way is None:
            return
        shown = _shown(decision.way)
        is_certain = decision.certainty is Certainty.CERTAIN
        if is_certain or (decision.certainty is Certainty.BY_SHAPE and shown[0] == Held.REPLICATED):
            for kind in kinds:
                self._certain.setdefault(kind, Counter())[shown] += 1

    def usual(self, kind: Kind) -> Kinds | None:
        """Return the placements of a kind of tensors on both sides; None if not known or not unanimous."""
        counts = self._certain.get(kind, Counter())
        return next(iter(counts)) if len(counts) == 1 else None

    def settle(self, kinds: Sequence[Kind], decision: Decision) -> Decision:
        """Return the decision with what others of the kind show, if that is needed and possible.

        Args:
            kinds: its kind, and those that are held alike, such as the parameter of a gradient.
            decision: what is known of the tensor itself.
        """
        usual = next(filter(None, map(self.usual, kinds)), None)
        if usual is None or decision.certainty in _SETTLED:
            return decision
        # Of ways that the values allow, others of the kind choose; against the values, they show nothing.
        ways = (decision.way, *decision.also) if decision.way and decision.also else decision.search.ways
        fitting = sorted((way for way in ways if _shown(way) == usual), key=simplicity)
        if not fitting:
            return decision
        text = f"{decision.explanation}; others of its kind are held so"
        return replace(decision, way=fitting[0], certainty=Certainty.AGREED, explanation=text, also=())

    def odd(self, kind: Kind, decision: Decision) -> str:
        """Return the placement of others of its kind if this one differs from most of them; else ""."""
        counts = self._certain.get(kind, Counter())
        if decision.way is None or decision.certainty is not Certainty.CERTAIN or len(counts) < 2:
            return ""
        (most, number), (_, next_number) = counts.most_common(2)
        own = _shown(decision.way)
        if own == most or number < MANY or number < 2 * next_number:
            return ""
        return " | ".join(dict.fromkeys(most))


def _shown(way: ScoredWay) -> Kinds:
    return ("alike", "alike") if way.same_on_both else way.kinds


def is_parameter(key: TensorKey) -> bool:
    """Return whether a tensor is a parameter, or the state of one, by its name."""
    name = f"{key.op_type}.{key.op_name}".lower()
    return "param" in name and "grad" not in name


def kinds_of(key: TensorKey, ndim: int) -> tuple[Kind, ...]:
    """Return the kind of a tensor, and of what is held alike: a gradient is cut as its parameter is."""
    other = {GRADIENT: PARAMETER, PARAMETER: GRADIENT}.get(key.op_type)
    own = kind_of(key, ndim)
    return (own,) if other is None else (own, kind_of(key._replace(op_type=other), ndim))


def placement_text(decision: Decision) -> str:
    """Return the placement of a tensor, as a table shows it; `?` if it is open."""
    if decision.way is None:
        return "?"
    return describe(decision.way)
