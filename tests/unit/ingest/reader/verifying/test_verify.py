"""Verifying names every kind of damage."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.api import DumpStore, open_store
from ingest.reader.verifying import _payload_damage, _rounding, verify
from workers.arrays.statistics import FIELDS
from workers.model import StepKey


@pytest.mark.usefixtures("filled")
def test_verify_reads_what_other_libraries_open(store: Path) -> None:
    """They know nothing of the commit: to them the document beside an array is all there is."""
    (path,) = store.glob("rank_0/step_9/*/tensors/float32/zarr.json")
    path.write_text(path.read_text().replace("little", "big"))
    (damage,) = open_store(store).verify()
    assert str(path.relative_to(store)) in damage.reason


def test_totals_that_contradict_the_rows_are_named(filled: DumpStore, store: Path) -> None:
    path = store / "rank_1/step_9/zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["dump_ingest"]["summary"]["nan_count"] = 5
    path.write_text(json.dumps(document))
    reasons = [damage.reason for damage in verify(filled, [StepKey(1, 9)])]
    assert reasons == ["the commit says nan_count 5, its rows make 1"]


def test_statistics_are_computed_again(filled: DumpStore) -> None:
    step = filled.step(0, 8)
    (row, *_) = step.rows()
    wrong = step.tables.statistics.copy()
    wrong[row, FIELDS.index("max")] += 1
    step._tables = replace(step.tables, statistics=wrong)
    for _, pieces in step.payloads([row], 64):
        assert _payload_damage(step, row, pieces, {}) == "the statistics do not match: max"


def test_mean_may_differ_by_the_rounding_of_large_elements() -> None:
    stored = np.zeros(len(FIELDS))
    stored[FIELDS.index("min")], stored[FIELDS.index("max")] = -1e6, 2e6
    tolerance = dict(zip(FIELDS, _rounding(stored), strict=True))
    assert (tolerance["mean"], tolerance["std"], tolerance["max"]) == (2e-3, 2e-3, 0)
