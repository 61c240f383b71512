"""`dump-ingest heatmap` as it is typed."""

import csv
from pathlib import Path

from tests.cli import Answer

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_ranks_are_drawn_over_steps(nan_store: Path, answer: Answer) -> None:
    lines = answer("heatmap", nan_store, "--stat", "nan").stdout.splitlines()
    assert lines[0] == "sum of nan_count of 243 tensors"
    assert lines[1].split() == ["rank", "step", "1", "to", "3"]
    assert [line.split() for line in lines[2:4]] == [["0", "······"], ["1", "··▓▓▓▓"]]
    assert lines[4] == "· 0   ▓ 7"


def test_values_come_as_json_and_csv(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    path = tmp_path / "values.csv"
    field = answer("heatmap", nan_store, "*", "--stat", "nan", "--json", "--csv", path).json
    assert [row["value"] for row in field] == [0, 0, 0, 0, 7, 7]
    assert {row["aggregate"] for row in field} == {"sum"}
    written = list(csv.DictReader(path.read_text().splitlines()))
    assert [float(row["value"]) for row in written] == [0, 0, 0, 0, 7, 7]


def test_mistakes_are_explained(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    assert LOG in answer("heatmap", nan_store, "Lgo.*", code=2).stderr
    assert "variance" in answer("heatmap", tmp_path / "none.zarr", "*", "--stat", "variance", code=2).stderr
