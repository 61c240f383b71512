"""What `ingest --after-commit delete` prints of the dump."""

import pytest

from ingest.cli.ingest_report import _say_problems, say_sources, sources_row
from ingest.dump_retention.policy import SourceDeleted
from ingest.layouts.base import Problem
from ingest.service.one_shot import Report
from ingest.steps.events import SourceKept
from ingest.steps.keeping import KeepReason
from workers.model import StepKey

REPORT = Report(
    deleted=[SourceDeleted(StepKey(0, step), 2, 1024, 0.1) for step in (1, 2)],
    source_kept=[
        SourceKept(StepKey(0, 3), KeepReason.NEWEST, 2, "one of the newest 1"),
        SourceKept(StepKey(0, 4), KeepReason.CHANGED, 1, "a.npy changed"),
        SourceKept(StepKey(1, 4), KeepReason.CHANGED, 1, "b.npy changed"),
    ],
)


def test_deleted_files_are_counted_and_reasons_to_stay_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    say_sources(REPORT, dry_run=False)
    assert capsys.readouterr().err.splitlines() == [
        "Deleted 4 dump files (2.0 KiB) of 2 steps; the store has every byte.",
        "stays: 2 files of 1 step: the newest of their rank (--keep-last)",
        "stays: 2 files of 2 steps: changed while they were read back; rank 0 step 4: a.npy changed",
    ]


def test_a_line_break_in_a_name_begins_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It would look like something that this program says."""
    name = "x\nDeleted 4 dump files"
    kept = SourceKept(StepKey(0, 4), KeepReason.CHANGED, 1, f"{name} changed")
    say_sources(Report(source_kept=[kept]), dry_run=False)
    _say_problems(Report(problems=(Problem(name, "is a symbolic link"),)))
    lines = capsys.readouterr().err.splitlines()
    assert [line[:6] for line in lines] == ["Delete", "stays:", "proble"]
    assert "x\\nDeleted" in lines[1]


def test_json_has_each_step() -> None:
    row = sources_row(REPORT, dry_run=True)
    assert row["dry_run"]
    assert [(deleted["step"], deleted["bytes"]) for deleted in row["deleted"]] == [(1, 1024), (2, 1024)]
    assert [kept["reason"] for kept in row["kept"]] == ["newest", "changed", "changed"]
