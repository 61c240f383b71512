"""The report is one file that needs nothing else."""

import re
from pathlib import Path

import ingest


def test_a_report_is_whole_and_runs_nothing(nan_log: Path) -> None:
    page = ingest.report(ingest.open_store(nan_log))
    assert "NaN born in Log" in page
    assert "logarithm of a number that is not positive" in page
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_a_report_may_be_about_one_incident(nan_log: Path) -> None:
    store = ingest.open_store(nan_log)
    (incident,) = ingest.incidents(store).incidents
    assert incident.summary in ingest.report(store, incident=incident.id)
