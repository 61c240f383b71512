"""The marginals of a step, as a reader gets them."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.reader.step_tables import marginals_of, read_sketches
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.errors import DamagedStore
from workers.store.sketches import marginals

LARGE = np.random.default_rng(3).standard_normal((300, 260)).astype(np.float32)


def opened(made: MadeDump, store: Path, *, sketches: bool = True) -> ingest.DumpStore:
    """A large tensor and a small one."""
    made.add(LARGE, tensor_name(time=1), step=0)
    made.add(LARGE[:2], tensor_name(slot=1, time=2), step=0)
    ingest_directly(made.root, store, sketches=sketches)
    return ingest.open_store(store)


def test_a_large_tensor_has_them_and_a_small_one_has_none(made: MadeDump, store: Path) -> None:
    step = opened(made, store).step(0, 0)
    known = marginals_of(step)
    assert sorted(known) == [0]
    for axis, marginal in known[0].items():
        np.testing.assert_allclose(marginal.sum, LARGE.sum(axis=1 - axis, dtype=np.float64), rtol=1e-4)
        np.testing.assert_array_equal(marginal.abs_max, np.abs(LARGE).max(axis=1 - axis))
    sketches = read_sketches(step)
    assert sketches.scope is MarginalScope.ALL
    assert set(sketches.histograms[:, 0].tolist()) == {0, 1}


def test_a_step_that_was_committed_without_has_none(made: MadeDump, store: Path) -> None:
    step = opened(made, store, sketches=False).step(0, 0)
    assert marginals_of(step) == {}
    assert read_sketches(step).scope is MarginalScope.NONE


def test_a_missing_object_is_damage(made: MadeDump, store: Path) -> None:
    step = opened(made, store).step(0, 0)
    for key in marginals.ALL.chunk_keys(step.commit.nodes, "rank 0 step 0"):
        (store / step.commit.prefix / key).unlink()
    with pytest.raises(DamagedStore, match="rank 0 step 0"):
        marginals_of(ingest.open_store(store).step(0, 0))
