"""`dump-ingest ingest` as it is typed, and what it prints."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer

from ingest.cli.ingest_report import (
    IngestProgress,
    _say_problems,
    exit_as,
    print_report,
    progress_bar,
    say_missing,
    say_sources,
)
from ingest.dispatch.submitter import JobConverted, StepCommitted
from ingest.layouts.base import Problem
from ingest.service.one_shot import Report
from ingest.settings import Settings
from ingest.steps.events import KeepReason, SourceKept
from ingest.steps.watcher import DumpState
from tests import checker
from tests.asked_dumps import asked_dump, store_of
from tests.cli import Answer, run
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly, listings, plan_all
from workers.errors import DamagedStore, DumpIngestError, StoreError, StoreUnavailable
from workers.model import StepKey
from workers.store.model import CommitSummary


@pytest.mark.dask
def test_a_dump_is_ingested_once_and_then_unchanged(dumps: DumpLibrary, store: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    done = run("ingest", dump, "--store", store)
    assert done.stdout.splitlines()[-1].split()[:5] == ["all", "3", "complete", "1458", "9"]
    assert f"dump-ingest origin {store}" in done.stderr
    assert f"findings of rules: 14 critical; by cause: dump-ingest anomalies {store}\n" in done.stderr
    checker.check(store, dump)
    again = run("ingest", dump, "--store", store)
    assert (again.stdout, again.stderr) == ("", "6 steps of 2 ranks unchanged: already in the store.\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-last", "3"], "--keep-last does nothing without --after-commit delete"),
        (["--dry-run"], "--dry-run does nothing without --after-commit delete"),
        (["--after-commit", "remove"], "after_commit (--after-commit)"),
        (["--rank-map", "0"], "device=rank pairs"),
    ],
)
def test_mistakes_are_explained_before_anything_is_written(
    dumps: DumpLibrary, store: Path, answer: Answer, options: list[str], message: str
) -> None:
    words = ("ingest", dumps["nan-log-2rank"] / "dump", "--store", store, *options)
    assert message in answer(*words, code=2).stderr
    assert not store.exists()


def test_a_store_in_another_dump_is_refused(made: MadeDump, tmp_path: Path, answer: Answer) -> None:
    made.add(np.zeros(3))
    other = MadeDump(tmp_path / "other")
    other.add(np.ones(3))
    before = sorted(other.root.rglob("*"))
    for place in (other.root, other.root / "rank_0"):
        refused = answer("ingest", made.root, "--store", place, code=2).stderr
        assert f"error: {place} holds a dump, not a store\n  Is --store right?" in refused
        told = answer("doctor", made.root, "--store", place, code=1).stdout
        assert f"{place} holds a dump, not a store" in told
    assert sorted(other.root.rglob("*")) == before


@pytest.fixture
def dump(dumps: DumpLibrary, tmp_path: Path) -> Path:
    return asked_dump(dumps, tmp_path / "dump")


def said(store: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> str:
    say_missing(report, Settings(store=str(store)))
    return capsys.readouterr().err


def test_what_is_missing_is_named_with_the_reason(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = ["Default/net-LogLoss/Log-op0", "While", *(f"Default/none-op{number}" for number in range(5))]
    store = store_of(dump, tmp_path / "s", device="Ascend", iteration="2|9", dump_mode=1, kernels=kernels)
    commits = [step.commit.summary for step in store.select()]
    report = Report(commits=commits, may_have_configuration=True, missing_steps=(9,))
    heading, *lines = said(tmp_path / "s", report, capsys).splitlines()
    assert heading.startswith("note: the dump lacks items that its configuration requests; `dump-ingest ls ")
    # Steps are named by another note.
    assert lines[0] == "  operator While: control flow has no tensors of its own"
    assert lines[-1] == "  and 1 more"
    assert len(lines) == 6


def test_the_bar_follows_jobs_up_to_the_bytes_of_the_dump(dumps: DumpLibrary, store: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    found, plans, commits = listings(dump), plan_all(dump, store), ingest_directly(dump, store)
    drawn = progress_bar()
    with IngestProgress(drawn) as progress:
        progress.observe(DumpState(found, found, ()))
        bar = drawn.tasks[0]
        assert bar.total == sum(listing.nbytes for listing in found.values())
        for plan, summary in zip(plans, commits, strict=True):
            for job in plan.jobs:
                progress.observe(JobConverted(plan, job))
            progress.observe(StepCommitted(plan, summary, 1.0))
        assert bar.completed == bar.total
        assert bar.fields["files"] == sum(len(listing.files) for listing in found.values())


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


def test_a_line_break_in_a_name_begins_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It would look like something that this program says."""
    name = "x\nDeleted 4 dump files"
    kept = SourceKept(StepKey(0, 4), KeepReason.CHANGED, 1, f"{name} changed")
    say_sources(Report(source_kept=[kept]), dry_run=False)
    _say_problems(Report(problems=(Problem(name, "is a symbolic link"),)))
    lines = capsys.readouterr().err.splitlines()
    assert [line[:6] for line in lines] == ["Delete", "stays:", "proble"]
    assert "x\\nDeleted" in lines[1]
