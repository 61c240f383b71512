"""Answers are short where they are printed, and tables in a notebook and for pandas."""

from pathlib import Path

import ingest
from ingest.questions.outliers import OutliersAnswer


def test_percentiles_are_a_table(sketched_store: Path) -> None:
    answer = ingest.quantiles(ingest.open_store(sketched_store), percents=[50, 99.9], rank=1, step=2)
    assert repr(answer) == f"<QuantilesAnswer {sketched_store}: {len(answer.tensors)} tensors>"
    assert f"<strong>{len(answer.tensors)} tensors" in answer._repr_html_()
    frame = answer.to_pandas()
    assert list(frame.columns)[-4:] == ["p50_low", "p50_high", "p99.9_low", "p99.9_high"]
    assert frame["p50_low"].iloc[1] == answer.tensors[1].percentiles[50].low


def test_losses_are_a_table(sketched_store: Path) -> None:
    answer = ingest.precision(ingest.open_store(sketched_store), formats="e4m3", rank=1, step=2)
    assert repr(answer) == f"<PrecisionAnswer {sketched_store}: {len(answer.tensors)} casts>"
    assert answer.to_pandas()["format"].unique().tolist() == ["float8_e4m3fn"]
    assert '<th style="text-align:left">underflow_high</th>' in answer._repr_html_()


def test_a_table_without_rows_has_columns() -> None:
    answer = OutliersAnswer("run.zarr", "abs_max", 10.0, (), looked_at=3, too_small=0, without=0)
    assert repr(answer) == "<OutliersAnswer run.zarr: 0 places>"
    assert "ratio" in answer.to_pandas().columns
    assert "0 places" in answer._repr_html_()
