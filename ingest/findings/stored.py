"""Findings over several steps or ranks: how they are in a store, and their only writer; the list of all.

    findings/zarr.json                                  a group
    findings/{step}.{generation}.{rules}/zarr.json      a group without members, written once

The attributes of the latter are what the rule set `{rules}` found in a step, of which all ranks together
have this `{generation}`. So it is one object, and plain Zarr. It is not part of the cubes, and stays when
these are rebuilt.

A step is evaluated once for each generation of it. Stored findings stay when the rules change; changed rules
apply to later steps. `dump-ingest rules test` says what they would have found before.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

import msgspec
import xxhash

from ingest.findings.series import SeriesRules, StepFindings
from ingest.findings.severities import BySeverity, Severity, at_least
from ingest.questions.question import Part, Table
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice, as_names, named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of
from ingest.reader.text import counted
from workers.errors import DamagedStore
from workers.events import Event
from workers.model import StepKey, grouped
from workers.rules.values import RuleSet
from workers.store import metadata
from workers.store.commit import read_tombstones
from workers.store.model import SEVERITIES, Finding
from workers.store.objects import ObjectStore
from workers.store.record import LEAF
from workers.store.strict_json import finite_or_none

SERIES = "findings"
_AT_ONCE = 256
#: What a document raises that is not one of these.
_DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    msgspec.ValidationError,
)

#: Step, generation and rule set.
_Name: TypeAlias = tuple[int, str, str]


def generation_of(fingerprints: Mapping[int, str]) -> str:
    """Return a name for what all ranks together have of a step: 16 hexadecimal digits."""
    text = "\n".join(f"{rank} {fingerprints[rank]}" for rank in sorted(fingerprints))
    return xxhash.xxh3_64_hexdigest(text.encode())


@dataclass(frozen=True, slots=True)
class SeriesDocument:
    """What was written about one step."""

    step: int
    evaluated_at: str
    findings: tuple[Finding, ...]
    totals: Mapping[str, int]
    failed: Mapping[str, str]
    not_evaluated: tuple[str, ...]
    fingerprints: Mapping[int, str] = field(default_factory=dict)
    """By rank, the generation that was evaluated."""
    kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def evaluated_at_s(self) -> float:
        """When it was written, as Unix time by the clock of the writer; 0 if that is not a time."""
        try:
            return datetime.fromisoformat(self.evaluated_at).timestamp()
        except ValueError:
            return 0.0


@dataclass(frozen=True, slots=True)
class SeriesRead(Event):
    """What rules over several steps or ranks had found in a step was read."""

    step: int
    findings: tuple[Finding, ...]
    found_at: float


def known_series(objects: ObjectStore) -> dict[tuple[int, str], list[str]]:
    """Return, by step and generation, the rule sets that wrote a document."""
    known: dict[tuple[int, str], list[str]] = {}
    for name in objects.children(SERIES):
        step, *rest = name.split(".")
        if step.isdecimal() and len(rest) == 2:
            known.setdefault((int(step), rest[0]), []).append(rest[1])
    return known


def _write_series(
    objects: ObjectStore, rules: RuleSet, step: StepFindings, fingerprints: Mapping[int, str]
) -> None:
    """Write what was found in a step; never again for the same generation and rules."""
    result = step.result
    document = {
        "format_version": metadata.FORMAT_VERSION,
        "step": step.step,
        "evaluated_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "rules": {rule.name: rule.to_dict() for rule in rules.series_rules if rule.name in result.totals},
        "fingerprints": {str(rank): name for rank, name in sorted(fingerprints.items())},
        "totals": dict(result.totals),
        "failed": dict(result.failed),
        "not_evaluated": list(step.not_evaluated),
        "findings": [finite_or_none(finding.to_dict()) for finding in result.findings],
    }
    name = f"{SERIES}/{step.step}.{generation_of(fingerprints)}.{rules.digest}"
    objects.put(f"{name}/{LEAF}", metadata.encode(metadata.group({metadata.ATTRIBUTE: document})))


def _ensure_group(objects: ObjectStore) -> None:
    if objects.get(f"{SERIES}/{LEAF}") is None:
        objects.put(f"{SERIES}/{LEAF}", metadata.encode(metadata.group()))


def read_series(
    objects: ObjectStore, steps: Iterable[int] | None, damages: list[str]
) -> dict[int, SeriesDocument]:
    """Read the findings of these steps, or of all; of several documents of a step the last one counts.

    Damaged documents are left out and named in `damages`.
    """
    wanted = None if steps is None else set(steps)
    names = [
        (step, generation, rules)
        for (step, generation), sets in known_series(objects).items()
        for rules in sets
        if wanted is None or step in wanted
    ]
    newest: dict[int, SeriesDocument] = {}
    for document in _documents(objects, names, damages):
        known = newest.get(document.step)
        if known is None or known.evaluated_at < document.evaluated_at:
            newest[document.step] = document
    return newest


def _documents(objects: ObjectStore, names: Sequence[_Name], damages: list[str]) -> Iterator[SeriesDocument]:
    for start in range(0, len(names), _AT_ONCE):
        keys = {
            f"{SERIES}/{'.'.join(map(str, name))}/{LEAF}": name for name in names[start : start + _AT_ONCE]
        }
        for key, data in objects.get_many(list(keys)).items():
            try:
                yield _parsed(data, *keys[key][:2])
            except _DAMAGE as exc:
                damages.append(f"{key}: damaged ({exc!r:.100})")


def _parsed(data: bytes, step: int, generation: str) -> SeriesDocument:
    document = json.loads(data)["attributes"][metadata.ATTRIBUTE]
    fingerprints = {int(rank): str(name) for rank, name in document["fingerprints"].items()}
    if (document["step"], generation_of(fingerprints)) != (step, generation):
        message = f"it is about another generation, or about step {document['step']}"
        raise ValueError(message)
    return SeriesDocument(
        step=step,
        evaluated_at=str(document["evaluated_at"]),
        findings=tuple(_finding(row, step) for row in document["findings"]),
        totals={str(rule): int(count) for rule, count in document["totals"].items()},
        failed={str(rule): str(reason) for rule, reason in document["failed"].items()},
        not_evaluated=tuple(map(str, document["not_evaluated"])),
        fingerprints=fingerprints,
        kinds={str(rule): str(definition["kind"]) for rule, definition in document["rules"].items()},
    )


def _finding(row: Mapping[str, Any], step: int) -> Finding:
    numbers = {name: math.nan if row[name] is None else row[name] for name in ("value", "threshold")}
    finding = msgspec.convert({**row, **numbers, "step": step}, Finding)
    if finding.severity not in SEVERITIES:
        message = f"{finding.severity!r} is not a severity"
        raise ValueError(message)
    return finding


#: How many steps are evaluated from one listing of the store. Listing takes longer the longer the run is.
_STEPS_OF_A_LISTING = 16


@dataclass(slots=True, eq=False)
class SeriesEvaluator:
    """The only writer of findings over several steps, as the consolidator is of the cubes.

    Memory: that of `SeriesRules`, and some hundred bytes for each step of the run.
    """

    objects: ObjectStore
    rules: RuleSet
    _series: SeriesRules | None = None
    _done: set[tuple[int, str]] | None = None

    def evaluate(
        self,
        generations: Mapping[int, Mapping[int, str]],
        *,
        limit: int = 0,
        keep: Callable[[], None] = lambda: None,
    ) -> Iterator[StepFindings]:
        """Evaluate the new steps, oldest first, and yield the findings of each once they are written.

        Args:
            generations: those of the cubes, by step and rank.
            limit: how many steps to evaluate now, leaving the rest for next time; 0 for all.
            keep: called before each step.

        Raises:
            StoreError: the store refused; the remaining steps are evaluated next time.
        """
        if not self.rules.series_rules:
            return
        names = {step: generation_of(ranks) for step, ranks in sorted(generations.items()) if ranks}
        if self._done is None:
            _ensure_group(self.objects)
            self._done = set(known_series(self.objects))
        new = [step for step, name in names.items() if (step, name) not in self._done]
        new = self._without_removed(new, generations)
        self._series = self._series or SeriesRules(self.rules)
        for number, step in enumerate(new[:limit] if limit else new):
            keep()
            if number % _STEPS_OF_A_LISTING == 0:
                catalog = Catalog(self.objects)
            before = {earlier: name for earlier, name in names.items() if earlier < step}
            findings = self._series.evaluate(catalog, step, before, names[step])
            _write_series(self.objects, self.rules, findings, generations[step])
            self._done.add((step, names[step]))
            yield findings

    def _absent_ranks(
        self, steps: Collection[int], generations: Mapping[int, Mapping[int, str]]
    ) -> dict[int, set[int]]:
        """Return the ranks that evaluated steps lack by now, if their other ranks are as they were."""
        evaluated = {
            step: document.fingerprints
            for step, document in read_series(self.objects, steps, []).items()
            if generations[step].items() <= document.fingerprints.items()
        }
        return {step: ranks.keys() - generations[step].keys() for step, ranks in evaluated.items()}

    def _without_removed(self, new: Sequence[int], generations: Mapping[int, Mapping[int, str]]) -> list[int]:
        """Return these steps without those whose generation is another one only because ranks were removed.

        Somebody removed these ranks on purpose, so their absence is not a finding.
        """
        changed = {step for step, _ in self._done or ()}.intersection(new)
        if not changed:
            return list(new)
        absent = self._absent_ranks(changed, generations)
        removed = {rank: read_tombstones(self.objects, rank) for rank in sorted({*chain(*absent.values())})}
        without = {step for step, ranks in absent.items() if all(step in removed[rank] for rank in ranks)}
        return [step for step in new if step not in without]


@dataclass(frozen=True, slots=True, repr=False)
class Anomalies(BySeverity):
    """Findings, and how far they can be trusted to be all."""

    noun: ClassVar = "finding"
    keys: ClassVar = Finding.__match_args__
    hidden: ClassVar = ("severities", "left_out")
    also: ClassVar = ("by_severity",)

    store: str
    findings: tuple[Finding, ...]
    """The worst first; of those, by step, rank and order of execution."""
    totals: Mapping[str, int]
    """By rule: how much was found, including what its limit kept from being stored."""
    severities: Mapping[str, str]
    """By the same rules; the worst of a rule whose severity was changed."""
    not_evaluated: tuple[str, ...]
    """Steps and rules about which nothing is known, and why: having no findings there means nothing."""
    damaged: tuple[str, ...] = ()
    """Those of them that are damaged in the store."""
    left_out: tuple[LeftOut, ...] = ()

    def totals_by_severity(self) -> Mapping[str, int]:
        """Return how much was found of each severity, also beyond what is stored."""
        counts: Counter[str] = Counter()
        for rule, count in self.totals.items():
            counts[self.severities[rule]] += count
        return counts

    def table(self) -> Table[Finding]:
        """Return a row for each finding."""
        return Table(
            {
                **{name: attrgetter(name) for name in ("severity", "rule", "rank", "step")},
                "name": lambda finding: finding.name or "-",
                "what": lambda finding: finding.reason,
            },
            self.findings,
        )

    def report(self) -> Iterator[Part]:
        """Yield the findings, and what is not known."""
        if self.findings:
            yield self.table()
        yield from self.unknown()


def _by_rule(
    totals: Mapping[tuple[str, str], int], names: Collection[str], severe: Collection[str]
) -> tuple[Counter[str], dict[str, str]]:
    of_rules, severities = Counter[str](), dict[str, str]()
    for name, severity in sorted(totals, key=lambda pair: SEVERITIES.index(pair[1])):
        if name in names and severity in severe:
            of_rules[name] += totals[name, severity]
            severities[name] = severity
    return of_rules, severities


def anomalies(
    store: Catalog,
    rank: Choice = None,
    step: Choice = None,
    *,
    rule: str | Sequence[str] | None = None,
    severity: Severity = None,
) -> Anomalies:
    """List the findings of rules, without reading any tensor.

    Memory: the findings, of which a rule stores no more than its limit for each step and rank.

    Args:
        store: the store, which is listed again.
        rank: one rank, or several; None for all. Findings about several ranks together are always included.
        step: one step, or several; None for all.
        rule: names or globs of rules.
        severity: the mildest to return: `info`, `warning` or `critical`.

    Raises:
        UsageError: a rank, a step or a rule does not exist, or the severity is not one of these.
    """
    severe, catalog = at_least(severity), store.reopened()
    damages: list[Damage] = []
    steps = [one for one in catalog.select(rank, step, damages=damages) if one.key.step is not None]
    known = _CollectedFindings([f"{damage.key}: {damage.reason}" for damage in damages])
    without_rules = [chosen.key for chosen in steps if not known.add_step(chosen)]
    numbers = sorted({chosen.key.step for chosen in steps if chosen.key.step is not None})
    documents = read_series(catalog.objects, numbers, known.damaged)
    ranks = None if rank is None else {chosen.key.rank for chosen in steps}
    for document in documents.values():
        known.add_document(document, ranks)
    without_series = [number for number in numbers if number not in documents]
    names = {name for name, _ in known.totals}
    if rule is not None:
        from workers.rules.schema import load_rules, rules_like  # deferred: pydantic takes 0.1 s

        names = rules_like(as_names(rule), sorted({*names, *(one.name for one in load_rules().rules)}))
    totals, severities = _by_rule(known.totals, names, severe)
    findings = [one for one in known.findings if one.rule in names and one.severity in severe]
    return Anomalies(
        store.url,
        tuple(sorted(findings, key=lambda finding: finding.order)),
        dict(totals.most_common()),
        severities,
        (*_describe_not_evaluated(without_rules, without_series), *known.failures, *known.damaged),
        tuple(known.damaged),
    )


@dataclass(slots=True)
class _CollectedFindings:
    damaged: list[str]
    findings: list[Finding] = field(default_factory=list)
    totals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By rule and severity, which may be another one in later steps."""
    failures: list[str] = field(default_factory=list)

    def add_step(self, step: Step) -> bool:
        """Add the findings of one step of one rank; return False if no rules were evaluated."""
        try:
            findings = findings_of(step)
        except DamagedStore as exc:
            self.damaged.append(exc.message)
            return True
        summary = step.commit.summary
        if findings is not None:
            self._add(findings, summary.findings)
            self.failures += [f"{step.key}: rule {name}: {why}" for name, why in summary.failed_rules.items()]
        return findings is not None

    def add_document(self, document: SeriesDocument, ranks: set[int] | None) -> None:
        where = f"step {document.step}"
        if ranks is None:
            self._add(document.findings, document.totals)
        else:
            chosen = of_ranks(document.findings, ranks)
            self._add(chosen, Counter(finding.rule for finding in chosen))
            self.failures += [
                f"{where}: rule {rule}: {describe_unknown_ranks(count)}"
                for rule, count in beyond_limits(document.findings, document.totals).items()
            ]
        self.failures += [f"{where}: rule {name}: {why}" for name, why in document.failed.items()]
        self.failures += [f"{step}; not compared" for step in document.not_evaluated]

    def _add(self, findings: Sequence[Finding], totals: Mapping[str, int]) -> None:
        severities = {finding.rule: finding.severity for finding in findings}
        self.findings += findings
        for rule in totals.keys() & severities.keys():
            self.totals[rule, severities[rule]] += totals[rule]


