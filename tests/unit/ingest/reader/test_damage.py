"""Answers go on without damaged steps, and say so."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.reader.catalog import Damage, DamagedStepWarning, warn_of, with_tables
from tests.damages import flip, only
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.model import StepKey

DAMAGES = [Damage(StepKey(0, 1), "a.npy", "truncated"), Damage(StepKey(0, 2), "", "missing")]


def test_damaged_steps_are_warned_of_once() -> None:
    with pytest.warns(DamagedStepWarning) as warned:
        warn_of(DAMAGES, has_others=True)
    assert [str(warning.message) for warning in warned] == [
        "left out: rank 0 step 1: a.npy: truncated, and 1 more damaged steps"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of([], has_others=False)


@pytest.mark.parametrize("count", [1, 7])
def test_steps_come_in_order_without_those_whose_index_is_damaged(
    made: MadeDump, store: Path, count: int
) -> None:
    for step in range(count):
        made.add(np.arange(4.0), tensor_name(time=1), step=step)
    ingest_directly(made.root, store)
    flip(only(store, "rank_0/step_0/*/index/labels/c/0/0"))
    damages: list[Damage] = []
    steps = open_store(store).select()
    read = [step.key.step for step in with_tables(steps, damages)]
    assert read == list(range(1, count))
    assert [(damage.key, damage.source) for damage in damages] == [(StepKey(0, 0), "")]
    assert "crc32c" in damages[0].reason
