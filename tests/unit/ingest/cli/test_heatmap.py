"""`dump-ingest heatmap` as it is typed."""

import csv
import re
from pathlib import Path

import pytest

from tests.cli import Answer

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_ranks_are_drawn_over_steps(nan_store: Path, answer: Answer) -> None:
    lines = answer("heatmap", nan_store, "--stat", "nan").stdout.splitlines()
    assert lines[0] == "sum of nan_count of 243 tensors"
    assert lines[1].split() == ["rank", "step", "1", "to", "3"]
    assert [line.split() for line in lines[2:4]] == [["0", "······"], ["1", "··▓▓▓▓"]]
    assert lines[4] == "· 0   ▓ 7"


def test_colours_are_used_on_a_terminal_unless_they_are_not_wanted(
    nan_store: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert re.search(r"\x1b\[1;37;41m!", answer("heatmap", nan_store, "Log.*").stdout)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = answer("heatmap", nan_store, "Log.*").stdout
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", plain)
    assert "!" in plain


def test_values_come_as_json_and_csv(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    path = tmp_path / "values.csv"
    field = answer("heatmap", nan_store, "*", "--stat", "nan", "--json", "--csv", path).json
    assert [row["value"] for row in field] == [0, 0, 0, 0, 7, 7]
    assert {row["aggregate"] for row in field} == {"sum"}
    written = list(csv.DictReader(path.read_text().splitlines()))
    assert [float(row["value"]) for row in written] == [0, 0, 0, 0, 7, 7]


def test_plots_are_written_and_need_nothing_else(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    png, page = tmp_path / "plot.png", tmp_path / "plot.html"
    answer("heatmap", nan_store, "ReduceMean*", "--png", png, "--html", page)
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert "data:image/svg+xml;base64," in page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)|https?://", page.read_text())


def test_mistakes_are_explained(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    assert LOG in answer("heatmap", nan_store, "Lgo.*", code=2).stderr
    assert "variance" in answer("heatmap", tmp_path / "none.zarr", "*", "--stat", "variance", code=2).stderr
