"""What `ingest` prints at its end, and how it exits."""

from dataclasses import replace
from pathlib import Path

import pytest
import typer

from ingest.cli.ingest_report import exit_as, print_report
from ingest.layouts.base import Problem
from ingest.service.one_shot import Report
from ingest.settings import Settings
from ingest.steps.difference import FilesNotTaken
from ingest.steps.events import DumpedAgain
from tests.cli import strict_json
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.errors import DamagedStore, DumpIngestError, StoreError, StoreUnavailable
from workers.model import StepKey
from workers.store.model import CommitSummary

SETTINGS = Settings(store="/my stores/run.zarr")


@pytest.fixture(scope="module")
def commits(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> list[CommitSummary]:
    """Three steps of two ranks and their run files; NaN in two of them."""
    return ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path_factory.mktemp("report") / "run.zarr")


def printed(report: Report, capsys: pytest.CaptureFixture[str], *, json: bool = False) -> tuple[str, str]:
    print_report(report, SETTINGS, 2.0, dry_run=False, json=json)
    output = capsys.readouterr()
    return output.out, output.err


def code_of(report: Report, *, interrupted: bool = False) -> int:
    try:
        exit_as(report, interrupted=interrupted)
    except typer.Exit as end:
        return end.exit_code
    return 0


def test_each_step_has_a_row_and_all_have_one(
    commits: list[CommitSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    table, messages = printed(Report(commits=commits), capsys)
    heading, *rows, total = [line.split() for line in table.splitlines()]
    assert heading[:5] == ["rank", "step", "status", "tensors", "files"]
    assert [row[:2] for row in rows] == [[r, s] for s in ("run", "1", "2", "3") for r in ("0", "1")]
    assert total[:5] == ["all", "3", "complete", "1458", "9"]
    assert messages.startswith("877.0 KiB in 2.0 s\n")
    assert "dump-ingest origin '/my stores/run.zarr'\n" in messages


def test_of_many_steps_those_with_something_wrong_are_listed(
    commits: list[CommitSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    quiet, wrong = commits[2], next(summary for summary in commits if summary.nan_count)
    many = [replace(quiet, key=StepKey(0, step)) for step in range(100)]
    table, _ = printed(Report(commits=[*many, replace(wrong, key=StepKey(0, 100))]), capsys)
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["0", "100"], ["100", "more"], ["all", "101"]]


def test_json_is_an_array_of_steps(commits: list[CommitSummary], capsys: pytest.CaptureFixture[str]) -> None:
    rows = strict_json(printed(Report(commits=commits[::-1]), capsys, json=True)[0])
    assert [(row["rank"], row["step"]) for row in rows] == [
        (rank, step) for step in (None, 1, 2, 3) for rank in (0, 1)
    ]


def test_problems_are_named_with_the_command_that_lists_them(
    commits: list[CommitSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    partial = replace(commits[2], status="partial", quarantined=2, unparsed=1, disagreements=1)
    _, messages = printed(
        Report(
            commits=[partial],
            ranks_from={"device id": [0, 1]},
            missing_steps=(7, 8),
            failures={StepKey(0, step): StoreUnavailable("away", hint="Wait.") for step in range(3)},
        ),
        capsys,
    )
    key = partial.key
    for line in (
        f"problem: {key}: partial, 2 files quarantined, 1 file with names that are not understood; ",
        f"problem: {key}: the dumped statistics of 1 tensor do not match the elements; ",
        "note: the paths name no ranks: 0, 1 are device ids (--rank-map 0=8,1=9 gives the ranks)\n",
        "note: the dump's configuration requests steps that no rank has (yet): 7, 8\n",
        "error: away (and 2 more)\n  Wait.\n",
    ):
        assert line in messages


def test_steps_that_were_there_before_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(unchanged=[StepKey(0, None), StepKey(0, 1)], removed=[StepKey(0, 2), StepKey(0, 3)])
    assert printed(report, capsys) == (
        "",
        "1 step unchanged: already in the store.\n2 steps removed by gc earlier; --replace restores them.\n",
    )


def test_what_rules_found_is_counted_by_severity(
    commits: list[CommitSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    summary = replace(
        commits[2],
        findings={"large": 1, "nan": 3},
        severities={"large": "info", "nan": "critical"},
        failed_rules={"broken": "no such column"},
    )
    _, messages = printed(Report(commits=[summary]), capsys)
    assert "findings of rules: 3 critical, 1 info; by cause: dump-ingest anomalies " in messages
    assert "problem: the rule broken could not be evaluated: no such column\n" in messages


def test_a_view_that_is_behind_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(not_consolidated=StoreError("another process writes it"))
    assert "the consolidated view is not up to date: another process writes it" in printed(report, capsys)[1]


def test_the_exit_code_says_how_much_was_done(commits: list[CommitSummary]) -> None:
    failure = {StepKey(0, 1): DumpIngestError("x")}
    partial = [replace(commits[2], status="partial")]
    assert code_of(Report(commits=commits)) == 0
    assert code_of(Report(commits=commits), interrupted=True) == 130
    assert code_of(Report(failures=failure)) == 1
    assert code_of(Report(commits=commits, failures=failure)) == 4
    assert code_of(Report(unchanged=[StepKey(0, 1)], stopped_by=StoreError("x"))) == 4
    assert code_of(Report(commits=partial)) == 4
    assert code_of(Report(commits=commits, read_back_failures={StepKey(0, 1): StoreError("x")})) == 4
    assert code_of(Report(commits=commits, read_back_failures={StepKey(0, 1): DamagedStore("x")})) == 3


def test_files_that_are_in_no_store_are_named_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [StepKey(0, step) for step in range(2)]
    errors = {
        key: FilesNotTaken.of(key, [f"rank_0/{key.step}/{n}.npy" for n in range(25)], 3) for key in keys
    }
    report = Report(failures=dict(errors))
    _, messages = printed(report, capsys)
    text = " ".join(messages.split())
    for key in keys:
        assert f"{key}: 25 files are in the dump and not in the store, and its commit stays" in text
        assert f"Not stored: rank_0/{key.step}/0.npy, " in text
    assert "and 5 more" in text
    assert text.count("--replace") == 1
    assert code_of(report) == 4  # the store has something of each: that is not nothing


def test_what_is_left_out_is_part_of_the_exit_code(
    commits: list[CommitSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(
        commits=commits, problems=(Problem("rank_-1", "is not a rank", "Rename it.", left_out=True),)
    )
    assert code_of(report) == 4
    assert "rank_-1: is not a rank (Rename it.)" in printed(report, capsys)[1]
    assert code_of(Report(commits=commits, problems=(Problem("hccl.json", "covers several hosts"),))) == 0


def test_a_commit_that_shrinks_is_told(
    commits: list[CommitSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(commits=commits, dumped_again=[DumpedAgain(StepKey(0, 1), 2)])
    assert "rank 0 step 1: dumped again, without 2 files of its commit" in printed(report, capsys)[1]


def test_what_lies_beside_the_dump_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    others = tuple(Path(f"/job/run{number}") for number in range(6))
    _, messages = printed(Report(root=Path("/job/dump"), beside=others), capsys)
    assert "only the dump in /job/dump was taken" in messages
    assert "/job/run3 and 2 more" in messages
