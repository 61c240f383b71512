"""Groups of replicas from the layout of a run."""

from pathlib import Path

import numpy as np

import ingest
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Config, simulate, write


def test_divergence_takes_the_groups_of_the_layout(tmp_path: Path) -> None:
    """Two dimensions of a mesh that nothing tells: a rank that drifts is held against its replica alone."""
    steps = simulate(Config(2, 2, frozenset(), 4))
    drifting = "param.layers.1.fc1.weight"
    steps[3][3][drifting] = steps[3][3][drifting] + np.float32(1e-3)
    write(tmp_path / "dump", steps)
    ingest_directly(tmp_path / "dump", tmp_path / "store", layout=LAYOUT)
    store = ingest.open_store(tmp_path / "store")
    answer = ingest.divergence(store)
    assert ingest.layout(store).replicas == ((0, 2), (1, 3))
    assert {(group.ranks, group.how) for group in answer.groups} == {((0, 2), "layout"), ((1, 3), "layout")}
    assert [(odd.ranks, odd.first_step) for odd in answer.odd] == [((1, 3), 3)]
