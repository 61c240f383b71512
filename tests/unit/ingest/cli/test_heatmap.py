"""`dump-ingest heatmap` as it is typed, and the field of ranks and steps that it draws."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from ingest.cli.printing import print_drawing
from ingest.questions.heatmap import HeatmapAnswer
from ingest.questions.question import Drawing
from tests.cli import Answer


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cells", "1x2", "--values-only"), "--values-only does not go with --cells"),
        (("--cells", "0x2"), "is not a size"),
        (("--cells", "1x2", "--stat", "nonsense"), "is not a statistic"),
    ],
)
def test_what_is_wrong_is_named(nan_store: Path, answer: Answer, words: tuple[str, ...], said: str) -> None:
    assert said in answer("heatmap", nan_store, *words, code=2).stderr


def field(
    values: Sequence[Sequence[float]],
    *,
    bad: Sequence[Sequence[float]] | None = None,
    statistic: str = "max",
) -> xr.DataArray:
    """Return a heatmap of these values of two tensors of 100 elements together, (rank, step).

    NaN is a gap unless `bad` counts NaN or Inf there.
    """
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
            "elements": (axes, np.where(present, 100.0, np.nan)),
            "non_finite": (axes, np.where(present, non_finite, np.nan)),
        },
        attrs={
            "statistic": statistic,
            "aggregate": "sum" if statistic == "nan_count" else "max",
            "tensors": 2,
            "of": "x",
        },
    )


def drawing(of: xr.DataArray) -> Drawing:
    """Return the lines that a terminal shows of a heatmap."""
    _, lines = HeatmapAnswer(of).report()
    assert isinstance(lines, Drawing)
    return lines


def test_none_some_and_all_elements_cannot_be_confused(capsys: pytest.CaptureFixture[str]) -> None:
    print_drawing(drawing(field([[0, 1, 9, 10, 99, 100, np.nan]], statistic="nan_count")), 0)
    _, line, legend = capsys.readouterr().out.splitlines()
    assert line.split() == ["0", "··░░▒▒▒▒▓▓██--"]
    assert legend == "· 0   ░ 1 to 4   ▒ 5 to 21   ▓ 22 to 99   █ all elements   - no such tensor"


def test_gaps_and_bad_values_are_marked_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    print_drawing(drawing(field([[1, np.nan], [1, np.nan]], bad=[[0, 0], [0, 2]])), 0)
    _, first, second, legend = capsys.readouterr().out.splitlines()
    assert first.split() == ["0", "██--"]
    assert second.split() == ["1", "██!!"]
    assert legend == "█ 1   ! NaN or Inf   - no such tensor"


def test_many_steps_share_cells_and_a_bad_one_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    bad = np.zeros((1, 1000))
    bad[0, 503] = 1
    print_drawing(drawing(field(np.ones((1, 1000)).tolist(), bad=bad.tolist())), 0)
    cells = capsys.readouterr().out.splitlines()[1].split()[1]
    assert len(cells) == 60
    assert cells.count("!") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--aggregate", "mean"), "--aggregate"), (("--role", "loss"), "conditions")],
    ids=["aggregate", "conditions"],
)
def test_what_needs_more_is_refused(
    nan_store: Path, answer: Answer, words: tuple[str, ...], said: str
) -> None:
    refused = answer("heatmap", nan_store, "*", "--values-only", *words, code=2)
    assert f"--values-only does not go with {said}" in refused.stderr
