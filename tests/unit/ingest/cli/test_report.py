"""`dump-ingest report` as it is typed."""

from pathlib import Path

from tests.cli import Answer


def test_a_file_is_written(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert str(out) in answer("report", nan_store, "--out", out).stderr
    assert "NaN born in Log" in out.read_text()
    answer("report", nan_store, "--out", tmp_path / "no" / "report.html", code=2)
