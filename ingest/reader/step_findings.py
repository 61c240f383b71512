"""The findings of one step of one rank: what rules found when it was committed."""

from __future__ import annotations

from workers.errors import DamagedStore
from workers.store import findings
from workers.store.model import Finding
from workers.store.step import StoredStep


def findings_of(step: StoredStep) -> list[Finding] | None:
    """Return the findings of a step; None if it was committed without rules.

    Raises:
        DamagedStore: the findings are missing or damaged.
        StepRemoved: the step was removed since it was opened.
    """
    with step.asking_again():
        return _read_findings(step)


def _read_findings(step: StoredStep) -> list[Finding] | None:
    rules, nodes = step.commit.summary.rules, step.commit.nodes
    if not rules:
        return None
    keys = findings.chunk_keys(rules, nodes)
    if not keys:
        if step.commit.summary.findings:
            raise DamagedStore(f"{step.key}: the findings that its commit counts are missing")
        return []
    prefix = step.commit.prefix
    objects = step.objects.get_many([f"{prefix}/{key}" for key in keys])
    chunks = {key.removeprefix(f"{prefix}/"): data for key, data in objects.items()}
    return findings.decode(rules, step.key, nodes, chunks, step.commit.record.checksums)
