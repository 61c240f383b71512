"""`dump-ingest trend` as it is typed."""

import re
from pathlib import Path

import pytest

from tests.cli import Answer


@pytest.mark.parametrize(("command", "colour"), [("trend", "1;31"), ("heatmap", "1;37;41")])
def test_colours_are_used_on_a_terminal_unless_they_are_not_wanted(
    command: str, colour: str, nan_store: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert f"\x1b[{colour}m!" in answer(command, nan_store, "Log.*").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    plain = answer(command, nan_store, "Log.*").stdout
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", plain)
    assert "!" in plain


@pytest.mark.parametrize("command", ["trend", "heatmap"])
def test_plots_are_written_and_need_nothing_else(
    command: str, nan_store: Path, answer: Answer, tmp_path: Path
) -> None:
    png, page = tmp_path / "plot.png", tmp_path / "plot.html"
    answer(command, nan_store, "ReduceMean*", "--png", png, "--html", page)
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert "data:image/svg+xml;base64," in page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)|https?://", page.read_text())
