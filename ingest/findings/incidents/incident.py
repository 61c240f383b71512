"""Incidents, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

import xxhash

from ingest.questions.origin import OriginAnswer
from ingest.reader import notebook
from ingest.reader.plain import Plain
from ingest.reader.ranges import named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted, printable
from workers.store.model import SEVERITIES

if TYPE_CHECKING:
    import pandas as pd

#: How many rules are named in the text.
_RULES = 5
#: How many incidents are named where the answer is shown in a session of Python.
_PRINTED = 20


class IncidentKind(StrEnum):
    """What went wrong."""

    NAN = "nan"
    INF = "inf"
    OVERFLOW = "overflow"
    """The hardware recorded an overflow, and no NaN or Inf of the same steps explains it."""
    DIVERGENCE = "divergence"
    """Replicas differ, or one of them lacks something."""
    RULE = "rule"
    """Another rule fired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident(Plain):
    """What went wrong in steps in a row, from one cause."""

    also: ClassVar = ("findings",)

    id: str
    """16 hexadecimal digits, from the store, the kind, where it began and the first step. It stays the same
    when later steps arrive."""
    kind: IncidentKind
    severity: str
    """The worst severity of the rules that fired."""
    store: str
    """The absolute URL of the store."""
    host: str
    """The host that dumped the rank and step where it began; "" if it is not about a single rank."""
    rank: int | None
    """The rank where it began; None if it is not about a single rank."""
    first_step: int
    last_step: int
    steps: int
    """In how many steps it was seen."""
    ranks: tuple[int, ...]
    """All ranks that it was seen on, in order."""
    graph: str = ""
    op_type: str = ""
    op_name: str = ""
    """The operator where it began; "" if it is not known."""
    occurrence: int = 0
    tensor: str = ""
    """The tensor that showed it first, as `Tensor.name`; "" if it is not about one."""
    summary: str
    """What happened and where, as one sentence."""
    cause: str = ""
    """What is the matter, in the words of the field; "" if it is not known."""
    level: str = "open"
    """How certain the cause is: `shown` by values of the run, `likely`, or `open`."""
    reason: str = ""
    """Why, by the definition of the operator: what in its inputs did it; "" if that is not known."""
    tensors: int
    """How many tensors are affected, over all of the steps and ranks."""
    rules: Mapping[str, int] = field(default_factory=dict)
    """By rule that fired: how often, over all of the steps and ranks; the most frequent first."""
    origin: OriginAnswer | None = None
    """Where NaN, Inf or an overflow began, and how it spread; None for other kinds."""

    def __repr__(self) -> str:
        return f"<Incident {self.id} {self.severity}: {printable(self.summary)}>"

    def __str__(self) -> str:
        """Return a headline; below it the source line, the reason, the extent, the rules that fired."""
        return "\n".join(map(printable, _lines(self)))

    def _repr_html_(self) -> str:
        return notebook.block(str(self))

    @property
    def findings(self) -> int:
        """How many findings of rules it stands for."""
        return sum(self.rules.values())

    @property
    def order(self) -> tuple[int, int, str]:
        """A sort key: the worst first, then the earliest."""
        return (-SEVERITIES.index(self.severity), self.first_step, self.id)


@dataclass(frozen=True, slots=True)
class Incidents(Plain):
    """The incidents of a store, and how far they can be trusted to be all."""

    also: ClassVar = ("by_severity",)

    store: str
    """The absolute URL of the store."""
    incidents: tuple[Incident, ...]
    """The worst first, then the earliest."""
    not_evaluated: tuple[str, ...] = ()
    """Steps and rules about which rules tell nothing, and why. NaN and Inf are known of these steps, too."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps about which nothing is known, with the reason."""
    damaged: tuple[str, ...] = ()
    """What is damaged in the store."""

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {severity}" for severity, count in self.by_severity.items())
        lines = [f"<Incidents {self.store}: {counts or 'none'}>", *map(repr, self.incidents[:_PRINTED])]
        if len(self.incidents) > _PRINTED:
            lines.append(f"... {len(self.incidents) - _PRINTED} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        """Return the output of `dump-ingest anomalies`."""
        return "\n\n".join(map(str, self.incidents)) or f"{self.store}: no incidents"

    def _repr_html_(self) -> str:
        return notebook.block(str(self))

    @property
    def by_severity(self) -> dict[str, int]:
        """The number of incidents by severity, the worst first."""
        counts = Counter(incident.severity for incident in self.incidents)
        return {severity: counts[severity] for severity in reversed(SEVERITIES) if counts[severity]}

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row for each incident, without the column `origin`."""
        import pandas as pd  # deferred: pandas takes 0.4 s

        columns = [name for name in Incident.__slots__ if name != "origin"]
        rows = [incident.to_dict() for incident in self.incidents]
        return pd.DataFrame(rows, columns=columns)


def incident_id(store: str, kind: IncidentKind, first_step: int, *where: object) -> str:
    """Return a stable name: 16 hexadecimal digits.

    Args:
        store: the absolute URL of the store.
        kind: what went wrong.
        first_step: the step where it began.
        where: the operator or the rule. Not the rank: of ranks in no order, another one may commit later.
    """
    parts = (store, kind.value, first_step, *where)
    return xxhash.xxh3_64_hexdigest("\n".join(map(str, parts)).encode())


def _reason(incident: Incident) -> str:
    """Return why it is one, else what was found first at its origin; "" if neither is known."""
    if incident.reason or incident.origin is None or incident.origin.why is None:
        return incident.reason
    return incident.origin.why.first


def _lines(incident: Incident) -> Iterator[str]:
    yield f"{incident.severity}  {incident.id}  {incident.summary}"
    line = incident.origin.source if incident.origin is not None else None
    if line is not None:
        yield f"  {line.file}:{line.line}  {line.code}"
    if reason := _reason(incident):
        yield f"  {reason}"
    cause = incident.cause or ("its cause is not known" if incident.level == "open" else "")
    yield f"  {_extent(incident)}" + (f"; {incident.level}: {cause}" if cause else "")
    if incident.rules:
        rules = [f"{rule} {count}" for rule, count in incident.rules.items()]
        rest = f", and {len(rules) - _RULES} more" if len(rules) > _RULES else ""
        yield f"  rules: {', '.join(rules[:_RULES])}{rest}"


def _extent(incident: Incident) -> str:
    first, last = incident.first_step, incident.last_step
    steps = f"step {first}" if first == last else f"steps {first}-{last}"
    if 1 < incident.steps < last - first + 1:
        steps += f" ({incident.steps} of them)"
    ranks = f"{named_ranges('rank', incident.ranks)}, " if incident.ranks else ""
    host = f", host {incident.host}" if incident.host else ""
    return f"{ranks}{steps}, {counted(incident.tensors, 'tensor')}{host}"
