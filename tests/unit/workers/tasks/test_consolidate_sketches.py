"""Histograms go into the cubes with their step, and leave with them."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import UsageError
from workers.store.sketches import histograms


@pytest.fixture
def filled(made: MadeDump, store: Path) -> ingest.DumpStore:
    """A step with a tensor of real numbers."""
    made.add(np.array([1, 3, 5], "<f4"), tensor_name(), step=0)
    ingest_directly(made.root, store, sketches=True)
    return ingest.open_store(store)


def test_damaged_histograms_count_as_missing(filled: ingest.DumpStore) -> None:
    prefix = filled.step(0, 0).commit.prefix
    filled.objects.put(f"{prefix}/{histograms.TABLE.chunk}", b"damaged")
    ingest.consolidate(filled.url)
    cubes = filled.consolidated()
    assert cubes.table("with_histogram").tolist() == [[0]]
    assert cubes.table("without_histogram").tolist() == [[1]]
    assert cubes.table("tensors").tolist() == [[1]]
    with pytest.raises(UsageError, match="1 tensor has no histogram"):
        cubes.find("p99 > 1")


def test_no_object_is_left_of_a_step_without(filled: ingest.DumpStore, made: MadeDump, store: Path) -> None:
    ingest.consolidate(store)
    assert filled.objects.sizes("consolidated/sketches")
    made.add(np.array([2, 3, 5, 7], "<f4"), tensor_name(), step=0)
    ingest_directly(made.root, store, sketches=False)
    ingest.consolidate(store)
    assert not filled.objects.sizes("consolidated/sketches")
    assert ingest.open_store(store).consolidated().table("without_histogram").tolist() == [[2]]
