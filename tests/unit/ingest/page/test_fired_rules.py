"""What rules found in a step of a rank: counts and severities are those of its commit."""

from pathlib import Path

import ingest
from bench.steps import commit_run
from ingest.page.fired_rules import rules_fired_in
from workers.rules.load import load_rules
from workers.store.model import SEVERITIES


def test_rules_are_counted_as_the_commit_counts_them(tmp_path: Path) -> None:
    commit_run(str(tmp_path), range(2), range(3), ["op"] * 3, born=1, rules=load_rules().enabled)
    counted = 0
    for opened in ingest.open_store(tmp_path).select():
        fired = list(rules_fired_in(opened))
        summary = opened.commit.summary
        assert {rule.rule: rule.findings for rule in fired} == dict(summary.findings)
        assert {rule.rule: SEVERITIES[rule.severity] for rule in fired} == dict(summary.severities)
        assert {(rule.step, rule.rank) for rule in fired} <= {(opened.key.step, opened.key.rank)}
        counted += len(fired)
    assert counted
