"""How far two runs are apart over the steps."""

import math
from pathlib import Path

import numpy as np
import pytest

import ingest
from bench.steps import commit_tables, make_tables
from ingest.questions.growth import LEAST, ErrorGrowth, error_growth
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store.opening import open_objects, resolve

NAMES = [f"op{number}" for number in range(5)]
NORM = FIELDS.index("l2_norm")


def commit_counts(store: Path, counts: list[float]) -> ingest.DumpStore:
    """Commit a step of statistics alone, whose tensors have these numbers of NaN."""
    made = make_tables(StepKey(0, 0), NAMES[: len(counts)])
    made.digest[:] = 0
    made.statistics[:, NORM] = 10.0
    made.statistics[:, FIELDS.index("nan_count")] = counts
    commit_tables(open_objects(resolve(str(store))), StepKey(0, 0), made)
    return ingest.open_store(store)


def commit_run(store: Path, *, drift: float, steps: int = 3) -> ingest.DumpStore:
    """Commit a run whose operators 2, 3 and 4 drift: in the statistic, in the bytes alone, to a NaN."""
    objects = open_objects(resolve(str(store)))
    for step in range(steps):
        made = make_tables(StepKey(0, 0), NAMES)
        made.statistics[:, NORM] = 10.0
        made.statistics[:, FIELDS.index("mean")] = np.nan
        if drift and step:
            made.statistics[2, NORM] *= 1 - drift * step
            made.digest[2:, 0] += 1
            made.statistics[4, FIELDS.index("nan_count")] = 1
        commit_tables(objects, StepKey(0, step), made)
    return ingest.open_store(store)


@pytest.fixture
def growth(tmp_path: Path) -> ErrorGrowth:
    a, b = (commit_run(tmp_path / f"{drift}.zarr", drift=drift) for drift in (0.0, 0.25))
    return error_growth(a, b, rank=0)


def test_errors_are_those_of_the_statistic(growth: ErrorGrowth) -> None:
    expected = [[0] * 3, [0] * 3, [0, 0.25, 0.5], [0, LEAST, LEAST], [0, math.inf, math.inf]]
    np.testing.assert_array_equal(growth.errors, expected)
    assert (growth.steps, growth.rank, growth.statistic) == ((0, 1, 2), 0, "l2_norm")
    assert growth.by_onset() == [(2, 1), (3, 1), (4, 1)]
    assert growth.tensors[2].op_name == "op2"
    frame = growth.to_pandas()
    assert list(frame.loc["MatMul.op2.output.0"]) == [0, 0.25, 0.5]
    assert growth.rows()[7] == {
        "rank": 0, "step": 1, "name": "MatMul.op2.output.0", "graph": "0", "error": 0.25
    }  # fmt: skip


def test_a_name_and_a_statistic_choose(tmp_path: Path) -> None:
    a, b = (commit_run(tmp_path / f"{drift}.zarr", drift=drift, steps=2) for drift in (0.0, 0.25))
    chosen = error_growth(a, b, rank=0, stat="max", name="*op[23]*")
    assert [key.op_name for key in chosen.tensors] == ["op2", "op3"]
    np.testing.assert_array_equal(chosen.errors, [[0, LEAST]] * 2)
    with pytest.raises(ingest.UsageError, match="no tensor like"):
        error_growth(a, b, rank=0, name="absent")
    with pytest.raises(ingest.UsageError, match="sum of statistics"):
        error_growth(a, b, rank=0, stat="inf")


def test_a_damaged_step_is_left_out(tmp_path: Path) -> None:
    a, b = (commit_run(tmp_path / f"{name}.zarr", drift=0, steps=2) for name in "ab")
    for file in (tmp_path / "b.zarr" / "rank_0" / "step_0").rglob("*"):
        if file.is_file() and file.name != "zarr.json":
            file.write_bytes(b"damage")
    growth = error_growth(a, b, rank=0)
    assert growth.steps == (1,)
    assert [left.key.step for left in growth.left_out] == [0]
    assert str(growth.left_out[0]).endswith(f"({b.url})")
    assert growth.by_onset() == []


def test_a_step_with_a_damaged_commit_is_left_out_and_named(tmp_path: Path) -> None:
    a, b = (commit_run(tmp_path / f"{name}.zarr", drift=0) for name in "ab")
    (tmp_path / "a.zarr/rank_0/step_1/zarr.json").write_text("{}")
    growth = error_growth(a, b, rank=0)
    (left,) = growth.left_out
    assert (growth.steps, left.key.step, left.is_damaged) == ((0, 2), 1, True)


def test_other_bytes_are_a_difference_even_if_the_statistic_is_unknown(tmp_path: Path) -> None:
    a, b = (commit_run(tmp_path / f"{drift}.zarr", drift=drift) for drift in (0.0, 0.25))
    growth = error_growth(a, b, rank=0, stat="mean")
    assert growth.errors[2].tolist() == [0, LEAST, LEAST]


def test_a_statistic_that_is_not_known_is_no_agreement(tmp_path: Path) -> None:
    """A log of statistics may have other ones, and no digests."""
    stores = []
    for number, norm in enumerate((math.nan, 1.0)):
        made = make_tables(StepKey(0, 0), NAMES[:2])
        made.digest[:] = 0
        made.statistics[:, NORM] = [norm, math.nan]
        made.statistics[:, FIELDS.index("min")] = number
        objects = open_objects(resolve(str(tmp_path / f"{number}.zarr")))
        commit_tables(objects, StepKey(0, 0), made)
        stores.append(ingest.open_store(tmp_path / f"{number}.zarr"))
    a, b = stores
    with pytest.raises(ingest.UsageError, match="the l2_norm of no tensor is known on both sides"):
        error_growth(a, b, rank=0)
    assert error_growth(b, b, rank=0).unknown == 1
    assert len(error_growth(a, b, rank=0, stat="min").by_onset()) == 2


def test_a_number_of_nan_that_is_not_known_is_not_taken_for_zero(tmp_path: Path) -> None:
    unknown = math.nan
    a = commit_counts(tmp_path / "a.zarr", [3, 3, 0, unknown, unknown])
    b = commit_counts(tmp_path / "b.zarr", [0, unknown, 0, 3, unknown])
    growth = error_growth(a, b, rank=0)
    np.testing.assert_array_equal(growth.errors[:, 0], [math.inf, unknown, 0, unknown, 0])
