"""`dump-ingest outliers` as it is typed."""

from pathlib import Path

import numpy as np

from tests.cli import Answer
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly


def test_odd_channels_are_shown_and_written(made: MadeDump, store: Path, answer: Answer) -> None:
    values = np.random.default_rng(2).standard_normal((300, 260)).astype("<f4")
    values[:, 100] *= 50
    values[:, 200:204] = 0
    made.add(values, tensor_name(time=1), step=3)
    ingest_directly(made.root, store, sketches=True)
    heading, outlier, dead = answer("outliers", store).stdout.splitlines()
    assert heading.split()[:4] == ["kind", "axis", "position", "times"]
    assert outlier.split()[:3] == ["outlier", "1", "100"]
    assert outlier.split()[5] == "exact"
    assert "±6e-08" in answer("outliers", store, "--by", "l2_norm").stdout
    assert dead.split()[:3] == ["dead", "1", "200-203"]
    assert "1 of 1" in dead
    made_of = answer("outliers", store, "--kind", "dead", "--json").json
    assert [odd["positions"] for odd in made_of["positions"]] == [[200, 201, 202, 203]]
    quiet = answer("outliers", store, "--kind", "outlier", "--factor", 1000)
    assert "nothing unusual in 1 tensor" in quiet.stderr
    made.add(np.zeros(3, "<f4"), tensor_name(time=2), step=4)
    ingest_directly(made.root, store, sketches=True)
    none = answer("outliers", store, "--step", 4)
    assert none.stderr == "note: 1 tensor not examined: too small, not of floats, or all zeros\n"
    assert "not a measure" in answer("outliers", store, "--by", "mean", code=2).stderr
