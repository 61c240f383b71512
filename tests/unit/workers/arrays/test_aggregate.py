"""Several tensors as one number."""

import numpy as np
import pytest

from workers.arrays.statistics import aggregated, joined

NAN = np.nan
VALUES = np.array([[1.0, NAN, 3.0], [NAN, NAN, NAN], [-np.inf, 2.0, NAN]])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("max", [3, NAN, 2]),
        ("min", [1, NAN, -np.inf]),
        ("sum", [4, NAN, -np.inf]),
        ("mean", [2, NAN, -np.inf]),
    ],
)
def test_what_is_not_known_does_not_count(how: str, expected: list[float]) -> None:
    np.testing.assert_array_equal(aggregated(VALUES, how), expected)
    np.testing.assert_array_equal(aggregated(np.zeros((2, 0)), how), [NAN, NAN])


@pytest.mark.parametrize("how", ["max", "min", "sum"])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_two_groups_together_are_as_all_of_them(how: str, place: int) -> None:
    parts = (aggregated(VALUES[:, :place], how), aggregated(VALUES[:, place:], how))
    np.testing.assert_array_equal(joined(*parts, how), aggregated(VALUES, how))
