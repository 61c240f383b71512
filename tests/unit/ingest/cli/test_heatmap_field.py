"""The field of ranks and steps that `heatmap` draws."""

from collections.abc import Sequence

import numpy as np
import pytest
import xarray as xr

from ingest.cli.heatmap_field import json_rows, print_field


def field(values: Sequence[Sequence[float]], *, bad: Sequence[Sequence[float]] | None = None) -> xr.DataArray:
    """Return a heatmap of these values, (rank, step); NaN is a gap unless `bad` counts NaN or Inf there."""
    array = np.array(values, float)
    non_finite = np.zeros(array.shape) if bad is None else np.array(bad, float)
    present = np.isfinite(array) | (non_finite > 0)
    axes = ("rank", "step")
    return xr.DataArray(
        array,
        dims=axes,
        coords={
            "rank": np.arange(array.shape[0]),
            "step": np.arange(array.shape[1]) + 10,
            "tensors": (axes, present.astype(int)),
            "non_finite": (axes, np.where(present, non_finite, np.nan)),
        },
        attrs={"statistic": "max", "aggregate": "max"},
    )


def test_levels_go_from_the_least_to_the_greatest_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_field("title", field([[0, 1, 2, 4]]), 0)
    title, heading, line, legend = capsys.readouterr().out.splitlines()
    assert (title, heading.split(), line.split()) == (
        "title",
        ["rank", "step", "10", "to", "13"],
        ["0", "░░▒▒▓▓██"],
    )
    assert legend == "░ 0 to 1   ▒ 1 to 2   ▓ 2 to 3   █ 3 to 4"


def test_gaps_and_bad_values_are_marked_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    print_field("title", field([[1, np.nan], [1, np.nan]], bad=[[0, 0], [0, 2]]), 0)
    _, _, first, second, legend = capsys.readouterr().out.splitlines()
    assert first.split() == ["0", "██··"]
    assert second.split() == ["1", "██!!"]
    assert legend == "█ 1   ! NaN or Inf   · no such tensor"


def test_the_largest_numbers_there_are_can_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    largest = float(np.finfo(float).max)
    print_field("title", field([[-largest, largest]]), 0)
    assert capsys.readouterr().out.splitlines()[2].split() == ["0", "░░██"]


def test_many_steps_share_cells_and_a_bad_one_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    bad = np.zeros((1, 1000))
    bad[0, 503] = 1
    print_field("title", field(np.ones((1, 1000)).tolist(), bad=bad.tolist()), 0)
    cells = capsys.readouterr().out.splitlines()[2].split()[1]
    assert len(cells) == 60
    assert cells.count("!") == 1


def test_ranks_beyond_the_limit_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    print_field("title", field([[1], [2], [3]]), 2)
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2 + 2 + 1
    assert printed.err == "3 ranks, the first 2 shown (--limit 0: all)\n"


def test_a_row_is_a_rank_and_step() -> None:
    rows = json_rows(field([[1, np.nan]], bad=[[2, 0]]))
    assert [(row["rank"], row["step"], row["tensors"], row["non_finite"]) for row in rows] == [
        (0, 10, 1, 2),
        (0, 11, 0, None),
    ]
