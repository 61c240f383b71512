"""What the comparison with numpy compares."""

from pathlib import Path

import numpy as np

from bench.load import build
from bench.parts.comparing import file_pairs, is_replicated, numpy_metrics
from workers.arrays.comparison import RunningComparison


def test_numpy_finds_the_differences_that_a_comparison_finds() -> None:
    b = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    a = b * np.float32(1.001)
    running = RunningComparison()
    running.update(a, b)
    metrics = running.result()
    ours = (metrics.max_abs, metrics.max_relative, metrics.mean_relative, metrics.rmse, metrics.cosine)
    shares = (metrics.within_1_per_mille, metrics.within_5_per_mille)
    expected = (*ours, metrics.relative_euclidean, *shares, metrics.norm_ratio)
    np.testing.assert_allclose(numpy_metrics(a, b), expected, rtol=1e-9)
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
