"""What `ingest` says of what was asked for and is not there."""

from pathlib import Path

import pytest

from ingest.cli.ingest_report import say_missing
from ingest.service.one_shot import Report
from ingest.settings import Settings
from tests.asked_dumps import asked_dump, store_of
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly


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


def test_nothing_is_said_without_a_reason_to_look(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = ingest_directly(dump, tmp_path / "s")
    for report in (Report(commits=commits), Report(may_have_configuration=True)):
        assert said(tmp_path / "nothing", report, capsys) == ""
    unreadable = Report(commits=commits, may_have_configuration=True)
    assert "cannot tell what the dump lacks: " in said(tmp_path / "nothing", unreadable, capsys)
    # Without the other steps that the configuration asks for, all is there but these.
    whole = Report(commits=commits, may_have_configuration=True, missing_steps=(1, 3))
    assert said(tmp_path / "s", whole, capsys) == ""
