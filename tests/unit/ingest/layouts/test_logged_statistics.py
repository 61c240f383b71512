"""What statistics by torch's definitions say about elements, and what they do not."""

import json
import math

import pytest

from ingest.layouts.numerics import (
    LoggedTensor,
    Precision,
    number_row,
    reported,
    statistics_of,
)
from workers.dump.model import TensorName

NAN, INF = math.nan, math.inf
NAME = TensorName(op_type="Module", op_name="fc", io="input", slot=0)


@pytest.mark.parametrize(
    ("low", "high", "counts"),
    [
        (-1.0, 2.0, (0, 0, 0)),
        (NAN, NAN, (1, NAN, NAN)),
        (-1.0, INF, (0, 1, 0)),
        (-INF, INF, (0, 1, 1)),
        (-INF, 2.0, (0, 0, 1)),
    ],
)
def test_extremes_tell_what_is_not_finite(low: float, high: float, counts: tuple[float, ...]) -> None:
    logged = statistics_of({"min": low, "max": high}, [], (2,))
    assert (logged.nan_count, logged.pos_inf_count, logged.neg_inf_count) == pytest.approx(
        counts, nan_ok=True
    )
    assert logged.min == pytest.approx(low if math.isfinite(low) else NAN, nan_ok=True)
    assert logged.max == pytest.approx(high if math.isfinite(high) else NAN, nan_ok=True)


@pytest.mark.parametrize(
    ("norms", "counts"),
    [([1.5], (0, 0, 0)), ([NAN], (1, NAN, NAN)), ([INF], (NAN, 1, NAN)), ([1.5, NAN], (1, NAN, NAN))],
)
def test_norms_tell_what_is_not_finite(norms: list[float], counts: tuple[float, ...]) -> None:
    logged = statistics_of({}, norms, None)
    assert (logged.nan_count, logged.pos_inf_count, logged.neg_inf_count) == pytest.approx(
        counts, nan_ok=True
    )
    assert math.isnan(logged.count)


def test_other_statistics_are_rows_of_their_own() -> None:
    logged = LoggedTensor(NAME, {"max": 2.0, "underflows%": 12.5, "l1_norm": INF}, tensor="x.pt")
    tensor, share, norm = reported("log", logged, Precision(decimals=4))
    assert (tensor.name, tensor.tensor, tensor.decimals) == (NAME, "x.pt", 4)
    assert json.loads(tensor.attributes) == {"decimals": 4, "not_finite": {"l1_norm": "inf"}}
    assert (share.name.io, share.statistics.mean, share.statistics.count) == (
        "statistic.input.underflows%",
        12.5,
        1,
    )
    # Of what is not finite, its tensor tells: this row is not one more with an Inf.
    assert all(math.isnan(value) for value in norm.statistics.as_row())
    assert json.loads(norm.attributes)["value"] == "inf"
    assert number_row("log", NAME, -2.0, Precision()).statistics.l2_norm == 2