def of_ranks(findings: Iterable[Finding], ranks: Iterable[int]) -> tuple[Finding, ...]:
    """Return the findings about one of these ranks, and those about several ranks together."""
    chosen = set(ranks)
    return tuple(finding for finding in findings if finding.rank is None or finding.rank in chosen)


def beyond_limits(findings: Iterable[Finding], totals: Mapping[str, int]) -> dict[str, int]:
    """Return by rule how much it found that its limit kept from being stored; only rules with any."""
    return dict(Counter(totals) - Counter(finding.rule for finding in findings))


def describe_unknown_ranks(count: int) -> str:
    """Say that findings beyond a limit cannot be told by rank."""
    return f"{counted(count, 'further finding')} on any rank, of which only the number is known"


def _describe_not_evaluated(without_rules: Sequence[StepKey], without_series: Sequence[int]) -> list[str]:
    steps_of = grouped((key.rank, key.step or 0) for key in without_rules)
    ranks_of = grouped((tuple(steps), rank) for rank, steps in steps_of.items())
    lines = [
        f"{named_ranges('rank', ranks)}, {named_ranges('step', steps)}: "
        "no rules were evaluated when it was committed"
        for steps, ranks in ranks_of.items()
    ]
    if without_series:
        lines.append(
            f"{named_ranges('step', without_series)}: rules over several steps or ranks were not evaluated; "
            "`consolidate` does that"
        )
    return lines
