"""A heatmap as flat rows."""

import json
import math

import numpy as np
import xarray as xr

from ingest.questions.heatmap import heatmap_rows
from workers.store import strict_json

PLANE = ("rank", "step")


def test_there_is_a_row_for_each_rank_and_step_and_gaps_are_not_known() -> None:
    field = xr.DataArray(
        np.array([[1.5, math.nan]]),
        coords={
            "rank": [3],
            "step": [7, 8],
            "tensors": (PLANE, [[2, 0]]),
            "elements": (PLANE, [[10.0, math.nan]]),
            "non_finite": (PLANE, [[0.0, math.nan]]),
        },
        dims=PLANE,
        attrs={"statistic": "l2_norm", "aggregate": "max"},
    )
    about = {"rank": 3, "statistic": "l2_norm", "aggregate": "max"}
    assert json.loads(strict_json.dumps(heatmap_rows(field))) == [
        {**about, "step": 7, "value": 1.5, "tensors": 2, "elements": 10, "non_finite": 0},
        {**about, "step": 8, "value": None, "tensors": 0, "elements": None, "non_finite": None},
    ]


def test_an_empty_heatmap_has_no_rows() -> None:
    empty = np.empty((0, 0))
    names = ("tensors", "elements", "non_finite")
    coords = {"rank": [], "step": [], **dict.fromkeys(names, (PLANE, empty))}
    assert heatmap_rows(xr.DataArray(empty, coords=coords, dims=PLANE)) == []
