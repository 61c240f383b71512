"""Shares and percentiles with their bounds, as they are printed."""

import math
from pathlib import Path

import pytest

from ingest.api import open_store, quantiles
from ingest.cli.sketch_report import (
    quantiles_columns,
    quantiles_row,
    say_without,
    share_text,
    spare_quantiles,
)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0, 0, "0"), (0.5, 0.5, "50%"), (0, 0.001234, "<0.123%"), (0.01, 0.02, "1%..2%"), (1, 1, "100%")],
)
def test_a_share_is_exact_or_a_bound_or_a_range(low: float, high: float, text: str) -> None:
    assert share_text(low, high) == text


def test_percentiles_have_a_column_each_and_a_range_if_they_are_not_exact(sketched_store: Path) -> None:
    tensors = quantiles(open_store(sketched_store), "Log.*output*", rank=1).tensors
    columns = quantiles_columns(tensors)
    assert columns[:3] == ("rank", "step", "name")
    assert quantiles_columns(()) == ("rank", "step", "name")
    for tensor in tensors:
        row = quantiles_row(tensor)
        assert len(row) == len(columns)
        assert (row[0], row[1]) == ("1", str(tensor.step))
        for cell, bounds in zip(row[3:], tensor.percentiles.values(), strict=True):
            assert (".." in cell) is not (bounds.is_exact or math.isnan(bounds.low))


def test_extremes_and_the_median_are_left_out_last() -> None:
    spare = spare_quantiles([0, 1, 5, 25, 50, 75, 95, 99, 99.9, 100])
    assert spare[:6] == ["p25", "p75", "p5", "p95", "p1", "p99"]
    assert sorted(spare[-3:]) == ["p0", "p100", "p50"]


def test_tensors_without_a_histogram_are_counted_if_there_are_any(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_without(0)
    assert capsys.readouterr().err == ""
    say_without(2)
    assert "2 tensors without a histogram: `dump-ingest sketch STORE` adds them" in capsys.readouterr().err
