"""Compares a decision with what the dump itself says."""

from __future__ import annotations

from dataclasses import replace

from ingest.questions.placement.decide import Certainty, Decision
from ingest.reader.parallel.told_placement import Told, is_told, may_be_told, told_text


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
