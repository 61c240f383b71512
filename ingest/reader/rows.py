"""Flat rows of plain values: what `--json` prints, and the documented contract of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from ingest.reader.step import Step
from workers.errors import DamagedStore
from workers.store.model import CommitSummary, RowKind


def summary_row(summary: CommitSummary) -> dict[str, Any]:
    """Return the totals of one committed step."""
    fields = asdict(summary)
    for name in ("key", "fingerprint", "severities", "failed_rules", "first_findings"):
        del fields[name]
    # Flat: what each rule found is the answer of `dump-ingest anomalies`.
    fields["findings"] = sum(summary.findings.values())
    key = summary.key
    return {"rank": key.rank, "step": key.step, "fingerprint": summary.fingerprint, **fields}


def step_row(step: Step) -> dict[str, Any]:
    """Return one committed step: its totals, and where and when it comes from."""
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
    }


def file_rows(step: Step, *, problems: bool) -> Iterator[dict[str, Any]]:
    """Yield what is no tensor in a step; with `problems`, only what something is wrong with.

    What was not taken, such as a symbolic link, is not in the index: here it is of kind `skipped`.
    """
    table = step.tables
    if problems:
        yield from _skipped(step)
    kinds, wrong = table.label("kind"), table.label("problem")
    mask = (wrong != "") if problems else ~np.isin(kinds, (RowKind.TENSOR.value, RowKind.STATISTICS.value))
    for row in np.flatnonzero(mask):
        yield {
            "rank": step.key.rank,
            "step": step.key.step,
            "source": str(table.label("source")[row]),
            "kind": str(kinds[row]),
            "nbytes": int(table.number("nbytes")[row]),
            "digest": table.digest[row].tobytes().hex(),
            "problem": str(wrong[row]),
        }


def overflow_rows(step: Step) -> Iterator[dict[str, Any]]:
    """Yield each overflow that the hardware recorded in a step, with the operator it happened in."""
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
