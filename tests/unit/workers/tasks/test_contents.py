"""Digests and statistics of files, and which matrices are turned."""

import numpy as np
import pytest

from tests.npy_files import MadeDump
from tests.operands import in_files
from workers.arrays.digest import digest
from workers.arrays.statistics import FIELDS
from workers.tasks.compare import Pair, are_turned, read_contents


def test_content_of_files(made: MadeDump) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    (known,) = read_contents(in_files(made, values))
    assert known.digest == digest(values.tobytes())
    assert known.statistics[FIELDS.index("max")] == 11


@pytest.mark.parametrize("shape", [(3, 4), (4, 4)])
def test_turned_matrices(made: MadeDump, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    turned = np.ascontiguousarray(values.T) + np.float32(1e-6)
    a, b, flat = in_files(made, values, turned, values.reshape(shape[::-1]))
    assert are_turned([Pair(a, b), Pair(a, flat)]) == [True, False]
