"""What a run writes."""

import json
from pathlib import Path

import pytest

from bench import report
from bench.measure import Measure, Ratio, Table

FASTER = Measure("ingest", "cp -r", "s", (1.0, 2.0, 4.0), (3.0, 4.0, 4.0), floor=2.0)
SHARE = Measure("stored", "raw", "MB", (40.0,), (100.0,), Ratio.SHARE, floor=0.33)
TABLE = Table("T", ("a|b",), (("1",),), "Note.")
PARTS: list[report.Part] = [("copying", [FASTER, SHARE]), ("codecs", [TABLE])]


def test_all_figures_are_written(tmp_path: Path) -> None:
    report.write_json(tmp_path / "bench.json", {"rounds": 3}, {"cores": 2}, PARTS)
    report.write_markdown(tmp_path / "bench.md", "Words.", PARTS)
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["parts"]["copying"][0]["ours"] == [1.0, 2.0, 4.0]
    assert document["parts"]["codecs"][0]["rows"] == [["1"]]
    text = (tmp_path / "bench.md").read_text()
    assert "| ingest | cp -r | 2 s |" in text
    assert "| a\\|b |" in text


def test_floors_are_counted_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_all(PARTS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["measure", "against", "ours", "other", "ratio", "floor", "reached"]
    assert lines[-1] == "1 of 2 floors reached."


def test_measures_and_tables_are_told_apart() -> None:
    assert report.measures(PARTS) == [FASTER, SHARE]
    assert report.tables(PARTS) == [TABLE]
