"""`dump-ingest quantiles` as it is typed."""

import math
from pathlib import Path

from ingest.api import open_store, quantiles
from ingest.cli.quantiles import columns_of, row_of, spare_columns
from tests.cli import Answer


def test_percentiles_are_shown_with_their_bounds(sketched_store: Path, answer: Answer) -> None:
    options = ("quantiles", sketched_store, "Log.*.output.0", "-r", 1, "-n", 2, "-p", 0, "-p", 50)
    heading, line = answer(*options).stdout.splitlines()
    assert heading.split() == ["rank", "step", "name", "p0", "p50"]
    assert line.split()[-2:] == ["-0.883413", "-0.883413..-0.516865"]
    assert answer(*options, "--exact").stdout.splitlines()[1].split()[-1].startswith("-0.6")


def test_json_says_how_exact_it_is(sketched_store: Path, answer: Answer) -> None:
    made = answer("quantiles", sketched_store, "Log.*.output.0", "-r", 0, "-n", 1, "-p", 50, "--json").json
    (tensor,) = made["tensors"]
    assert tensor["exactness"] == "bounded"
    assert tensor["percentiles"][0]["percent"] == 50


def test_mistakes_are_explained(sketched_store: Path, answer: Answer) -> None:
    assert "not a percentage" in answer("quantiles", sketched_store, "-p", 200, code=2).stderr


def test_percentiles_have_a_column_each_and_a_range_if_they_are_not_exact(sketched_store: Path) -> None:
    tensors = quantiles(open_store(sketched_store), "Log.*output*", rank=1).tensors
    columns = columns_of(tensors)
    assert columns[:3] == ("rank", "step", "name")
    assert columns_of(()) == ("rank", "step", "name")
    for tensor in tensors:
        row = row_of(tensor)
        assert len(row) == len(columns)
        assert (row[0], row[1]) == ("1", str(tensor.step))
        for cell, bounds in zip(row[3:], tensor.percentiles.values(), strict=True):
            assert (".." in cell) is not (bounds.is_exact or math.isnan(bounds.low))


def test_extremes_and_the_median_are_left_out_last() -> None:
    spare = spare_columns([0, 1, 5, 25, 50, 75, 95, 99, 99.9, 100])
    assert spare[:6] == ["p25", "p75", "p5", "p95", "p1", "p99"]
    assert sorted(spare[-3:]) == ["p0", "p100", "p50"]
