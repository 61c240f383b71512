"""Adding nodes to a commit, and what happens if `gc` removes in the window between two requests."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Commit, extend
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.tasks.sketch import Sketches, sketches_of

KEY = StepKey(0, 0)


@pytest.fixture
def objects(made: MadeDump, store: Path) -> ObjectStore:
    """A store of one step."""
    made.add(np.array([1, 2, -3], "<f4"), tensor_name(time=1), step=0)
    ingest_directly(made.root, store)
    return open_objects(StoreAddress(str(store)))


def _extended(objects: ObjectStore, committed: Commit) -> bool:
    return _extended_by(objects, committed, _sketches(objects))


def _extended_by(objects: ObjectStore, committed: Commit, sketches: Sketches) -> bool:
    return extend(objects, committed, sketches.documents, sketches.chunks)


def _sketches(objects: ObjectStore) -> Sketches:
    return sketches_of(open_store(objects.address.url).step(0, 0))


def _current(objects: ObjectStore) -> Commit:
    committed = commit.read(objects, KEY)
    assert committed is not None
    return committed


def test_nodes_are_added_and_everything_else_stays(objects: ObjectStore) -> None:
    before = _current(objects)
    assert _extended(objects, before)
    after = _current(objects)
    assert after.nodes.keys() - before.nodes.keys() == {"histograms", "marginal_axes"}
    assert (after.fingerprint, after.record.committed_at) == (before.fingerprint, before.record.committed_at)
    assert after.record.format_version == before.record.format_version


def test_a_commit_that_changed_is_not_written_over(objects: ObjectStore) -> None:
    before = _current(objects)
    assert _extended(objects, before)
    assert not _extended(objects, before)


def test_tensors_that_go_in_the_window_are_taken_out_of_the_commit(objects: ObjectStore) -> None:
    before = _current(objects)
    sketches = _sketches(objects)
    shutil.rmtree(Path(objects.address.url) / before.prefix / "tensors")
    assert _extended_by(objects, before, sketches)
    after = _current(objects)
    assert after.without_tensors is not None
    assert not any(path.startswith("tensors") for path in after.nodes)


def test_a_step_that_goes_in_the_window_stays_gone(objects: ObjectStore) -> None:
    before = _current(objects)
    sketches = _sketches(objects)
    shutil.rmtree(Path(objects.address.url) / before.prefix)
    assert not _extended_by(objects, before, sketches)
    assert commit.read(objects, KEY) is None
