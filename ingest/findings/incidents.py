"""Incidents, as values, and the search for them in a store.

NaN and Inf come first: each run of steps that hold them is one incident, with its origin, and what rules
found about tensors in these steps belongs to it. Of what is left, each run of steps in which a rule fired is
one.

Cost: the commits of all steps, which every answer over a store reads, and the documents that count how often
rules fired; the origin of each incident with NaN or Inf; the findings of the first step of each other
incident. The number of findings does not matter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Annotated, Any, ClassVar

import xxhash

from ingest.findings.severities import BySeverity, Severity, at_least
from ingest.findings.stored import Anomalies, SeriesDocument, anomalies, read_series
from ingest.questions.divergence import divergence
from ingest.questions.divergence.expectations import AGREED_BEFORE
from ingest.questions.origin import OriginAnswer
from ingest.questions.origin import origin as find_origin
from ingest.questions.origin.search import Episode, episodes_of
from ingest.questions.question import Mode, Note, Option, Part, Question, Ranks, Steps, Table, Texts
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice, format_ranges, named_ranges
from ingest.reader.snapshot import LeftOut, Snapshot, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of
from ingest.reader.text import Plain, counted, html_block, printable
from workers.errors import DamagedStore, StepRemoved, UsageError
from workers.store import findings
from workers.store.model import SEVERITIES, Finding

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
    host: str
    """The host that dumped the rank and step where it began; "" if it is not about a single rank."""
    rank: int | None
    """The rank where it began; None if it is not about a single rank."""
    first_step: int
    last_step: int
    steps: int
    """In how many steps it was seen."""
    ranks: tuple[int, ...]
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
    incidents: tuple[Incident, ...]
    """The worst first, then the earliest."""
    not_evaluated: tuple[str, ...] = ()
    """Steps and rules about which rules tell nothing, and why. NaN and Inf are known of these steps, too."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps about which nothing is known, with the reason."""
    damaged: tuple[str, ...] = ()

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
        if not self.by_severity.keys() - {SEVERITIES[0]}:
            yield Note(_MORE)

    def rows_of_table(self) -> list[dict[str, Any]]:
        """Return the incidents as flat dictionaries, without their origins."""
        rows = (incident.to_dict() for incident in self.incidents)
        return [{name: row[name] for name in self.keys} for row in rows]


#: What is said if rules have found nothing.
_MORE = (
    "not asked here: `dump-ingest audit` (does each tensor follow from others?) and `dump-ingest layout` (do "
    "ranks fit together?)"
)


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


#: Documents of findings over steps and ranks that are read at once; this bounds the memory.
_DOCUMENTS_AT_ONCE = 64


@dataclass(slots=True)
class _Sighting:
    step: int
    ranks: set[int] = field(default_factory=set)
    """Empty if it is about several ranks together."""
    count: int = 0
    """How often, including what its limit kept from being stored."""
    severity: str = SEVERITIES[0]
    first: Finding | None = None
    """For rules over several steps or ranks: the first finding."""


@dataclass(slots=True)
class _Failure:
    where: str
    """The first step, and its rank if it is about one alone."""
    reason: str
    steps: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        reason = self.reason.removeprefix(f"{self.where}: ")
        return f"{named_ranges('step', self.steps)}; at first in {self.where}: {reason}"


