"""Trends: what the files hold, and nothing for gaps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.questions.trend import trend
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.replicas import gappy_replicas

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_a_trend_is_what_the_files_hold(nan_log: Path, dumps: DumpLibrary) -> None:
    store = ingest.open_store(nan_log)
    frame = trend(store, "Log.*", "norm")
    assert frame.attrs["statistic"] == "l2_norm"
    tensors: dict[tuple[Any, ...], ingest.Tensor] = {
        (tensor.name, tensor.rank, tensor.step): tensor for tensor in store.tensors(name="Log.*")
    }
    assert len(frame) == len(tensors) == 12
    for row in frame.itertuples():
        values = np.load(dumps["nan-log-2rank"] / "dump" / tensors[row.name, row.rank, row.step].source)
        finite = values[np.isfinite(values)].astype(np.float64)
        assert row.value == pytest.approx(np.linalg.norm(finite))
        assert row.non_finite == np.count_nonzero(~np.isfinite(values))


def test_rows_come_by_tensor_rank_and_step(nan_log: Path) -> None:
    frame = trend(ingest.open_store(nan_log), "Log.*", "min")
    assert list(frame["name"].drop_duplicates()) == [LOG.replace("output", "input"), LOG]
    assert list(zip(frame["rank"], frame["step"], strict=True))[:6] == [
        (rank, step) for rank in (0, 1) for step in (1, 2, 3)
    ]


def test_what_a_rank_does_not_have_has_no_row() -> None:
    frame = trend(gappy_replicas().store, "Adam.w.*")
    assert set(zip(frame["rank"], frame["step"], strict=True)) == {
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (1, 3),
    }  # fmt: skip
    assert frame.attrs["left_out"] == ["rank 0 step 3: partial"]
    assert len(trend(gappy_replicas().store, "Adam.w.*", include_partial=True)) == 7


def test_occurrences_in_a_loop_are_lines_of_their_own(dumps: DumpLibrary, tmp_path: Path) -> None:
    ingest_directly(dumps["lenet-1rank"] / "dump", tmp_path / "run.zarr")
    names = {tensor.name for tensor in ingest.open_store(tmp_path / "run.zarr").tensors()}
    frame = trend(ingest.open_store(tmp_path / "run.zarr"), "*", "max")
    assert set(frame["name"]) == names
    assert frame["rank"].dtype == frame["step"].dtype == np.int64
