"""Histograms for steps that lack them: what becomes of each step."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.runners import in_threads
from ingest.wiring.sketching import SketchReport, sketch_steps
from tests.damages import flip, only
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.model import StepKey
from workers.tasks.sketch import Sketched


def test_a_report_tells_added_and_left_steps_apart() -> None:
    added, left = Sketched(StepKey(0, 1), 5), Sketched(StepKey(1, None), 0, "it was removed")
    report = SketchReport((added, left), 3, ("rank 2 step 1: truncated",))
    assert (report.added, report.left) == ((added,), (left,))
    assert report.to_dict() == {
        "added": [{"rank": 0, "step": 1, "tensors": 5}],
        "had": 3,
        "left": [{"rank": 1, "step": None, "reason": "it was removed"}],
        "damaged": ["rank 2 step 1: truncated"],
    }


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_damaged_commit_is_named_and_others_are_done(
    made: MadeDump, store: Path, *, is_damaged: bool
) -> None:
    for step in range(3):
        made.add(np.arange(4.0) + step, step=step)
    ingest_directly(made.root, store)
    if is_damaged:
        flip(only(store, "rank_0/step_1/zarr.json"), 0)
    report = sketch_steps(open_store(store), in_threads)
    assert [step.key.step for step in report.added] == ([0, 2] if is_damaged else [0, 1, 2])
    assert len(report.damaged) == is_damaged
    assert sketch_steps(open_store(store), in_threads).had == 3 - is_damaged
