"""A heatmap as flat rows: the documented contract of what `heatmap --json` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ingest.reader.cubes.rank_statistics import RankValues

if TYPE_CHECKING:
    import xarray as xr


def heatmap_rows(field: xr.DataArray) -> list[dict[str, Any]]:
    """Return a heatmap as JSON has it: a row for each rank and step."""
    ranks, steps = field["rank"].values.tolist(), field["step"].values.tolist()
    columns = {name: field[name].values.tolist() for name in ("tensors", "elements", "non_finite")}
    values = field.values.tolist()
    return [
        {
            "rank": rank,
            "step": step,
            "value": values[row][column],
            "tensors": columns["tensors"][row][column],
            "elements": _whole(columns["elements"][row][column]),
            "non_finite": _whole(columns["non_finite"][row][column]),
            "statistic": field.attrs["statistic"],
            "aggregate": field.attrs["aggregate"],
        }
        for row, rank in enumerate(ranks)
        for column, step in enumerate(steps)
    ]


def value_rows(by_step: Mapping[int, RankValues], statistic: str) -> list[dict[str, Any]]:
    """Return the JSON of `rank_values`: a row for each rank and step, by rank, then step."""
    rows = [
        {"rank": rank, "step": step, "value": value, "statistic": statistic}
        for step, known in by_step.items()
        for rank, value in zip(known.ranks.tolist(), known.values.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: (row["rank"], row["step"]))


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else int(value)
