"""Parquet files, as DuckDB and pandas read them."""

import json
import sys
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import ingest
from tests.cli import run_here
from tests.stores import DumpLibrary, ingest_directly
from workers.errors import UsageError
from workers.rules.schema import load_rules


@pytest.fixture(scope="module")
def url(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("stores") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=load_rules().enabled)
    return str(store)


def _rows(query: str, directory: Path) -> list[tuple[Any, ...]]:
    return duckdb.execute(query.replace("$", str(directory))).fetchall()


def test_tables_hold_what_python_returns(url: str, tmp_path: Path) -> None:
    store = ingest.open_store(url)
    counts = ingest.export_tables(store, tmp_path)
    assert {path.stem: count for path, count in counts.items()} == {
        "steps": len(store.select()),
        "tensors": len(store.tensors()),
        "findings": len(ingest.anomalies(store).findings),
        "incidents": len(ingest.incidents(store).incidents),
    }
    expected = store.tensors().to_pandas().drop(columns=["shape", "device_shape"])
    read = pd.read_parquet(tmp_path / "tensors.parquet").drop(columns=["shape", "device_shape"])
    keys = ["rank", "step", "name", "occurrence"]
    pd.testing.assert_frame_equal(
        read.sort_values(keys, ignore_index=True),
        expected.sort_values(keys, ignore_index=True),
        check_dtype=False,
    )
    first = (
        "SELECT rank, step, name, shape FROM '$/tensors.parquet' WHERE nan_count > 0 ORDER BY step, timestamp"
    )
    assert _rows(first, tmp_path)[0] == (1, 2, "Log.Default_net-LogLoss_Log-op0.output.0", [6, 4])
    ((summary, rules),) = _rows("SELECT summary, rules FROM '$/incidents.parquet'", tmp_path)
    assert "Log" in summary
    assert json.loads(rules)


def test_a_table_without_rows_has_the_types_of_others(url: str, tmp_path: Path) -> None:
    store = ingest.open_store(url)
    ingest.export_tables(store, tmp_path / "all")
    ingest.export_tables(store, tmp_path / "one", step=1)
    assert _rows("SELECT count(*) FROM '$/one/findings.parquet'", tmp_path) == [(0,)]
    for table in ("steps", "tensors", "findings", "incidents"):
        described = "SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM '$/{}/{}.parquet')"
        assert _rows(described.format("one", table), tmp_path) == _rows(
            described.format("all", table), tmp_path
        )


def test_the_command_refuses_what_it_would_not_heed(url: str, tmp_path: Path) -> None:
    target = str(tmp_path / "tables")
    done = run_here("export", url, target, "--as", "parquet", "--rank", "1", "--json")
    assert {Path(row["path"]).stem for row in json.loads(done.stdout)} == {
        "steps",
        "tensors",
        "findings",
        "incidents",
    }
    again = ("export", url, target, "--as", "parquet")
    assert "exists" in run_here(*again, code=2).stderr
    assert "--as parquet writes all" in run_here(*again, "--op-type", "Log", code=2).stderr


def test_without_pyarrow_the_extra_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"dump-ingest\[parquet\]"):
        ingest.export_tables(ingest.open_store(url), tmp_path)
