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


def test_layers_that_stages_number_from_0_are_not_held_against_each_other(tmp_path: Path) -> None:
    """Norms of all stages begin with ones; then ranks of one gradient part, as if each clipped by itself."""
    rng = np.random.default_rng(5)
    gradients = [rng.normal(size=12).astype(np.float32) for _ in range(2)]
    steps = [
        [
            {"grad.param.layers.0.norm.weight": gradients[rank // 2], "param.layers.0.norm.weight": norm}
            for rank, norm in enumerate(norms)
        ]
        for norms in (np.ones((4, 12), np.float32), rng.normal(size=(4, 12)).astype(np.float32))
    ]
    ingest_directly(write(tmp_path / "dump", steps), tmp_path / "store", layout=LAYOUT)
    store = ingest.open_store(tmp_path / "store")
    assert [odd.ranks for odd in ingest.divergence(store).odd] == [(0, 1, 2, 3)]
    in_stages = ingest.open_store(tmp_path / "store", mesh="pp=2,tp=2")
    assert [odd.ranks for odd in ingest.divergence(in_stages).odd] == [(0, 1), (2, 3)]
