"""Decides which of the ways that were tried is the one in which ranks hold a tensor, and how certain that is.

A way that does not hold is off by about as much as the tensor is large. So a way whose error is that of
rounding, and far below that of any other, is certain. Where several fit, as with zeros, or none does, what is
left is what shapes allow, what the dump tells, and what tensors of the same kind show; see `agree`. The ways
also show what kind of mistake a difference looks like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ingest.identities.limits import unit_of
from ingest.reader.unsharded import Told, is_told, may_be_told, told_text
from workers.arrays.sharded.placement import Held
from workers.arrays.sharded.placement_search import MatchedOrder, ScoredWay, Search

#: The largest error with which a way fits: for float32 and wider, and in units of the epsilon for others.
_FIT, _FIT_EPSILONS, _MAX_FIT = 1e-3, 8, 0.25
#: Errors are told apart if one is this many times the other, and if the larger one is above this.
_TIMES, _NOISE = 8.0, 1e-6
#: If no way fits: the error of the closest, and its share of the next one's, with which it is likely.
_LIKELY, _LIKELY_SHARE = 0.7, 0.5
#: How many ways an explanation names: the closest.
_MOST_NAMED = 6
#: How simple a way is: the smaller the simpler.
_SIMPLICITY = {
    Held.REPLICATED: 0,
    Held.SHARD: 1,
    Held.FLAT: 1,
    Held.STRIDED: 2,
    Held.BLOCKS: 2,
    Held.ZIGZAG: 2,
    Held.PARTIAL_SUM: 3,
    Held.MEAN: 4,
}


class Certainty(StrEnum):
    """Why ranks are taken to hold a tensor in a way, from the strongest."""

    MAPPED = "mapped"
    """The layout map says so."""
    CERTAIN = "certain"
    """The values agree in this way, and in no other."""
    BY_MARGINALS = "by marginals"
    """The elements are gone; of all plain ways, the marginals agree in this one."""
    TOLD = "told"
    """Values leave it open, and the dump tells."""
    AGREED = "agreed"
    """Other tensors of the same kind are held in this way for certain."""
    BY_SHAPE = "by shape"
    """The shapes allow no other way; the values do not agree."""
    LIKELY = "likely"
    """The values agree in no way, and come much closer in this one."""
    OPEN = "open"
    """Several ways fit equally well, or none does."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The way in which ranks hold a tensor, as far as it is known."""

    way: ScoredWay | None
    """None if nothing is known. If several ways fit equally well, the simplest."""
    certainty: Certainty
    explanation: str
    also: tuple[ScoredWay, ...] = ()
    """Others that fit equally well."""
    search: Search = field(default_factory=lambda: Search(()), repr=False)

    @property
    def fits(self) -> bool:
        """Whether the values agree in this way."""
        return self.certainty is Certainty.CERTAIN or (self.certainty is Certainty.OPEN and bool(self.also))


def fit_limit(dtypes: Sequence[str]) -> float:
    """Return the largest relative error with which two sides hold the same, by the coarser of these types."""
    return max(_FIT, *(min(2 * _FIT_EPSILONS * unit_of(dtype), _MAX_FIT) for dtype in dtypes))


def decide(search: Search, dtypes: Sequence[str], *, may_be_mean: bool = True) -> Decision:
    """Decide which of the ways of a search holds.

    Args:
        search: the ways that were tried, the closest first.
        dtypes: the types of the elements on both sides.
        may_be_mean: whether its mean over ranks may be near what it is computed to be, as that of a gradient.
            The mean of activations of several samples is that of none.
    """
    if all("int" in dtype for dtype in dtypes):  # numbers of tokens have no mean
        ways = tuple(way for way in search.ways if Held.MEAN not in {each.held for each in way.a.dimensions})
        search = replace(search, ways=ways)
    if not search.ways:
        text = "the shapes of the pieces do not make up the shape of the tensor in any known way"
        return Decision(None, Certainty.OPEN, text, search=search)
    best = search.ways[0]
    limit = fit_limit(dtypes)
    if best.error <= limit:
        return _fitting(search, best)
    return _up_to_a_factor(search, limit) or _not_fitting(search, best, may_be_mean=may_be_mean)


def _fitting(search: Search, best: ScoredWay) -> Decision:
    limit = max(_TIMES * best.error, _NOISE)
    near = sorted((way for way in search.ways if way.error <= limit), key=simplicity)
    chosen = near[0]
    also = tuple(way for way in near[1:] if not _is_implied(way, chosen))
    error = f"relative error {chosen.error:.1e}"
    if also:
        names = ", ".join(dict.fromkeys(describe(way) for way in also))
        return Decision(chosen, Certainty.OPEN, f"{error}; also fits: {names}", also, search)
    others = [way.error for way in search.ways if way.error > limit]
    text = f"{error}; every other way is off by {min(others):.1e} or more" if others else error
    return Decision(chosen, Certainty.CERTAIN, text, search=search)


def _up_to_a_factor(search: Search, limit: float) -> Decision | None:
    """Return the only way in which the sides agree but for a factor; None if there is not exactly one."""
    scaled = [way for way in search.ways if way.error_besides_factor <= limit and abs(way.factor) > limit]
    simplest = sorted(scaled, key=simplicity)[:1]
    if not simplest or any(not _is_implied(way, simplest[0]) for way in scaled if way is not simplest[0]):
        return None
    text = f"it is {simplest[0].factor:.4g} times B, and agrees but for that in no other way"
    return Decision(simplest[0], Certainty.CERTAIN, text, search=search)


