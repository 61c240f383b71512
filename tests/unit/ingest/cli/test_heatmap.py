"""`dump-ingest heatmap` as it is typed."""

import csv
from pathlib import Path

from tests.cli import Answer

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_values_come_as_json_and_csv(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    path = tmp_path / "values.csv"
    field = answer("heatmap", nan_store, "*", "--stat", "nan", "--json", "--csv", path).json
    assert [row["value"] for row in field] == [0, 0, 0, 0, 7, 7]
    assert {row["aggregate"] for row in field} == {"sum"}
    written = list(csv.DictReader(path.read_text().splitlines()))
    assert [float(row["value"]) for row in written] == [0, 0, 0, 0, 7, 7]
