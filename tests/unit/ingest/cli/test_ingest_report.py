"""What `ingest` prints at its end, and how it exits."""

from dataclasses import replace

import pytest
import typer

from ingest.cli.ingest_report import exit_as, print_report
from ingest.service.one_shot import Report
from ingest.settings import Settings
from ingest.steps.difference import FilesNotTaken
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