class _Sightings:
    """All sightings of a snapshot. Memory: one for each rule and step."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.by_rule: dict[str, dict[int, _Sighting]] = {}
        self.kinds: dict[str, str] = {}
        """By rule; "" if that is not known."""
        self.damaged: list[str] = []
        self._failures: dict[str, _Failure] = {}
        """By rule, or by what else was not evaluated."""
        unruled: dict[int, list[int]] = {}
        for key, step in snapshot.chosen.items():
            if not self._add_step(step):
                unruled.setdefault(key.rank, []).append(key.step or 0)
        self.without_rules = [
            f"rank {rank}, {named_ranges('step', steps)}: no rules were evaluated when it was committed"
            for rank, steps in unruled.items()
        ]
        without_series = self._add_documents(snapshot)
        if without_series:
            self.without_rules.append(
                f"{named_ranges('step', without_series)}: rules over several steps or ranks were not "
                "evaluated; `consolidate` does that"
            )
        self.without_rules += [f"{what}: {failure}" for what, failure in self._failures.items()]

    def first_finding(self, snapshot: Snapshot, rule: str, step: int) -> Finding | None:
        """Return the first finding of a rule in a step; None if it cannot be read.

        Raises:
            DamagedStore: the findings are missing or damaged.
        """
        sighting = self.by_rule[rule][step]
        if sighting.first is not None:
            return sighting.first
        for rank in sorted(sighting.ranks):
            opened = snapshot.step(rank, step)
            for finding in (findings_of(opened) if opened is not None else None) or ():
                if finding.rule == rule:
                    return finding
        return None

    def _add_step(self, step: Step) -> bool:
        """Add what was found in one step of one rank; return whether rules were evaluated."""
        summary = step.commit.summary
        if not summary.rules:
            return False
        if not summary.findings.keys() <= self.kinds.keys():
            # Of each rule the first definition counts: the metadata of other steps stays packed.
            document = step.commit.nodes.get(f"{findings.GROUP}/{summary.rules}", {})
            definitions = document.get("attributes", {}).get("rules", {})
            for rule, definition in definitions.items():
                self.kinds.setdefault(rule, str(definition.get("kind", "")))
        for rule, count in summary.findings.items():
            sighting = self._sighting(rule, summary.key.step or 0, summary.severities.get(rule, "warning"))
            sighting.ranks.add(summary.key.rank)
            sighting.count += count
        for rule, reason in summary.failed_rules.items():
            self._add_failure(f"rule {rule}", summary.key.step or 0, str(summary.key), reason)
        return True

    def _add_documents(self, snapshot: Snapshot) -> list[int]:
        steps, without = snapshot.steps, []
        for start in range(0, len(steps), _DOCUMENTS_AT_ONCE):
            part = steps[start : start + _DOCUMENTS_AT_ONCE]
            documents = read_series(snapshot.store.objects, part, self.damaged)
            for document in documents.values():
                self._add_document(document)
            without += [step for step in part if step not in documents]
        return without

    def _add_document(self, document: SeriesDocument) -> None:
        severities = {finding.rule: finding.severity for finding in document.findings}
        for rule in severities:
            self.kinds.setdefault(rule, document.kinds.get(rule, ""))
        for finding in sorted(document.findings, key=lambda finding: finding.order):
            sighting = self._sighting(finding.rule, document.step, finding.severity)
            sighting.first = sighting.first or finding
            if finding.rank is not None:
                sighting.ranks.add(finding.rank)
        for rule, count in document.totals.items():
            if rule in severities:
                self._sighting(rule, document.step, severities[rule]).count += count
        step, where = document.step, f"step {document.step}"
        for rule, reason in document.failed.items():
            self._add_failure(f"rule {rule}", step, where, reason)
        for left_out in document.not_evaluated:
            self._add_failure("replicas not compared", step, where, left_out)

    def _add_failure(self, what: str, step: int, where: str, reason: str) -> None:
        self._failures.setdefault(what, _Failure(where, reason)).steps.add(step)

    def _sighting(self, rule: str, step: int, severity: str) -> _Sighting:
        self.kinds.setdefault(rule, "")
        sighting = self.by_rule.setdefault(rule, {}).setdefault(step, _Sighting(step))
        sighting.severity = max(sighting.severity, severity, key=SEVERITIES.index)
        return sighting


def _worst_of(sightings: Iterable[_Sighting]) -> str:
    return max((sighting.severity for sighting in sightings), key=SEVERITIES.index)


_CRITICAL = SEVERITIES[-1]
#: Steps after an incident in which ranks that train apart may meet.
_MEETING = 64
#: Kinds of rules over several ranks: what they find is not a consequence of a NaN on one rank.
_ACROSS_RANKS = ("divergence", "missing")
_NOT_FINITE, _OVERFLOW = "not_finite", "overflow"


def incidents(
    store: Catalog,
    rank: Ranks = None,
    step: Steps = None,
    *,
    severity: Severity = None,
    incident: Annotated[str, Option("Only the incident with this id.", "ID", flag="--id")] = "",
) -> Incidents:
    """List what went wrong, once for each cause: the worst first, then the earliest.

    One NaN is one incident: where it was born, its ranks and steps, and which rules fired. `--findings` and
    `--rule` list what rules found about each tensor. This command evaluates no rules: that happens when a
    step is committed and, for rules over several steps or ranks, in `consolidate`.

    Returns:
        The incidents that were seen on these ranks, in these steps; those about no single rank are always
        among them. Steps with quarantined or missing files count. The store is listed again.

    Raises:
        UsageError: a rank, a step or the incident does not exist, or the severity is not one of these.
        DamagedStore: no step can be read.
    """
    at_least(severity)  # a mistake is refused before the search
    snapshot = take_snapshot(store, include_partial=True, allow_empty=True)
    snapshot.store.select(rank, step, damages=[])  # and so is what does not exist
    return FoundIncidents(snapshot).chosen(rank, step, severity=severity, incident=incident)


class FoundIncidents:
    """All incidents of a snapshot, from which answers are chosen without another search."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Search a snapshot that includes partial steps.

        Raises:
            DamagedStore: no step can be read.
        """
        self.snapshot = snapshot
        self._sightings = _Sightings(snapshot)
        self._bad = episodes_of(snapshot)
        self.incidents = sorted(self._found(), key=attrgetter("order"))

    def chosen(
        self, rank: Choice = None, step: Choice = None, *, severity: str | None = None, incident: str = ""
    ) -> Incidents:
        """Return the incidents seen on some ranks, in some steps; see `incidents`.

        Raises:
            UsageError: a rank, a step or the incident does not exist, or the severity is not one.
        """
        severe = at_least(severity)
        listed = [known for known in self._seen(rank, step) if known.severity in severe]
        if incident:
            listed = [known for known in listed if known.id == incident]
            if not listed:
                raise UsageError(
                    f"{self.snapshot.store.url}: no incident {incident!r} among those that are asked for",
                    hint="`anomalies` prints the ids. Steps that are committed later may move the beginning "
                    "of an incident: then its id changes.",
                )
        return Incidents(
            self.snapshot.store.url,
            tuple(listed),
            tuple(self._sightings.without_rules),
            tuple(dict.fromkeys([*self.snapshot.left_out, *self._bad.left_out])),
            tuple(self._sightings.damaged),
        )

    def _seen(self, rank: Choice, step: Choice) -> Sequence[Incident]:
        if rank is None and step is None:
            return self.incidents  # nothing has to be looked up, which takes a while in a long run
        keys = [opened.key for opened in self.snapshot.store.select(rank, step, damages=[])]
        ranks, numbers = {key.rank for key in keys}, {key.step for key in keys}
        steps = [number for number in self.snapshot.steps if number in numbers]

        def is_seen(known: Incident) -> bool:
            is_on_ranks = rank is None or known.rank is None or not ranks.isdisjoint(known.ranks)
            return is_on_ranks and (
                step is None or any(known.first_step <= number <= known.last_step for number in steps)
            )

        return list(filter(is_seen, self.incidents))

    def _found(self) -> Iterator[Incident]:
        explained: set[int] = set()
        for episode in self._bad.episodes:
            explained |= set(episode.steps)
            yield self._of_episode(episode)
        overflown = {
            key.step
            for key, opened in self.snapshot.chosen.items()
            if opened.commit.summary.overflows and key.step is not None
        }
        for run in self._runs(overflown - explained):
            yield self._of_overflow(run)
        not_finite = {step for by_step in self._not_finite().values() for step in by_step}
        for run in self._runs(not_finite - explained):
            yield self._of_infinity(run)
        yield from _by_cause(self._of_rules(explained))

    def _of_rules(self, explained: Container[int]) -> Iterator[Incident]:
        """Yield what other rules saw, of one rank only before NaN and Inf explain it."""
        for rule, by_step in sorted(self._sightings.by_rule.items()):
            kind = self._sightings.kinds[rule]
            if kind in (_NOT_FINITE, _OVERFLOW):
                continue
            for run in self._runs(by_step):
                rest = (
                    run if kind in _ACROSS_RANKS else list(takewhile(lambda step: step not in explained, run))
                )
                if rest:
                    yield self._of_rule(rule, kind, [by_step[step] for step in rest])

    def _not_finite(self) -> dict[str, dict[int, _Sighting]]:
        kinds = self._sightings.kinds
        return {rule: seen for rule, seen in self._sightings.by_rule.items() if kinds[rule] == _NOT_FINITE}

    def _of_episode(self, episode: Episode) -> Incident:
        answer = episode.origin
        kind = IncidentKind.INF if answer.cause == "inf" else IncidentKind.NAN
        rules = self._rules_in(episode.steps, lambda rule_kind: rule_kind not in _ACROSS_RANKS)
        incident = self._of_origin(
            kind, answer, episode.steps, episode.ranks, rules=rules, tensors=episode.tensors
        )
        if episode.steps[0] not in self._bad.skipped:
            return incident
        why = "an overflow of scaled gradients: no parameter changed, and the next step is finite"
        return replace(incident, severity=SEVERITIES[0], summary=f"{incident.summary}; {why}")

    def _of_overflow(self, run: Sequence[int]) -> Incident:
        answer = find_origin(self.snapshot.store, step=run, cause="overflow", include_partial=True)
        summaries = [
            opened.commit.summary
            for step in run
            for opened in self.snapshot.of_step(step).values()
            if opened.commit.summary.overflows
        ]
        ranks = tuple(sorted({summary.key.rank for summary in summaries}))
        rules = self._rules_in(run, lambda rule_kind: rule_kind == _OVERFLOW)
        records = sum(summary.overflows for summary in summaries)
        return self._of_origin(IncidentKind.OVERFLOW, answer, tuple(run), ranks, rules=rules, tensors=records)

    def _of_origin(
        self,
        kind: IncidentKind,
        answer: OriginAnswer,
        steps: Sequence[int],
        ranks: tuple[int, ...],
        *,
        rules: dict[str, int],
        tensors: int,
    ) -> Incident:
        store = self.snapshot.store.url
        where = (answer.graph or "", answer.op_type or "", answer.op_name or "", answer.occurrence or 0)
        tensor = next((operand.name for operand in (*answer.outputs, *answer.inputs) if operand.is_bad), "")
        return Incident(
            id=incident_id(store, kind, steps[0], *where),
            kind=kind,
            severity=_CRITICAL,
            store=store,
            host=self._host(answer.rank, steps[0]),
            rank=answer.rank,
            first_step=steps[0],
            last_step=steps[-1],
            steps=len(steps),
            ranks=ranks,
            graph=where[0],
            op_type=where[1],
            op_name=where[2],
            occurrence=where[3],
            tensor=tensor,
            level="open" if (answer.how or "").startswith("came through") else "shown",
            summary=_summary_of_origin(answer),
            reason=answer.why.summary if answer.why is not None else "",
            tensors=tensors,
            rules=rules,
            origin=answer,
        )

    def _of_rule(self, rule: str, kind: str, sightings: Sequence[_Sighting]) -> Incident:
        store, first, last = self.snapshot.store.url, sightings[0], sightings[-1]
        finding = None
        try:
            finding = self._sightings.first_finding(self.snapshot, rule, first.step)
        except DamagedStore as exc:
            self._sightings.damaged.append(exc.message)
        summary = _summary_of_rule(rule, first.step, finding)
        incident_kind = IncidentKind.DIVERGENCE if kind == "divergence" else IncidentKind.RULE
        ranks = tuple(sorted({rank for sighting in sightings for rank in sighting.ranks}))
        if finding is None:  # what is not known of it is empty
            rank = next(iter(ranks), None)
            finding = Finding(rule, first.severity, rank, first.step, -1, "", "", math.nan, math.nan, "")
        incident = Incident(
            id=incident_id(store, incident_kind, first.step, rule),
            kind=incident_kind,
            severity=_worst_of(sightings),
            store=store,
            host=self._host(finding.rank, first.step),
            rank=finding.rank,
            first_step=first.step if finding.since is None else min(first.step, finding.since),
            last_step=last.step,
            steps=len(sightings),
            ranks=ranks,
            cause=finding.cause,
            level=finding.level,
            graph=finding.graph,
            tensor=finding.name,
            summary=summary,
            tensors=sum(sighting.count for sighting in sightings),
            rules={rule: sum(sighting.count for sighting in sightings)},
        )
        return self._with_cause(incident) if kind == "divergence" else incident

    def _with_cause(self, incident: Incident) -> Incident:
        """Return an incident of replicas that part with why they do, as far as `divergence` shows it."""
        steps = [step for step in self.snapshot.steps if step <= incident.first_step][-1 - AGREED_BEFORE :]
        try:
            answer = divergence(self.snapshot.store, step=steps, include_partial=True)
            if not answer.broken and self._trains_apart(incident):
                summary = f"ranks train apart in step {incident.first_step}, and meet again, as in local SGD"
                return replace(incident, severity=SEVERITIES[0], cause="", level="shown", summary=summary)
        except (DamagedStore, StepRemoved, UsageError):
            return incident
        for known in answer.misplaced[:1]:
            return replace(
                incident,
                first_step=known.step,
                steps=incident.steps + (known.step < incident.first_step),
                ranks=known.ranks,
                rank=known.ranks[0] if len(known.ranks) == 1 else None,
                cause="" if known.level == "open" else known.kind,
                level=known.level,
                graph="",
                tensor=known.name,
                summary=f"{known}: {known.text}",
            )
        for broken in answer.broken[:1]:
            return replace(
                incident,
                first_step=broken.step,
                ranks=broken.ranks,
                rank=broken.ranks[0] if broken.has_majority and len(broken.ranks) == 1 else None,
                tensor="",
                op_type=broken.op_type,
                op_name=broken.op_name,
                summary=f"{broken.op_type}.{broken.op_name} broke in step {broken.step} on "
                f"{named_ranges('rank', broken.ranks)}: its inputs are equal, its outputs are not",
            )
        for odd in answer.odd[:1]:
            if odd.cause and odd.first_step == incident.first_step:
                return replace(
                    incident,
                    ranks=odd.ranks,
                    rank=odd.ranks[0] if odd.has_majority and len(odd.ranks) == 1 else None,
                    cause=odd.cause,
                    level=odd.level,
                    tensor=odd.first.name,
                    summary=f"{odd.cause} in step {odd.first_step} on {named_ranges('rank', odd.ranks)}: "
                    f"{odd.first.name}: {odd.evidence}",
                )
        return incident

    def _trains_apart(self, incident: Incident) -> bool:
        """Return whether the steps of an incident are those between two meetings of all parameters."""
        steps = [
            step
            for step in self.snapshot.steps
            if incident.first_step - AGREED_BEFORE <= step <= incident.last_step + _MEETING
        ]
        answer = divergence(self.snapshot.store, step=steps, include_partial=True, layout=False)
        return incident.first_step in answer.apart

    def _of_infinity(self, run: Sequence[int]) -> Incident:
        """Return the incident of steps with NaN or Inf about which the search for an origin did not end.

        Such infinity is harmless: what read it gave finite numbers. So are NaN and Inf in memory of which
        nothing was made. It is not if a step could not be read.
        """
        rules = self._rules_in(run, lambda kind: kind == _NOT_FINITE)
        by_rule = self._not_finite()
        firsts = [rule for rule in rules if run[0] in by_rule[rule]]
        incident = self._of_rule(firsts[0], _NOT_FINITE, [by_rule[firsts[0]][run[0]]])
        summaries = [opened.commit.summary for step in run for opened in self.snapshot.of_step(step).values()]
        has_nan = any(summary.nan_tensors for summary in summaries)
        kind = IncidentKind.NAN if has_nan else IncidentKind.INF
        left_out = [left for left in self._bad.left_out if left.key.step in run]
        is_unread = run[0] in self._bad.unread
        if (has_nan and not is_unread) or left_out:
            severity = _worst_of(
                by_rule[rule][step] for rule in rules for step in run if step in by_rule[rule]
            )
            why = ": ".join(["where it began is not known", *map(str, left_out[:1])])
        else:
            severity = SEVERITIES[0]
            why = "harmless, for what read it gave finite numbers"
            if is_unread:
                why = "not an incident: gradients and what was computed last are finite"
        return replace(
            incident,
            id=incident_id(incident.store, kind, run[0], _NOT_FINITE),
            kind=kind,
            severity=severity,
            last_step=run[-1],
            steps=len(run),
            ranks=tuple(sorted({totals.key.rank for totals in summaries if totals.anomalous_tensors})),
            summary=f"{incident.summary}; {why}",
            tensors=sum(totals.anomalous_tensors for totals in summaries),
            rules=rules,
        )

    def _rules_in(self, steps: Iterable[int], is_chosen: Callable[[str], bool]) -> dict[str, int]:
        chosen, counts = set(steps), Counter[str]()
        for rule, by_step in self._sightings.by_rule.items():
            if is_chosen(self._sightings.kinds[rule]):
                counts[rule] += sum(sighting.count for step, sighting in by_step.items() if step in chosen)
        return {rule: count for rule, count in counts.most_common() if count}

    def _runs(self, steps: Iterable[int]) -> Iterator[list[int]]:
        for is_chosen, run in groupby(self.snapshot.steps, set(steps).__contains__):
            if is_chosen:
                yield list(run)

    def _host(self, rank: int | None, step: int) -> str:
        opened = self.snapshot.step(rank, step) if rank is not None else None
        return opened.commit.record.source.host if opened is not None else ""


def _by_cause(found: Iterable[Incident]) -> list[Incident]:
    """Count under an incident what follows from it: symptoms at its time or just after, the cause again.

    A symptom is an incident of a rule without a cause. What replicas say stands for itself.
    """
    kept: list[Incident] = []
    for incident in sorted(found, key=lambda incident: (incident.first_step, not incident.cause)):
        place = next((place for place, first in enumerate(kept) if _follows(incident, first)), None)
        if place is None:
            kept.append(incident)
        else:
            first = kept[place]
            rules = Counter(first.rules) + Counter(incident.rules)
            kept[place] = replace(first, rules=dict(rules.most_common()))
            if incident.cause or not first.cause:  # it goes on; of a cause, what follows does not prolong it
                kept[place] = replace(
                    kept[place],
                    last_step=max(first.last_step, incident.last_step),
                    steps=first.steps + incident.steps,
                    tensors=first.tensors + incident.tensors,
                )
    return kept


def _follows(incident: Incident, first: Incident) -> bool:
    if {incident.kind, first.kind} != {IncidentKind.RULE} or {*incident.ranks}.isdisjoint(first.ranks):
        return False
    if incident.cause:
        return incident.cause == first.cause
    is_milder = SEVERITIES.index(incident.severity) <= SEVERITIES.index(first.severity)
    return is_milder and incident.first_step <= first.last_step + 1


def _summary_of_origin(answer: OriginAnswer) -> str:
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


def _summary_of_rule(rule: str, step: int, finding: Finding | None) -> str:
    if finding is None:
        return f"{rule} in step {step}"
    # What is missing says on which ranks: the finding is about one that has it.
    is_told = finding.rank is None or rule == "missing"
    where = "" if is_told else f" on rank {finding.rank}"
    name = f"{finding.name}: " if finding.name else ""
    return f"{rule}{where}, step {step}: {name}{finding.reason}".rstrip(".")


def _findings(store: Catalog, chosen: Any, **given: Any) -> Anomalies:
    return anomalies(store, **({} if chosen is True else {"rule": chosen}) | given)


_CHOICES = frozenset({"rank", "step", "severity"})
QUESTION = Question(
    incidents,
    (
        "anomalies run.zarr",
        "anomalies run.zarr --id 70c5417a96269594",
        "anomalies run.zarr --findings --severity critical --rank 3 --json",
    ),
    noun="incident",
    is_listing=True,
    modes=(
        Mode(
            "findings",
            Option("List every finding of every rule instead of incidents."),
            default=False,
            ask=_findings,
            takes=_CHOICES | {"rule"},
        ),
        Mode(
            "rule",
            Option(
                "Only this rule, or the rules that match a glob; may be repeated.", "NAME", is_several=True
            ),
            default=None,
            ask=_findings,
            takes=_CHOICES,
        ),
    ),
)
