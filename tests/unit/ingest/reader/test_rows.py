"""Rows of `ls --json`: plain values, under documented names."""

import json
from pathlib import Path

import numpy as np

from ingest.api import open_store
from ingest.reader.rows import file_rows, overflow_rows, step_row, summary_row
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly


def test_step_has_totals_and_source(nan_log: Path) -> None:
    step = open_store(nan_log).step(1, 2)
    row = step_row(step)
    assert json.loads(json.dumps(row)) == row
    assert (row["rank"], row["step"], row["status"]) == (1, 2, "complete")
    assert (row["tensors"], row["nan_count"], row["findings"]) == (243, 7, 0)
    assert (row["generations"], row["host"], row["has_tensors"]) == (1, "test-host", True)
    assert summary_row(step.commit.summary).items() <= row.items()
    assert not {"key", "severities", "failed_rules", "first_findings"} & row.keys()


def test_files_are_what_is_not_a_tensor(nan_log: Path, dumps: DumpLibrary) -> None:
    rows = list(file_rows(open_store(nan_log).step(0, None), problems=False))
    dump = dumps["nan-log-2rank"] / "dump"
    assert {row["kind"] for row in rows} == {"file"}
    assert {row["source"]: row["nbytes"] for row in rows} == {
        row["source"]: (dump / row["source"]).stat().st_size for row in rows
    }
    assert any(row["source"].endswith(".ir") for row in rows)
    assert all(len(row["digest"]) == 32 for row in rows)


def test_problems_are_what_is_quarantined_and_what_was_skipped(made: MadeDump, store: Path) -> None:
    made.add(np.zeros(3), tensor_name("A.a"))
    bad = made.add(b"not an npy file", tensor_name("B.b"))
    link = bad.with_name("link.npy")
    link.symlink_to(bad)
    ingest_directly(made.root, store)
    step = open_store(store).step(0, 0)
    skipped, quarantined = file_rows(step, problems=True)
    assert step_row(step)["problems"] == 2
    assert (skipped["kind"], skipped["source"], skipped["digest"]) == (
        "skipped", str(link.relative_to(made.root)), "",
    )  # fmt: skip
    assert (quarantined["kind"], quarantined["source"]) == ("quarantined", str(bad.relative_to(made.root)))
    assert skipped["problem"]
    assert quarantined["problem"]


def test_overflow_records_name_operator_and_place(dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps["cann-bin-synthetic"] / "torchair", store)
    rows = [row for step in open_store(store).select() for row in overflow_rows(step)]
    assert rows
    assert {"rank", "step", "op_type", "op_name", "stream", "task", "unit", "source", "record"} <= rows[
        0
    ].keys()
