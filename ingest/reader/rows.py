"""Flat rows of plain values: the documented contract of what `ls --json` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import DamagedStore
from workers.store.model import CommitSummary, RowKind

if TYPE_CHECKING:
    from ingest.reader.step import Step

#: Fields of `CommitSummary` that are not part of the contract.
_NOT_SHOWN = ("key", "severities", "failed_rules", "first_findings")


def summary_row(summary: CommitSummary) -> dict[str, Any]:
    """Return the totals of one committed step."""
    totals = asdict(summary)
    for name in _NOT_SHOWN:
        del totals[name]
    # One number: `dump-ingest anomalies` shows what each rule found.
    totals["findings"] = sum(summary.findings.values())
    key = summary.key
    totals["problems"] = summary.problems
    return {"rank": key.rank, "step": key.step, "fingerprint": summary.fingerprint, **totals}


#: The fields of `step_row`, in order.
STEP_FIELDS = (
    "rank",
    "step",
    "fingerprint",
    *(
        part.name
        for part in fields(CommitSummary)
        if part.name not in _NOT_SHOWN and part.name != "fingerprint"
    ),
    "problems",
    "committed_at",
    "layout",
    "host",
    "root",
    "rank_from",
    "generations",
    "has_tensors",
    "coordinates",
)


def step_row(step: Step) -> dict[str, Any]:
    """Return one committed step: its totals, its source, and when it was committed."""
    record = step.commit.record
    return {
        **summary_row(step.commit.summary),
        "committed_at": record.committed_at,
        "layout": record.source.layout,
        "host": record.source.host,
        "root": record.source.root,
        "rank_from": record.source.rank_from,
        "generations": len(record.generations),
        "has_tensors": step.has_tensors,
        "coordinates": _coordinates(step),
    }


def _coordinates(step: Step) -> dict[str, list[int | None]]:
    """Return the rank and the size along each axis of the mesh; empty if nothing is known."""
    rank = step.key.rank
    places = {} if step.catalog is None else step.catalog.coordinates(rank)[rank]
    return {axis: [*place] for axis, place in places.items()}


def file_rows(step: Step, *, problems: bool) -> Iterator[dict[str, Any]]:
    """Yield the files of a step that are not tensors; with `problems`, the rows that have a problem instead.

    The index does not have what was skipped, such as symbolic links. With `problems`, these are yielded as
    well, with the kind `skipped`.
    """
    table = step.tables
    if problems:
        yield from _skipped(step)
    kinds, reasons = table.label("kind"), table.label("problem")
    is_tensor = np.isin(kinds, (RowKind.TENSOR.value, RowKind.STATISTICS.value))
    for row in np.flatnonzero((reasons != "") if problems else ~is_tensor):
        yield {
            "rank": step.key.rank,
            "step": step.key.step,
            "source": str(table.label("source")[row]),
            "kind": str(kinds[row]),
            "nbytes": int(table.number("nbytes")[row]),
            "digest": table.digest[row].tobytes().hex(),
            "problem": str(reasons[row]),
        }


def overflow_rows(step: Step) -> Iterator[dict[str, Any]]:
    """Yield each overflow that the hardware recorded in a step, with the operator in which it happened.

    Raises:
        DamagedStore: the index, or a record in it, is damaged.
    """
    table = step.tables
    for row in np.flatnonzero(table.label("kind") == RowKind.OVERFLOW.value):
        try:
            record = json.loads(str(table.label("record")[row]))
        except ValueError as exc:
            raise DamagedStore(f"{step.key}: the overflow record of row {row} is damaged") from exc
        for failed in record["failed"]:
            yield {
                "rank": step.key.rank,
                "step": step.key.step,
                **failed,
                "source": str(table.label("source")[row]),
                "record": record["record"],
            }


def _skipped(step: Step) -> Iterator[dict[str, Any]]:
    """Yield the problems in the commit record that no row of the index has."""
    table = step.tables
    indexed = {
        f"{source}: {problem}"
        for source, problem in zip(table.label("source"), table.label("problem"), strict=True)
    }
    for problem in step.commit.record.problems:
        source, colon, reason = problem.partition(": ")
        if colon and problem not in indexed:
            yield {
                "rank": step.key.rank,
                "step": step.key.step,
                "source": source,
                "kind": "skipped",
                "nbytes": 0,
                "digest": "",
                "problem": reason,
            }
