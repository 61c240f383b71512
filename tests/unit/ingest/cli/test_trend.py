"""`dump-ingest trend` and `dump-ingest heatmap`: tables, JSON, CSV and plots."""

import csv
import re
from pathlib import Path

import pytest

from ingest.cli.heatmap import command as heatmap_command
from ingest.cli.trend import command as trend_command
from tests.cli import run, strict_json
from tests.replicas import Replicas

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_trend_draws_a_line_for_each_rank(nan_log: Path) -> None:
    said = run("trend", nan_log, "Log.*.output.0", "--stat", "min").stdout.splitlines()
    assert said[0].split() == ["rank", "name", "first", "last", "min", "max", "step", "1", "to", "3"]
    assert [line.split()[-1] for line in said[1:]] == ["██▁", "▁!!"]


def test_colours_are_used_where_they_can_be_and_are_wanted(
    nan_log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for command in (trend_command, heatmap_command):
        command(str(nan_log), "Log.*")
        assert re.search(r"\x1b\[1;(31|37;41)m!", capsys.readouterr().out)
    monkeypatch.setenv("NO_COLOR", "1")
    for command in (trend_command, heatmap_command):
        command(str(nan_log), "Log.*")
        said = capsys.readouterr().out
        assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", said)
        assert "!" in said


def test_values_come_as_json_and_csv(
    nan_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "values.csv"
    trend_command(str(nan_log), "ReduceMean*output*", rank=[1], json=True, csv=path)
    rows = strict_json(capsys.readouterr().out)
    assert [(row["step"], row["non_finite"]) for row in rows] == [(1, 0), (2, 1), (3, 1)]
    assert rows[1]["value"] is None
    written = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["value"] for row in written] == [str(rows[0]["value"]), "", ""]
    heatmap_command(str(nan_log), "*", "nan", json=True, csv=path)
    field = strict_json(capsys.readouterr().out)
    assert [row["value"] for row in field] == [0, 0, 0, 0, 7, 7]
    assert {row["aggregate"] for row in field} == {"sum"}
    written = list(csv.DictReader(path.read_text().splitlines()))
    assert [float(row["value"]) for row in written] == [0, 0, 0, 0, 7, 7]


def test_plots_are_written_and_need_nothing_else(nan_log: Path, tmp_path: Path) -> None:
    png, page = tmp_path / "plot.png", tmp_path / "plot.html"
    for command in (trend_command, heatmap_command):
        command(str(nan_log), "ReduceMean*", png=png, html=page)
        assert png.read_bytes().startswith(b"\x89PNG\r\n")
        text = page.read_text()
        assert "data:image/svg+xml;base64," in text
        assert not re.search(r"(src|href)=\"(?!data:)|https?://", text)


def test_a_mistake_is_told_without_a_traceback(nan_log: Path, tmp_path: Path) -> None:
    assert "cannot be written" in run("trend", nan_log, "Log.*", "--csv", tmp_path, code=2).stderr
    assert LOG in run("heatmap", nan_log, "Lgo.*", code=2).stderr


def test_names_run_nothing_in_a_page(tmp_path: Path) -> None:
    """The command opens the store in memory, which this process has filled."""
    replicas = Replicas()
    for step in range(3):
        replicas.put(0, step, {"Log.<script>alert(1)</script>.output.0": step})
    page = tmp_path / "plot.html"
    trend_command(replicas.store.url, "Log.*", html=page)
    assert "alert(1)" in page.read_text()
    assert "<script" not in page.read_text()
