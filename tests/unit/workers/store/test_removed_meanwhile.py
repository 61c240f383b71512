"""A commit is refused if gc has removed what it refers to since it was written."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.store_gc.plan import GcPolicy
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import plan_all
from workers.errors import SourceChanged
from workers.tasks.convert import convert
from workers.tasks.publish import publish


def test_a_generation_that_gc_removed_meanwhile_is_not_committed(made: MadeDump, store: Path) -> None:
    """Two watchers of a rank convert a step; gc removes it after one of them committed it."""
    made.add(np.ones(3, "<f4"), tensor_name(time=1), step=0)
    (plan,) = plan_all(made.root, store)
    receipts = [convert(job) for job in plan.jobs]
    publish(plan, receipts)
    assert ingest.apply_gc(store, ingest.plan_gc(store, GcPolicy(steps=(0,)))).objects
    with pytest.raises(SourceChanged, match="tensors/float32/c/0 was removed from the store meanwhile"):
        publish(plan, receipts)
    assert ingest.open_store(store).keys == []
