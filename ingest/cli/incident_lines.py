"""An incident as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ingest.reader.ranges import format_ranges

if TYPE_CHECKING:
    from ingest.findings.incidents import Incident

#: How many rules are named; `--json` has all.
_RULES = 5
_MAX_CODE = 120


def incident_lines(incident: Incident) -> Iterator[str]:
    """Yield a headline, and below it the source line, the extent and the rules that fired."""
    yield f"{incident.severity}  {incident.id}  {incident.summary}"
    line = incident.origin.source if incident.origin is not None else None
    if line is not None:
        yield f"  {line.file}:{line.line}  {line.code[:_MAX_CODE]}"
    if incident.reason:
        yield f"  {incident.reason}"
    yield f"  {_extent(incident)}"
    if incident.rules:
        rules = [f"{rule} {count}" for rule, count in incident.rules.items()]
        rest = f", and {len(rules) - _RULES} more" if len(rules) > _RULES else ""
        yield f"  rules: {', '.join(rules[:_RULES])}{rest}"


def _extent(incident: Incident) -> str:
    first, last = incident.first_step, incident.last_step
    steps = f"step {first}" if first == last else f"steps {first}-{last}"
    if 1 < incident.steps < last - first + 1:
        steps += f" ({incident.steps} of them)"
    ranks = (
        f"rank{'s' * (len(incident.ranks) != 1)} {format_ranges(incident.ranks)}, " if incident.ranks else ""
    )
    host = f", host {incident.host}" if incident.host else ""
    return f"{ranks}{steps}, {incident.tensors} tensors{host}"