def _not_fitting(search: Search, best: ScoredWay, *, may_be_mean: bool) -> Decision:
    off = f"the values are off by {best.error:.1e}"
    if _is_another_order(search, best):
        text = "the pieces make up the tensor in an order of no known way"
        text += ", such as that of sequences which are cut one by one"
        return Decision(None, Certainty.OPEN, text, search=search)
    if decision := _by_shape(search, best, off):
        return decision
    others = [way.error for way in search.ways if way.kinds != best.kinds]
    may_be = may_be_mean or Held.MEAN not in {each.held for each in best.a.dimensions}
    if may_be and best.error <= min([_LIKELY, *(_LIKELY_SHARE * error for error in others)]):
        return Decision(best, Certainty.LIKELY, f"{off}, every other way by more", search=search)
    names = list(dict.fromkeys(describe(way) for way in search.ways))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    text = f"{off} in the closest of the ways: {', '.join(names[:_MOST_NAMED])}{more}"
    return Decision(None, Certainty.OPEN, text, search=search)


def _is_another_order(search: Search, best: ScoredWay) -> bool:
    """Return whether the pieces have every position of the tensor once, some of them in several stretches."""
    order = search.order
    if order is None or all(len(stretches) == 1 for stretches in order.stretches):
        return False  # whole shards in another order are a mistake
    return bool(order.segments(best.b.assembly.shape[order.axis]))


def _by_shape(search: Search, best: ScoredWay, off: str) -> Decision | None:
    """Return the only way that the shapes allow, although the values are off; None if they allow several."""
    plain = [way for way in search.ways if not way.same_on_both and _is_plain(way)]
    if len({way.kinds for way in plain}) == 1:
        is_cut = any(dimension.axis is not None for dimension in plain[0].a.dimensions)
        why = (
            "the shapes allow nothing else, unless it is cut in blocks"
            if is_cut
            else "all ranks hold the same"
        )
        text = f"{why}; {off}"
        return Decision(plain[0], Certainty.BY_SHAPE, text, search=search)
    if len(search.ways) == 1:
        return Decision(best, Certainty.BY_SHAPE, f"both sides are cut alike; {off}", search=search)
    return None


def simplicity(way: ScoredWay) -> tuple[int, int, float]:
    """Return a key that sorts the simplest way first: what both sides share, then the fewest operations."""
    dimensions = (*way.a.dimensions, *way.b.dimensions)
    return (
        0 if way.same_on_both else 1,
        sum(_SIMPLICITY[dimension.held] for dimension in dimensions),
        way.error,
    )


def _is_plain(way: ScoredWay) -> bool:
    return not any(
        dimension.held in {Held.STRIDED, Held.BLOCKS, Held.ZIGZAG} for dimension in way.a.dimensions
    )


def describe(way: ScoredWay) -> str:
    """Return the placements on both sides, such as `shard 0`, or `shard 0 | replicated` with that of B."""
    if way.same_on_both:
        return "alike"
    return str(way.a) if not way.b.dimensions else f"{way.a} | {way.b}"


def _is_implied(way: ScoredWay, chosen: ScoredWay) -> bool:
    """Return whether a way holds whenever the chosen one does: replicas are equal to their mean."""
    if chosen.same_on_both:
        return True  # the same was done to both
    kinds = tuple(kind.replace(Held.MEAN.value, Held.REPLICATED.value) for kind in way.kinds)
    merged = tuple(", ".join(dict.fromkeys(kind.split(", "))) for kind in kinds)
    return merged == chosen.kinds


def settled_by(told: Told, decision: Decision) -> Decision:
    """Return a decision with what the dump tells, if the values leave it open."""
    if not told or not _is_open(decision, told):
        return decision
    fitting = [way for way in decision.search.ways if is_told(way.a, told)]
    if not fitting:
        return decision
    kinds = set(told.values())
    # Dimensions of a mesh that was not told have no names, and fit anything: kinds decide then.
    alike = [way for way in fitting if {dimension.kind for dimension in way.a.dimensions} == kinds]
    text = f"{decision.explanation}; the dump tells {told_text(told)}"
    return replace(decision, way=(alike or fitting)[0], certainty=Certainty.TOLD, explanation=text, also=())


def _is_open(decision: Decision, told: Told) -> bool:
    if decision.certainty is Certainty.BY_SHAPE:
        return decision.way is None or not is_told(decision.way.a, told)
    return decision.certainty in {Certainty.OPEN, Certainty.LIKELY}


def contradicts(told: Told, decision: Decision) -> bool:
    """Return whether the values show for certain that ranks hold a tensor in another way than was told."""
    if decision.certainty is not Certainty.CERTAIN or decision.way is None:
        return False
    return not may_be_told(decision.way.a, told)


#: A difference is a factor if what remains without it is at most this share, relative to B.
_REST = 1e-3
#: Factors this close to 1 explain nothing.
_NO_FACTOR = 1e-3


def explain_difference(decision: Decision) -> str:
    """Explain a difference by a known kind of mistake; "" if it looks like none."""
    order = decision.search.order
    if order is not None and order.is_clear and (text := _wrong_parts(order)):
        return text
    way = decision.way
    if way is None:
        return ""
    if math.isfinite(way.factor) and abs(way.factor - 1) >= _NO_FACTOR and way.error_besides_factor <= _REST:
        return f"it is {way.factor:.4g} times B"
    is_unequal = way.a.kind == Held.REPLICATED and way.spread > _REST
    return "its ranks do not hold the same" if is_unequal else ""


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
