"""How far two arrays are apart."""

import math

import numpy as np
import pytest

from workers.arrays.sharded.assembly import Agreement


def agreement(a: list[float], b: list[float]) -> Agreement:
    added = Agreement()
    for number in range(len(a)):  # in pieces
        added.add(np.array(a[number : number + 1]), np.array(b[number : number + 1]))
    return added


def test_a_factor_explains_the_error() -> None:
    scaled = agreement([6.0, 8.0], [3.0, 4.0])
    assert scaled.factor == pytest.approx(2.0)
    assert scaled.error_besides_factor == pytest.approx(0.0, abs=1e-7)
    assert agreement([4.0, -3.0], [3.0, 4.0]).error_besides_factor == pytest.approx(1.0)
    assert agreement([0.0, 0.0], [3.0, 4.0]).error_besides_factor == 1.0


def test_nan_and_infinities_must_be_in_the_same_places() -> None:
    assert agreement([math.nan, 1.0], [math.nan, 1.0]).error == 0.0
    assert agreement([-math.inf, 1.0], [-math.inf, 1.0]).error == 0.0
    assert agreement([math.inf, 1.0], [-math.inf, 1.0]).error == math.inf
    assert agreement([math.nan, 1.0], [0.0, 1.0]).error == math.inf
