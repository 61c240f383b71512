"""The histograms of a step, and verifying them."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.reader.step_tables import histograms_of
from ingest.reader.verifying import WRONG_SKETCHES, verify
from tests.damages import forget_checksums
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import DamagedStore
from workers.store.commit import Commit
from workers.store.sketches import HISTOGRAM_TABLE, HISTOGRAMS


@pytest.fixture
def opened(made: MadeDump, store: Path) -> ingest.DumpStore:
    """Tensors of real and of complex numbers."""
    made.add(np.array([1, -2, 0, np.nan, np.inf], "<f4"), tensor_name(time=1), step=0)
    made.add(np.array([3, 4], "<i2"), tensor_name(slot=1, time=2), step=0)
    made.add(np.array([1 + 2j], "<c8"), tensor_name(slot=2, time=3), step=0)
    ingest_directly(made.root, store, sketches=True)
    return ingest.open_store(store)


def rewrite(committed: Commit, store: Path, entries: list[list[int]]) -> None:
    """Put other histograms of the same shape in their place, which a commit without checksums allows."""
    _, chunks = HISTOGRAM_TABLE.encode(np.array(entries))
    (store / committed.prefix / HISTOGRAM_TABLE.chunk).write_bytes(chunks[HISTOGRAM_TABLE.chunk])
    forget_checksums(store / committed.key.path / "zarr.json")


def test_a_histogram_that_contradicts_statistics_or_tensor_is_damage(
    opened: ingest.DumpStore, store: Path
) -> None:
    forget_checksums(store / "rank_0/step_0/zarr.json")
    committed = opened.step(0, 0).commit
    assert list(verify(opened)) == []
    rewrite(committed, store, [[0, -1, 1, 0], [0, 5, 0, 1], [1, 1, 2, 0]])
    (damage,) = verify(opened)
    assert damage.reason == WRONG_SKETCHES[HISTOGRAMS]
    rewrite(committed, store, [[0, -1, 1, 0], [0, 0, 0, 7], [1, 1, 2, 0]])
    (damage,) = verify(opened)
    assert "counts other elements than the statistics" in damage.reason
    with pytest.raises(DamagedStore, match="histograms of row 0"):
        histograms_of(ingest.open_store(store).step(0, 0))
