"""Findings of a step: those of its commit, none without rules, damage if they are missing."""

from pathlib import Path

import pytest

from ingest.api import open_store
from ingest.reader.step_tables import findings_of
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.errors import DamagedStore
from workers.rules.load import load_rules


@pytest.fixture
def with_rules(dumps: DumpLibrary, store: Path) -> Path:
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=load_rules().enabled)
    return store


def test_findings_are_those_that_the_commit_counts(with_rules: Path) -> None:
    opened = open_store(with_rules)
    findings = findings_of(opened.step(1, 2))
    assert findings
    assert len(findings) == sum(opened.step(1, 2).commit.summary.findings.values())
    assert {finding.rule for finding in findings} >= {"nan"}
    assert findings_of(opened.step(0, 1)) == []


def test_steps_without_rules_have_no_findings(nan_log: Path) -> None:
    assert findings_of(open_store(nan_log).step(1, 2)) is None


def test_missing_findings_are_damage(with_rules: Path) -> None:
    for path in with_rules.glob("rank_1/step_2/*/findings/**/c/0/0"):
        path.unlink()
    with pytest.raises(DamagedStore, match="findings"):
        findings_of(open_store(with_rules).step(1, 2))
