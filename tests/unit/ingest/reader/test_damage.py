"""Answers go on without damaged steps, and say so."""

import warnings

import pytest

from ingest.reader.catalog import Damage, DamagedStepWarning, warn_of
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
