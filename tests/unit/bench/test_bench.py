"""What the benchmark says must be true on any machine: the ratios, the loads, that contenders do the same."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from bench import encode, machine, report
from bench.__main__ import LONG_PARTS, PARTS
from bench.encode import ENCODERS, Packed, read_packed, write_packed
from bench.load import build, build_large_tensor, build_small
from bench.measure import Measure, Ratio, Table, in_turns
from bench.numpy_statistics import numpy_statistics
from bench.parts.comparing import file_pairs, is_replicated, numpy_metrics
from bench.parts.encoders import check
from bench.trained import trained_tensors
from tests.pipeline import ingest_directly
from workers.arrays.comparison import compare_arrays
from workers.arrays.statistics import summarise
from workers.store.model import ArraySpec

FASTER = Measure("ingest", "cp -r", "s", (1.0, 2.0, 4.0), (3.0, 4.0, 4.0), floor=2.0)
SHARE = Measure("stored", "raw", "MB", (40.0,), (100.0,), Ratio.SHARE, floor=0.33)


def test_a_speed_is_the_median_of_the_ratios_of_rounds() -> None:
    assert FASTER.ratio == 2.0
    assert FASTER.reached
    assert FASTER.row() == ("ingest", "cp -r", "2 s", "4 s", "2.000", "≥ 2", "yes")


def test_a_share_above_its_floor_is_not_reached() -> None:
    assert SHARE.ratio == pytest.approx(0.4)
    assert SHARE.reached is False


def test_without_a_floor_nothing_is_reached_or_missed() -> None:
    assert Measure("a", "b", "s", (1.0,), (1.0,)).reached is None


def test_rounds_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rounds of ours, 1 of b"):
        Measure("a", "b", "s", (1.0, 2.0), (1.0,))


def test_contenders_take_turns() -> None:
    turns: list[str] = []

    def take(name: str) -> float:
        turns.append(name)
        return len(turns)

    assert in_turns(2, {"a": lambda: take("a"), "b": lambda: take("b")}) == {"a": (1, 3), "b": (2, 4)}
    assert turns == ["a", "b", "a", "b"]


@pytest.mark.parametrize("name", [*PARTS, *LONG_PARTS])
def test_each_part_measures_something(name: str) -> None:
    assert callable(import_module(f"bench.parts.{name}").measure)


def test_the_machine_is_named(tmp_path: Path) -> None:
    found = machine.describe(tmp_path, None)
    assert found["cores"] >= 1
    assert found["disk"] != "unknown"
    assert "numpy" in found["packages"]
    assert found["processor"] in machine.in_words(found)


def test_everything_is_written(tmp_path: Path) -> None:
    parts: list[report.Part] = [("one", [FASTER, SHARE]), ("two", [Table("T", ("a|b",), (("1",),), "Note.")])]
    report.write_json(tmp_path / "bench.json", {"rounds": 3}, {"cores": 2}, parts)
    report.write_markdown(tmp_path / "bench.md", "Words.", parts)
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["parts"]["one"][0]["ours"] == [1.0, 2.0, 4.0]
    assert document["parts"]["two"][0]["rows"] == [["1"]]
    assert "| ingest | cp -r | 2 s |" in (tmp_path / "bench.md").read_text()
    assert "| a\\|b |" in (tmp_path / "bench.md").read_text()


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.plot import plot

    plot(tmp_path / "bench.png", [FASTER, SHARE], "Words.")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_numpy_says_the_same_as_the_kernels(dtype: str) -> None:
    values = np.random.default_rng(0).normal(0, 9, 10_000).astype(dtype)
    if dtype == "f4":
        values[:4] = np.nan, np.inf, -np.inf, 0
    np.testing.assert_allclose(numpy_statistics(values), summarise(values).as_row(), rtol=1e-9, atol=1e-12)


def test_numpy_finds_the_differences_that_a_comparison_finds() -> None:
    b = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    a = b * np.float32(1.001)
    found = compare_arrays(a, b)
    ours = (found.max_abs, found.max_relative, found.mean_relative, found.rmse, found.cosine)
    shares = (found.within_1_per_mille, found.within_5_per_mille)
    wanted = (*ours, found.relative_euclidean, *shares, found.norm_ratio)
    np.testing.assert_allclose(numpy_metrics(a, b), wanted, rtol=1e-9)
    assert numpy_metrics(a, a) == ()


def test_ranks_share_what_is_replicated(tmp_path: Path) -> None:
    rows = [
        "name,descr,shape,content,zero_fraction,std_of_nonzero,same_as_previous_step",
        "Adam.op0.0.0.*.input.0.DefaultFormat.Float32,<f4,2x3,0,0,1,0",
        "ReLU.op1.0.0.*.output.0.DefaultFormat.Float32,<f4,2x3,1,0,1,0",
    ]
    (tmp_path / "profile.csv").write_text("\n".join(rows))
    build(tmp_path / "profile.csv", tmp_path / "dump", ranks=2, replicated=is_replicated)
    pairs = {a.name.partition(".")[0]: (a, b) for a, b in file_pairs(tmp_path / "dump")}
    assert {name: a.read_bytes() == b.read_bytes() for name, (a, b) in pairs.items()} == {
        "Adam": True,
        "ReLU": False,
    }


def test_small_loads_are_dumps(tmp_path: Path) -> None:
    load = build_small(tmp_path / "dump", ranks=2, steps=3, files=5)
    commits = ingest_directly(load.directory, tmp_path / "store")
    assert len(commits) == 6
    assert sum(commit.tensors for commit in commits) == load.files == 30
    assert sum(commit.raw_bytes for commit in commits) == load.nbytes
    assert not any(commit.duplicates for commit in commits)


def test_a_large_tensor_is_one(tmp_path: Path) -> None:
    load = build_large_tensor(tmp_path / "dump", 1_000_000)
    (commit,) = ingest_directly(load.directory, tmp_path / "store")
    assert (commit.tensors, commit.raw_bytes) == (1, load.nbytes)


def test_all_encoders_make_the_same_shards(tmp_path: Path) -> None:
    spec = ArraySpec("tensors/float32", "float32", 4, big_endian=False, chunk=1000, chunks_per_shard=4)
    data = np.random.default_rng(0).integers(0, 4, 40_000, np.uint8)
    write_packed(tmp_path / "packed", [Packed(spec, (4, 30_000, 9_996), data)])
    arrays = read_packed(tmp_path / "packed")
    shards = {}
    for encoder in ENCODERS:
        assert encode.encode(encoder, arrays, tmp_path / encoder).wall_s > 0
        check(arrays, tmp_path / encoder)
        shards[encoder] = [path.read_bytes() for path in sorted((tmp_path / encoder).rglob("c/*"))]
        assert len(shards[encoder]) == 3
    assert shards["ours"] == shards["zarr-python"]


def test_training_gives_finite_tensors_that_change() -> None:
    tensors = trained_tensors(2)
    assert all(np.isfinite(values).all() for values in tensors.values())
    assert (tensors["relu"] == 0).mean() > 0.2
    assert np.count_nonzero(tensors["update of weight1"]) > 1000
