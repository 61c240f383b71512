"""Says what kind of mistake a difference looks like, from the ways in which the tensor was put together."""

from __future__ import annotations

import math

from ingest.questions.placement.decide import Decision
from workers.arrays.sharded.placement import Held
from workers.arrays.sharded.placement_search import ScoredWay
from workers.arrays.sharded.segment_match import MatchedOrder

#: A difference is a factor if what remains without it is at most this share, relative to B.
_REST = 1e-3
#: Factors this close to 1 explain nothing.
_NO_FACTOR = 1e-3


def explain_difference(decision: Decision) -> str:
    """Explain a difference by a known kind of mistake; "" if it looks like none."""
    order = decision.search.order
    if order is not None and order.is_clear and (text := _wrong_parts(order)):
        return text
    if decision.way is None:
        return ""
    return _factor(decision.way) or _unequal_replicas(decision.way)


def _unequal_replicas(way: ScoredWay) -> str:
    """Return that what should be the same on all ranks is not; "" if it is, or if shards are involved."""
    if way.a.kind != Held.REPLICATED or way.spread <= _REST:
        return ""
    return "its ranks do not hold the same"


def _factor(way: ScoredWay) -> str:
    factor = way.factor
    if not math.isfinite(factor) or abs(factor - 1) < _NO_FACTOR or way.error_besides_factor > _REST:
        return ""
    count = max((dimension.size for dimension in way.a.dimensions), default=1)
    text = f"it is {factor:.4g} times B"
    if count > 1 and math.isclose(factor, count, rel_tol=_REST):
        return f"{text}, the number of ranks"
    if count > 1 and math.isclose(factor, 1 / count, rel_tol=_REST):
        return f"{text}, one part in as many as there are ranks"
    if math.isclose(factor, -1, rel_tol=_REST):
        return f"{text}: its sign is turned round"
    return text


def _wrong_parts(order: MatchedOrder) -> str:
    """Name the pieces that hold other positions than those of their place; "" if there are none."""
    begins = [stretches[0].whole if stretches else -1 for stretches in order.stretches]
    texts, expected = [], 0
    for number, stretches in enumerate(order.stretches):
        length = sum(stretch.length for stretch in stretches)
        if len(stretches) == 1 and stretches[0].whole != expected:
            begin = stretches[0].whole
            texts.append(
                f"{order.of} {number} holds positions {begin} to {begin + length - 1} of axis {order.axis} "
                f"instead of {expected} to {expected + length - 1}"
            )
        expected += length
    if len(set(begins)) < len(begins) and texts:
        return f"{'; '.join(texts)}: several ranks hold the same part"
    return "; ".join(texts)
