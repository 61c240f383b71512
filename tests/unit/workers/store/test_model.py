"""Values of the store: grids, the order of findings, and what makes a step anomalous."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import (
    ArraySpec,
    CommitSummary,
    Finding,
    Totals,
    rank_named,
    slot_name,
    step_named,
    tensor_name,
)

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


def test_name_is_operator_and_slot() -> None:
    assert tensor_name("MatMul", "net-op0", "output", 1) == "MatMul.net-op0.output.1"
    assert slot_name("output", 1) == "output.1"


def test_repeated_dumps_are_numbered() -> None:
    assert tensor_name("MatMul", "net-op0", "input", 0, 2) == "MatMul.net-op0.input.0#2"
    assert slot_name("input", 0, 2) == "input.0#2"


def test_axis_of_tensors_has_the_same_names() -> None:
    key = TensorKey("net", "0", "Add", "a", "input", 3, 1)
    assert key.name == tensor_name(key.op_type, key.op_name, key.io, key.slot, key.occurrence)


@pytest.mark.parametrize("number", [0, 7, 10, 999_999_999_999_999_999])
def test_the_names_of_groups_are_read_as_they_are_spelled(number: int) -> None:
    rank, step = StepKey(number, number).path.split("/")
    assert (rank_named(rank), step_named(step)) == (number, number)


@pytest.mark.parametrize("number", ["", "01", "-1", "1 ", "1\n", "\u0663", "1_0", "9" * 19])
def test_no_other_name_stands_for_a_number(number: str) -> None:
    assert rank_named(f"rank_{number}") is step_named(f"step_{number}") is None
