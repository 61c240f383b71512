"""Values of the store: grids, the order of findings, and what makes a step anomalous."""

import math
import pickle
from dataclasses import fields, replace
from typing import Any

import pytest

from workers.model import StepKey
from workers.store.model import ArraySpec, CommitSummary, Evaluated, Finding, RowKind, Totals

#: The counters of `Totals`, all zero.
COUNTERS: dict[str, Any] = {item.name: 0 for item in fields(Totals) if item.default is item.default_factory}
SUMMARY = CommitSummary(**{**COUNTERS, "key": StepKey(0, 1), "fingerprint": "abc", "status": "complete"})


def finding(
    severity: str = "info", rank: int | None = 0, step: int = 1, row: int = 0, rule: str = "a"
) -> Finding:
    return Finding(rule, severity, rank, step, row, "0", "name", math.nan, 0.0, "reason")


def test_a_grid_counts_in_elements_and_bytes() -> None:
    spec = ArraySpec("tensors/float64", "float64", 8, big_endian=False, chunk=10, chunks_per_shard=3)
    assert (spec.chunk_nbytes, spec.shard, spec.shard_nbytes) == (80, 30, 240)
    assert [spec.shards_for(nbytes) for nbytes in (0, 1, 240, 241)] == [0, 1, 1, 2]


def test_kinds_of_rows_are_their_text() -> None:
    assert [str(kind) for kind in RowKind] == [
        *("tensor", "statistics", "overflow", "file", "part", "quarantined")
    ]


def test_the_worst_and_earliest_findings_come_first() -> None:
    ordered = [
        finding("critical", step=9),
        finding("warning", rank=None),
        finding("warning"),
        finding("warning", row=2, rule="a"),
        finding("warning", row=2, rule="b"),
        finding("warning", rank=1),
        finding("info", step=0),
    ]
    backwards = ordered[::-1]
    assert sorted(backwards, key=lambda item: item.order) == ordered


def test_a_finding_is_pickled_by_position_and_flat() -> None:
    data = pickle.dumps(finding())
    assert b"threshold" not in data
    assert list(finding().to_dict()) == [
        "rule",
        "severity",
        "rank",
        "step",
        "row",
        "graph",
        "name",
        "value",
        "threshold",
        "reason",
    ]


def test_severities_are_those_of_the_rules_that_found_something() -> None:
    evaluated = Evaluated("0", (finding("critical", rule="b"), finding(rule="a"), finding(rule="a", row=1)))
    assert evaluated.severities == {"b": "critical", "a": "info"}


@pytest.mark.parametrize(
    ("totals", "is_anomalous"),
    [
        ({}, False),
        ({"quarantined": 3, "disagreements": 1}, False),
        ({"anomalous_tensors": 1}, True),
        ({"overflows": 1}, True),
        ({"findings": {"a": 2}, "severities": {"a": "info"}}, False),
        ({"findings": {"a": 2}, "severities": {"a": "warning"}}, True),
        ({"findings": {"a": 0}, "severities": {"a": "critical"}}, False),
        ({"findings": {"a": 2}, "severities": {}}, False),
    ],
)
def test_a_step_with_bad_numbers_or_findings_is_anomalous(
    totals: dict[str, Any], *, is_anomalous: bool
) -> None:
    assert replace(SUMMARY, **totals).is_anomalous is is_anomalous


def test_findings_are_added_up_by_severity() -> None:
    summary = replace(
        SUMMARY, findings={"a": 2, "b": 3, "c": 4}, severities={"a": "info", "b": "critical", "c": "info"}
    )
    assert summary.findings_by_severity == {"info": 6, "critical": 3}


def test_summaries_differ_by_their_totals_and_not_by_what_is_shown_of_findings() -> None:
    assert replace(SUMMARY, first_findings=(finding(),)) == SUMMARY
    assert replace(SUMMARY, tensors=1) != SUMMARY
    assert replace(SUMMARY, fingerprint="def") != SUMMARY
