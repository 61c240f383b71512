"""What follows from the index of one step: its findings, and the totals of its commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from ingest.reader.step import Step
from ingest.reader.step_findings import findings_of
from ingest.repairing.sketches import sketches_for_rules
from ingest.repairing.work import StepWork, Unmendable
from workers.errors import DamagedStore
from workers.rules.step import evaluate
from workers.store import commit, findings, metadata
from workers.store.commit import Commit
from workers.store.record import LEAF, CommitRecord, totals_of
from workers.store.table_checksums import checksums_of
from workers.tasks.publish import count_rows

_FROM_INDEX = "the index"
#: Totals of the record that follow from the index; the others are not checked.
_CHECKED_TOTALS = ("tensors", "nan_count", "pos_inf_count", "neg_inf_count")


def mend_findings(work: StepWork, step: Step) -> Step:
    """Return the step with whole findings: evaluated again, by the rules of today if they changed.

    Raises:
        Unmendable: the findings are damaged, and no rules are given to make them again.
    """
    try:
        findings_of(step)
    except DamagedStore as exc:
        rules, summary = work.dumps.rules, step.commit.summary
        if rules is None or work.key.step is None:
            raise Unmendable(f"{step.commit.prefix}/{findings.GROUP}", exc.message) from exc
        result = evaluate(rules, step.tables, work.key, sketches_for_rules(step))
        documents, chunks = findings.encode(rules.definitions, result)
        origin = f"{_FROM_INDEX}, by the rules of the commit"
        committed = step.commit
        if rules.digest != summary.rules:
            origin = f"{_FROM_INDEX}, by the rules of today"
            nodes = {path: node for path, node in committed.nodes.items() if not _is_of_findings(path)}
            for path, document in documents.items():
                work.put(f"{committed.prefix}/{path}/{LEAF}", metadata.encode(document), origin)
            committed = _with_totals(
                committed,
                {**nodes, **documents},
                rules=result.rules,
                findings=dict(result.totals),
                severities=result.severities,
                failed_rules=dict(result.failed),
            )
        for path, data in chunks.items():
            if work.objects.get(f"{committed.prefix}/{path}") != data:
                work.put(f"{committed.prefix}/{path}", data, origin)
        return Step(work.objects, with_tables(committed, chunks), step.tables)
    return step


def mend_totals(work: StepWork, step: Step) -> Step:
    """Return the step with totals that are those of its rows."""
    counts, summary = count_rows(step.tables), step.commit.summary
    if all(getattr(summary, name) == counts[name] for name in _CHECKED_TOTALS):
        return step
    work.mended(work.leaf_path, _FROM_INDEX)
    return Step(work.objects, _with_totals(step.commit, step.commit.nodes, **counts), step.tables)


def _is_of_findings(path: str) -> bool:
    return path == findings.GROUP or path.startswith(f"{findings.GROUP}/")


def _with_totals(committed: Commit, nodes: Mapping[str, metadata.Document], **totals: Any) -> Commit:
    """Return a commit with other nodes and other totals."""
    summary = replace(committed.summary, **totals)
    return _with_record(committed, structs.replace(committed.record, summary=totals_of(summary)), nodes)


def with_tables(committed: Commit, chunks: Mapping[str, bytes]) -> Commit:
    """Return a commit that lists these chunks of tables; as it is if it does, or if it lists none.

    What is computed again on another machine may differ in the last digits, or in its compression.
    """
    listed = committed.record.checksums
    changed = {**listed, **checksums_of(chunks)}
    if not listed or changed == listed:
        return committed
    record = structs.replace(committed.record, checksums=changed)
    return _with_record(committed, record, committed.nodes)


def _with_record(committed: Commit, record: CommitRecord, nodes: Mapping[str, metadata.Document]) -> Commit:
    leaf = commit.encode_leaf(record.to_dict(), committed.fingerprint, nodes)
    return commit.parse(leaf, committed.key)
