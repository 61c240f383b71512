"""Positions that stand out, are dead or are saturated, against numpy."""

import numpy as np
import pytest

from workers.arrays.marginals import ABS_MAX, L2_NORM, channels_of, marginals_of, relative_error

RNG = np.random.default_rng(3)
VALUES = RNG.standard_normal((300, 40)).astype(np.float32)
VALUES[:, 7] *= 30
VALUES[11, 9] = 200
VALUES[:, 20:23] = 0
VALUES[:, 30] = np.sign(VALUES[:, 30])
COLUMNS = marginals_of(VALUES, [1])[1]


@pytest.mark.parametrize("by", [ABS_MAX, L2_NORM])
@pytest.mark.parametrize("factor", [2.0, 10.0, 60.0])
def test_outliers_are_those_of_numpy(by: str, factor: float) -> None:
    values = np.abs(VALUES).max(axis=0) if by == ABS_MAX else np.linalg.norm(VALUES, axis=0)
    median = np.median(values[values > 0])
    channels = channels_of(COLUMNS, 300, by=by, factor=factor)
    assert channels.outlying.tolist() == np.flatnonzero(values > factor * median).tolist()
    assert channels.median == pytest.approx(median, rel=1e-6)


def test_dead_and_saturated_ones_are_named() -> None:
    channels = channels_of(COLUMNS, 300)
    assert channels.dead.tolist() == [20, 21, 22]
    assert channels.saturated.tolist() == [30]


def test_what_is_odd_everywhere_is_not_odd() -> None:
    ones = marginals_of(np.ones((100, 50), np.float32), [1])[1]
    assert not channels_of(ones, 100).saturated.size
    few = marginals_of(VALUES[:, 7:12].copy(), [1])[1]
    channels = channels_of(few, 300)
    assert np.isnan(channels.median)
    assert not channels.outlying.size


@pytest.mark.parametrize("by", [ABS_MAX, L2_NORM])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_measures_are_within_their_errors(by: str, scale: float) -> None:
    values = RNG.standard_normal((5000, 30)) * scale
    truth = (
        np.abs(values).max(axis=0) if by == ABS_MAX else np.sqrt(np.square(values.astype("g")).sum(axis=0))
    )
    told = channels_of(marginals_of(values, [1])[1], 5000, by=by).values
    errors = [relative_error(by, value, 5000, is_rounded=True) for value in told.tolist()]
    assert (np.abs(told - truth) <= np.array(errors) * truth).all()
    assert max(errors) < 1e-7
