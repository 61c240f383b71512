"""One statistic, by whatever name people call it."""

import pytest

from ingest.questions.choosing import statistic_for, statistic_named
from workers.arrays.aggregate import STATISTICS


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("l2norm", "l2_norm"),
        ("norm", "l2_norm"),
        ("NaN", "nan_count"),
        ("inf", "inf_count"),
        ("posinf", "pos_inf_count"),
        ("stddev", "std"),
        ("Zero-Count", "zero_count"),
        *((name, name) for name in STATISTICS),
    ],
)
def test_statistics_go_by_several_names(name: str, meant: str) -> None:
    assert statistic_named(name) == meant


def test_without_a_name_a_loss_has_its_mean_and_anything_else_its_norm() -> None:
    assert statistic_for(None, {"role": "loss"}) == "mean"
    assert statistic_for(None, {"role": "weight"}) == statistic_for(None, {}) == "l2_norm"
    assert statistic_for("nan", {"role": "loss"}) == "nan_count"
