"""Statistics over steps and ranks: the numbers and the drawing."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ingest
from ingest.questions.sparkline import BAD, BARS, GAP, UNKNOWN, sparkline
from ingest.questions.trend import STATISTICS, heatmap, statistic_named, trend
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.replicas import Replicas
from workers.errors import UsageError

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"
HOSTILE = "<script>alert(1)</script>$x_{$\x1b[31m\n&\"'"


@pytest.fixture(scope="module")
def nan_log(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of two ranks in one of which a NaN is born in step 2."""
    path = tmp_path_factory.mktemp("trend") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", path)
    return path


def gappy() -> Replicas:
    """Two ranks, of which one lacks step 1, and one step is partial."""
    made = Replicas()
    for rank in range(2):
        for step in range(4):
            if (rank, step) != (1, 1):
                status = "partial" if (rank, step) == (0, 3) else "complete"
                made.put(rank, step, {"Adam.w.input.0": step + 1, "Adam.v.input.1": step + 2}, status=status)
    return made


class TestNumbers:
    def test_a_name_that_looks_like_a_glob_is_found_by_itself(self) -> None:
        made = Replicas()
        made.put(0, 1, {"Adam.w[0].input.0": 1, "Adam.w0.input.0": 2})
        assert trend(made.store, "Adam.w[0].input.0", "max")["name"].unique().tolist() == [
            "Adam.w[0].input.0",
            "Adam.w0.input.0",
        ]
        assert trend(made.store, "Adam.w[[]0].input.0", "max")["name"].tolist() == ["Adam.w[0].input.0"]

    def test_a_trend_is_what_the_files_hold(self, nan_log: Path, dumps: DumpLibrary) -> None:
        store = ingest.open_store(nan_log)
        frame = trend(store, "Log.*", "norm")
        assert frame.attrs["statistic"] == "l2_norm"
        tensors: dict[tuple[Any, ...], ingest.Tensor] = {
            (one.name, one.rank, one.step): one for one in store.tensors(name="Log.*")
        }
        assert len(frame) == len(tensors) == 12
        for row in frame.itertuples():
            values = np.load(dumps["nan-log-2rank"] / "dump" / tensors[row.name, row.rank, row.step].source)
            finite = values[np.isfinite(values)].astype(np.float64)
            assert row.value == pytest.approx(np.linalg.norm(finite))
            assert row.non_finite == np.count_nonzero(~np.isfinite(values))

    def test_rows_come_by_tensor_rank_and_step(self, nan_log: Path) -> None:
        frame = trend(ingest.open_store(nan_log), "Log.*", "min")
        assert list(frame["name"].drop_duplicates()) == [LOG.replace("output", "input"), LOG]
        assert list(zip(frame["rank"], frame["step"], strict=True))[:6] == [
            (rank, step) for rank in (0, 1) for step in (1, 2, 3)
        ]

    def test_what_a_rank_does_not_have_has_no_row(self) -> None:
        frame = trend(gappy().store, "Adam.w.*")
        assert set(zip(frame["rank"], frame["step"], strict=True)) == {
            (0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (1, 3),
        }  # fmt: skip
        assert frame.attrs["left_out"] == ["rank 0 step 3: partial"]
        assert len(trend(gappy().store, "Adam.w.*", include_partial=True)) == 7

    def test_occurrences_in_a_loop_are_lines_of_their_own(self, dumps: DumpLibrary, tmp_path: Path) -> None:
        ingest_directly(dumps["lenet-1rank"] / "dump", tmp_path / "run.zarr")
        names = {one.name for one in ingest.open_store(tmp_path / "run.zarr").tensors()}
        frame = trend(ingest.open_store(tmp_path / "run.zarr"), "*", "max")
        assert set(frame["name"]) == names
        assert frame["rank"].dtype == frame["step"].dtype == np.int64

    def test_a_field_is_an_aggregate_of_the_trend(self, nan_log: Path) -> None:
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

    def test_a_field_has_gaps_and_no_zeros(self) -> None:
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
            *((one, one) for one in STATISTICS),
        ],
    )
    def test_statistics_go_by_several_names(self, name: str, meant: str) -> None:
        assert statistic_named(name) == meant

    def test_what_is_not_there_is_refused_and_near_names_are_named(self, nan_log: Path) -> None:
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

    def test_too_much_is_refused_before_memory_is_full(
        self, nan_log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ingest.questions.trend.MAX_VALUES", 100)
        with pytest.raises(UsageError, match="more than 100 values"):
            trend(ingest.open_store(nan_log), "*")


class TestSparkline:
    def test_marks_what_is_not_there_bad_and_unknown(self) -> None:
        drawn = sparkline(
            [1, 8, math.nan, 2, math.nan], [True, True, False, True, True], [False, False, False, True, False]
        )
        assert drawn == BARS[0] + BARS[-1] + GAP + BAD + UNKNOWN

    @settings(max_examples=200)
    @given(
        places=st.lists(st.tuples(st.floats(), st.booleans(), st.booleans()), max_size=200),
        width=st.integers(1, 80),
    )
    def test_any_numbers_can_be_drawn(self, places: list[tuple[float, bool, bool]], width: int) -> None:
        values, present, bad = ([*column] for column in zip(*places, strict=True)) if places else ([], [], [])
        drawn = sparkline(values, present, bad, width)
        assert len(drawn) == min(len(places), width)
        assert set(drawn) <= {*BARS, GAP, BAD, UNKNOWN}
        # What is bad is seen in any width.
        assert (BAD in drawn) == any(there and (wrong or math.isinf(value)) for value, there, wrong in places)


class TestHostileNames:
    @pytest.fixture
    @staticmethod
    def store() -> Replicas:
        made = Replicas()
        for step in range(3):
            made.put(0, step, {f"Log.{HOSTILE}.output.0": step + 1, "Log._hidden.output.0": step + 1})
        return made

    def test_names_run_nothing_in_a_page_and_are_no_formulas(self, store: Replicas) -> None:
        from ingest.questions import plot

        lines = [
            plot.Line(f"0  {name}", np.arange(3.0), np.ones(3, bool), np.zeros(3, bool))
            for name in trend(store.store, "Log.*")["name"].unique()
        ]
        figure = plot.trend_figure(HOSTILE, [0, 1, 2], lines, "l2_norm")
        assert plot.png(figure)
        rows = [(*line.label.split("  "), "▁▄█") for line in lines]
        text = plot.page(HOSTILE, figure, ("rank", "name"), rows, [HOSTILE])
        assert "<script" not in text
        assert len(figure.axes[0].get_legend().get_texts()) == 2
        assert plot.png(plot.heatmap_figure(HOSTILE, heatmap(store.store, "Log.*")))

    def test_nothing_but_gaps_and_nan_can_be_plotted(self) -> None:
        from ingest.questions import plot

        nothing = np.full(2, math.nan)
        line = plot.Line("0  x", nothing, np.array([True, False]), np.array([True, False]))
        assert plot.png(plot.trend_figure("", [3, 4], [line], "mean"))

    def test_pyplot_is_not_used(self, store: Replicas) -> None:
        from ingest.questions import plot

        plot.png(plot.heatmap_figure("", heatmap(store.store, "Log.*")))
        assert "matplotlib.pyplot" not in sys.modules

    def test_without_matplotlib_it_says_how_to_get_it(
        self, store: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ingest.questions import plot

        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        monkeypatch.setitem(sys.modules, "matplotlib.colors", None)
        with pytest.raises(UsageError, match="matplotlib") as error:
            plot.trend_figure("", [0], [], "l2_norm")
        assert error.value.hint == "pip install 'dump-ingest[plot]'"
        with pytest.raises(UsageError, match="matplotlib"):
            plot.heatmap_figure("", heatmap(store.store, "Log.*"))
