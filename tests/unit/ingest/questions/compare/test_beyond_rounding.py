"""Ranks of the same program: differences within the limits of types that rounding does not explain."""

from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare import Comparison, Thresholds, Verdict, compare
from tests.sharded_net import LAYOUT, Config, simulate, write


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs of three operators; the second is off by 1e-5, and the third by four times as much."""
    rng = np.random.default_rng(3)
    values = [rng.normal(size=(8, 16)).astype(np.float32) for _ in range(3)]
    off = [values[0], values[1] * np.float32(1 + 1e-5), values[2] * np.float32(1 + 4e-5)]
    sides = [
        write(tmp_path / name, [[dict(zip(("h0", "h1", "h2"), side, strict=True))]])
        for name, side in (("a", off), ("b", values))
    ]
    return sides[0], sides[1]


def run(a: Path, b: Path, thresholds: Thresholds | None = None) -> Comparison:
    return compare(a, b, layout=LAYOUT, keep_equal=True, thresholds=thresholds)


def test_the_first_that_rounding_does_not_explain_is_told(pair: tuple[Path, Path]) -> None:
    answer = run(*pair)
    assert answer.verdict == "close"
    assert answer.unexplained is not None
    assert "h1" in answer.unexplained.name
    bounds = [row.bound for row in answer.tensors]
    assert [bound is not None and bound.explained for bound in bounds] == [True, False, True]
    assert bounds[1] is not None
    assert bounds[1].times > 1
    assert "1 tensors are within the limits" in answer.notes[-1]
    plain = answer.to_dict()
    assert plain["unexplained"]["times"] == bounds[1].times
    assert {"limit", "times", "explained"} <= plain["tensors"][1].keys()


def test_limits_of_the_user_count_alone(pair: tuple[Path, Path]) -> None:
    answer = run(*pair, Thresholds.model_validate({"defaults": {"float32": {"relative_euclidean": 1e-3}}}))
    assert answer.unexplained is None
    assert all(row.bound is None for row in answer.tensors)


def test_another_order_of_sums_is_explained(tmp_path: Path) -> None:
    a, b = (
        write(tmp_path / str(number), simulate(Config(flags=frozenset(flags))))
        for number, flags in enumerate([("reversed sums", "flash attention"), ()])
    )
    answer = run(a, b)
    assert answer.counts[Verdict.DIFFERENT] == 0
    assert answer.unexplained is None
