"""Incidents in words."""

from __future__ import annotations

from ingest.questions.origin import OriginAnswer
from ingest.reader.ranges import format_ranges
from workers.store.model import Finding


def summary_of_origin(answer: OriginAnswer) -> str:
    """Summarize an origin: what began where, how far it spread in that step. Without a full stop."""
    operator = f"{answer.op_type} ({answer.op_name})" if answer.op_name else "an operator that was not dumped"
    place = f"on rank {answer.rank}, step {answer.step}"
    ranks = answer.spread.ranks
    reached = f"; it reached ranks {format_ranges(ranks)}" if len(ranks) > 1 else ""
    if answer.how == "recorded":
        return f"overflow recorded in {operator} {place}{reached}"
    if answer.came_in is not None:
        return f"{answer.what} came in with {answer.came_in} {place}{reached}"
    if answer.how == "born":
        return f"{answer.what} born in {operator} {place}{reached}"
    return f"{answer.what} came through {operator} {place}{reached}"


def summary_of_rule(rule: str, step: int, finding: Finding | None) -> str:
    """Summarize the first finding of a rule, without a full stop."""
    if finding is None:
        return f"{rule} in step {step}"
    where = f" on rank {finding.rank}" if finding.rank is not None else ""
    name = f"{finding.name}: " if finding.name else ""
    return f"{rule}{where}, step {step}: {name}{finding.reason}".rstrip(".")
