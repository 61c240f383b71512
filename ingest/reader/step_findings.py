"""What rules found in one step of one rank when it was committed."""

from __future__ import annotations

from ingest.reader.opened_step import OpenedStep
from workers.errors import DamagedStore
from workers.store import findings
from workers.store.model import Finding


def findings_of(step: OpenedStep) -> list[Finding] | None:
    """Return what rules found in a step of a rank when it was committed; None where none were asked.

    Raises:
        DamagedStore: they are missing or damaged.
    """
    with step.asking_again():
        return _findings_of(step)


def _findings_of(step: OpenedStep) -> list[Finding] | None:
    rules, nodes = step.commit.summary.rules, step.commit.nodes
    if not rules:
        return None
    keys = findings.chunk_keys(rules, nodes)
    if not keys:
        if step.commit.summary.findings:
            raise DamagedStore(f"{step.key}: the findings that its commit counts are missing")
        return []
    prefix = step.commit.prefix
    found = step.objects.get_many([f"{prefix}/{key}" for key in keys])
    chunks = {key[len(prefix) + 1 :]: data for key, data in found.items()}
    return findings.decode(rules, step.key, nodes, chunks)
