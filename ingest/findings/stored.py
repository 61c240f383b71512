"""Findings as they are in a store: those of a commit, and those of several steps or ranks.

    findings/zarr.json                                  a group
    findings/{step}.{generation}.{rules}/zarr.json      a group without members, written once

The attributes of the latter are what the set `{rules}` found in a step of which all ranks together have this
`{generation}`. So it is one object, and plain Zarr. It is no part of the consolidated view, and stays when
that is made anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import xxhash

from ingest.findings.series import StepFindings
from workers.rules.values import RuleSet
from workers.store import metadata
from workers.store.model import SEVERITIES, Finding
from workers.store.objects import ObjectStore

SERIES = "findings"
_LEAF = "zarr.json"
_AT_ONCE = 256


def generation_of(fingerprints: Mapping[int, str]) -> str:
    """Return a name for what all ranks together have of a step: 16 hexadecimal digits."""
    text = "\n".join(f"{rank} {fingerprints[rank]}" for rank in sorted(fingerprints))
    return xxhash.xxh3_64_hexdigest(text.encode())


@dataclass(frozen=True, slots=True)
class SeriesDocument:
    """What was written of one step."""

    step: int
    generation: str
    rules: str
    evaluated_at: str
    findings: tuple[Finding, ...]
    totals: Mapping[str, int]
    failed: Mapping[str, str]
    not_evaluated: tuple[str, ...]


def known_series(objects: ObjectStore) -> dict[tuple[int, str], list[str]]:
    """Return the documents that there are, by step and generation: the sets of rules that wrote them."""
    known: dict[tuple[int, str], list[str]] = {}
    for name in objects.children(SERIES):
        step, *rest = name.split(".")
        if step.isdecimal() and len(rest) == 2:
            known.setdefault((int(step), rest[0]), []).append(rest[1])
    return known


def write_series(
    objects: ObjectStore, rules: RuleSet, one: StepFindings, fingerprints: Mapping[int, str]
) -> None:
    """Write what was found in a step; never again for the same generation and rules."""
    found = one.found
    document = {
        "format_version": metadata.FORMAT_VERSION,
        "step": one.step,
        "evaluated_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "rules": {rule.name: rule.to_dict() for rule in rules.of_series if rule.name in found.totals},
        "fingerprints": {str(rank): name for rank, name in sorted(fingerprints.items())},
        "totals": dict(found.totals),
        "failed": dict(found.failed),
        "not_evaluated": list(one.not_evaluated),
        "findings": [{name: _plain(value) for name, value in f.to_dict().items()} for f in found.findings],
    }
    name = f"{SERIES}/{one.step}.{generation_of(fingerprints)}.{rules.digest}"
    objects.put(f"{name}/{_LEAF}", metadata.encode(metadata.group({metadata.ATTRIBUTE: document})))


def ensure_group(objects: ObjectStore) -> None:
    """Make the group that the documents are in, where there is none."""
    if objects.get(f"{SERIES}/{_LEAF}") is None:
        objects.put(f"{SERIES}/{_LEAF}", metadata.encode(metadata.group()))


def read_series(
    objects: ObjectStore, steps: Iterable[int] | None, damages: list[str]
) -> dict[int, SeriesDocument]:
    """Return what was found in each of these steps, or all; of several documents the last one counts.

    What is damaged is noted in `damages`.
    """
    wanted = None if steps is None else set(steps)
    names = [
        (step, generation, rules)
        for (step, generation), sets in known_series(objects).items()
        for rules in sets
        if wanted is None or step in wanted
    ]
    found: dict[int, SeriesDocument] = {}
    for start in range(0, len(names), _AT_ONCE):
        keys = {
            f"{SERIES}/{'.'.join(map(str, name))}/{_LEAF}": name for name in names[start : start + _AT_ONCE]
        }
        for key, data in objects.get_many(list(keys)).items():
            try:
                one = _parsed(data, *keys[key])
            except (ValueError, KeyError, TypeError, AttributeError) as exc:
                damages.append(f"{key}: damaged ({exc!r:.100})")
                continue
            if one.step not in found or found[one.step].evaluated_at < one.evaluated_at:
                found[one.step] = one
    return found


def _parsed(data: bytes, step: int, generation: str, rules: str) -> SeriesDocument:
    document = json.loads(data)["attributes"][metadata.ATTRIBUTE]
    rows = []
    for row in document["findings"]:
        if row["severity"] not in SEVERITIES:
            message = f"{row['severity']!r} is no severity"
            raise ValueError(message)
        rows.append(
            Finding(
                str(row["rule"]),
                str(row["severity"]),
                None if row["rank"] is None else int(row["rank"]),
                step,
                int(row["row"]),
                str(row["graph"]),
                str(row["name"]),
                _number(row["value"]),
                _number(row["threshold"]),
                str(row["reason"]),
            )
        )
    return SeriesDocument(
        step,
        generation,
        rules,
        str(document["evaluated_at"]),
        tuple(rows),
        {str(rule): int(count) for rule, count in document["totals"].items()},
        {str(rule): str(reason) for rule, reason in document["failed"].items()},
        tuple(str(one) for one in document["not_evaluated"]),
    )


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
