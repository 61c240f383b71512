"""Rows of the index: what each file is, in order of execution."""

import json
import os
from pathlib import Path

import numpy as np

from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import PlannedRow, plan_rows
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all
from workers.rules.schema import load_rules
from workers.store.model import RowKind


def test_dumps_of_one_operator_are_numbered_in_order_of_time(made: MadeDump, tmp_path: Path) -> None:
    """A `while` loop dumps its operators again and again; only the timestamp tells which came first."""
    files = [tensor_name("Less.loop", time=time) for time in (30, 4, 200)]
    for file in files:
        made.add(b"", file)
    made.add(b"", tensor_name("Less.loop", slot=1, time=100))
    (plan,) = plan_all(made.root, tmp_path / "run.zarr")
    names = {entry.source.path.rsplit("/", 1)[-1]: entry.name for entry in plan.entries}
    assert [names[file].occurrence for file in files] == [1, 0, 2]


def rows_of(made: MadeDump) -> list[PlannedRow]:
    (listing,) = find_dump(made.root).scan({}).listings
    return plan_rows(inspect(made.root, listing, find_dump(made.root).describe(listing)))


def test_reported_statistics_join_their_tensor_or_become_a_row(made: MadeDump) -> None:
    header = b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value\n"
    made.add(np.full(3, 2.5, "<f4"), "Add.a.0.0.17.output.0.DefaultFormat.npy")
    lines = (b"Add,a,0,0,17,output,0,12,float32,(3),2.5,\n", b"Mul,b,0,0,18,input,1,12,float32,(3),7.5,\n")
    made.add(header + b"".join(lines).replace(b"(3)", b'"(3)"'), "statistic.csv")
    rows = [row for row in rows_of(made) if row.reported is not None]
    assert [(row.entry.kind, row.entry.name.op_name) for row in rows] == [
        (RowKind.TENSOR, "a"),
        (RowKind.STATISTICS, "b"),
    ]
    assert [row.reported.statistics.max for row in rows if row.reported] == [2.5, 7.5]


def test_overflow_record_names_the_operator_with_its_stream_and_task(made: MadeDump) -> None:
    made.add(np.zeros(2), "Mul.b.3.2.17.output.0.DefaultFormat.npy")
    record = {"AI Core": {"model_id": 1, "stream_id": 2, "task_id": 3, "status": 8}}
    made.add(json.dumps(record).encode(), "Opdebug.Node_OpDebug.9.9.18.output.0.json")
    (row,) = [row for row in rows_of(made) if row.entry.kind is RowKind.OVERFLOW]
    (failed,) = json.loads(row.entry.record)["failed"]
    assert (failed["op_type"], failed["op_name"], failed["task"]) == ("Mul", "b", 3)


def test_step_is_committed_although_an_operator_that_overflowed_is_not_named_in_utf_8(
    made: MadeDump, store: Path
) -> None:
    made.add(np.zeros(2), os.fsdecode(b"Mul.b\xff.3.2.17.output.0.DefaultFormat.npy"))
    record = {"AI Core": {"model_id": 1, "stream_id": 2, "task_id": 3, "status": 8}}
    made.add(json.dumps(record).encode(), "Opdebug.Node_OpDebug.9.9.18.output.0.json")
    (summary,) = ingest_directly(made.root, store, rules=load_rules(None).enabled)
    (finding,) = (finding for finding in summary.first_findings if finding.rule == "overflow_record")
    assert finding.reason.endswith("in Mul.b%FF")
