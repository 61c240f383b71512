"""Incidents, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, ClassVar

import xxhash

from ingest.findings.severities import BySeverity
from ingest.questions.origin import OriginAnswer
from ingest.questions.question import Part, Table, Texts
from ingest.reader.choice import named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import Plain, counted, html_block, printable
from workers.store.model import SEVERITIES

#: How many rules are named in the text.
_RULES = 5


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
        return "\n".join(map(printable, _lines(self)))

    def _repr_html_(self) -> str:
        return html_block(str(self))

    @property
    def findings(self) -> int:
        """How many findings of rules it stands for."""
        return sum(self.rules.values())

    @property
    def order(self) -> tuple[int, int, str]:
        """A sort key: the worst first, then the earliest."""
        return (-SEVERITIES.index(self.severity), self.first_step, self.id)


@dataclass(frozen=True, slots=True, repr=False)
class Incidents(BySeverity):
    """The incidents of a store, and how far they can be trusted to be all."""

    noun: ClassVar = "incident"
    keys: ClassVar = tuple(name for name in Incident.__slots__ if name != "origin")
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

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.incidents)) or f"{self.store}: no incidents"

    def _repr_html_(self) -> str:
        return html_block(str(self))

    def table(self) -> Table[Incident]:
        """Return a row for each incident."""
        columns = ("severity", "id", "rank", "first_step", "last_step", "tensors", "summary")
        return Table({name: attrgetter(name) for name in columns}, self.incidents)

    def report(self) -> Iterator[Part]:
        """Yield a paragraph for each incident, and what is not known."""
        if self.incidents:
            yield Texts(["\n" * bool(place) + str(each) for place, each in enumerate(self.incidents)])
        yield from self.unknown()

    def rows_of_table(self) -> list[dict[str, Any]]:
        """Return the incidents as flat dictionaries, without their origins."""
        rows = (incident.to_dict() for incident in self.incidents)
        return [{name: row[name] for name in self.keys} for row in rows]


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
