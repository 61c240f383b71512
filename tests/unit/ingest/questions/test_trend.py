"""Statistics over steps and ranks: what the files hold, and nothing for gaps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.questions.trend import heatmap, statistic_named, trend
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.replicas import Replicas
from workers.arrays.aggregate import STATISTICS
from workers.errors import UsageError

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def gappy() -> Replicas:
    """Two ranks, of which one lacks step 1, and one step is partial."""
    made = Replicas()
    for rank in range(2):
        for step in range(4):
            if (rank, step) != (1, 1):
                status = "partial" if (rank, step) == (0, 3) else "complete"
                made.put(rank, step, {"Adam.w.input.0": step + 1, "Adam.v.input.1": step + 2}, status=status)
    return made


def test_a_name_that_looks_like_a_glob_is_found_by_itself() -> None:
    made = Replicas()
    made.put(0, 1, {"Adam.w[0].input.0": 1, "Adam.w0.input.0": 2})
    assert trend(made.store, "Adam.w[0].input.0", "max")["name"].unique().tolist() == [
        "Adam.w[0].input.0",
        "Adam.w0.input.0",
    ]
    assert trend(made.store, "Adam.w[[]0].input.0", "max")["name"].tolist() == ["Adam.w[0].input.0"]


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
    frame = trend(gappy().store, "Adam.w.*")
    assert set(zip(frame["rank"], frame["step"], strict=True)) == {
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (1, 3),
    }  # fmt: skip
    assert frame.attrs["left_out"] == ["rank 0 step 3: partial"]
    assert len(trend(gappy().store, "Adam.w.*", include_partial=True)) == 7


def test_occurrences_in_a_loop_are_lines_of_their_own(dumps: DumpLibrary, tmp_path: Path) -> None:
    ingest_directly(dumps["lenet-1rank"] / "dump", tmp_path / "run.zarr")
    names = {tensor.name for tensor in ingest.open_store(tmp_path / "run.zarr").tensors()}
    frame = trend(ingest.open_store(tmp_path / "run.zarr"), "*", "max")
    assert set(frame["name"]) == names
    assert frame["rank"].dtype == frame["step"].dtype == np.int64


def test_a_field_is_an_aggregate_of_the_trend(nan_log: Path) -> None:
    store = ingest.open_store(nan_log)
    for stat, how, default in (
        ("nan", "sum", True),
        ("norm", "max", True),
        ("min", "min", True),
        ("std", "mean", False),
    ):
        field = heatmap(store, "*output*", stat, aggregate=None if default else how)
        rows = trend(store, "*output*", stat).groupby(["rank", "step"])["value"].agg(how)
        assert field.attrs["aggregate"] == how
        assert field.dims == ("rank", "step")
        for rank, step in ((rank, step) for rank in (0, 1) for step in (1, 2, 3)):
            assert float(field.sel(rank=rank, step=step)) == pytest.approx(rows[rank, step])
    assert float(heatmap(store, "*", "nan").sel(rank=1, step=2)) == 7


def test_a_field_has_gaps_and_no_zeros() -> None:
    field = heatmap(gappy().store, "Adam.*", "nan_count")
    assert np.isnan(field.sel(rank=1, step=1))
    assert np.isnan(field.sel(rank=0, step=3))
    assert field["tensors"].sel(rank=1, step=1) == 0
    assert field.attrs["left_out"] == ["rank 0 step 3: partial"]


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


def test_what_is_not_there_is_refused_and_near_names_are_named(nan_log: Path) -> None:
    store = ingest.open_store(nan_log)
    with pytest.raises(UsageError, match="is not a statistic") as error:
        trend(store, "*", "variance")
    assert "l2_norm" in error.value.hint
    for ask in (trend, heatmap):
        with pytest.raises(UsageError, match="no tensor") as error:
            ask(store, "Logg.*")
        assert LOG in error.value.hint
    with pytest.raises(UsageError, match="is not an aggregate"):
        heatmap(store, "*", aggregate="median")
    with pytest.raises(UsageError, match="no step 9"):
        trend(store, "*", step=9)


def test_too_much_is_refused_before_memory_is_full(nan_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.questions.trend.MAX_VALUES", 100)
    with pytest.raises(UsageError, match="more than 100 values"):
        trend(ingest.open_store(nan_log), "*")
