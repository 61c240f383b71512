"""Findings and totals follow from the index, without the dump."""

from pathlib import Path

from ingest.reader.step_tables import findings_of
from ingest.repairing.tables import mend_findings, mend_totals
from tests.damages import DAMAGES
from tests.repairs import work_on


def test_findings_are_evaluated_again(lone_store: Path) -> None:
    work = work_on(lone_store, step=3)
    (step,) = work.catalog.select(rank=0, step=3)
    whole = findings_of(step)
    assert mend_findings(work, step) is step
    DAMAGES["findings missing"](lone_store)
    (damaged,) = work.catalog.reopened().select(rank=0, step=3)
    assert findings_of(mend_findings(work, damaged)) == whole
    assert {mended.origin for mended in work.repair.mended} == {"the index, by the rules of the commit"}


def test_totals_are_counted_again(lone_store: Path) -> None:
    DAMAGES["commit with wrong totals"](lone_store)
    work = work_on(lone_store)
    (step,) = work.catalog.select(rank=0, step=1)
    assert step.commit.summary.nan_count == 7
    counted = mend_totals(work, step)
    assert counted.commit.summary.nan_count == 0
    assert mend_totals(work, counted) is counted
    assert [mended.origin for mended in work.repair.mended] == ["the index"]
