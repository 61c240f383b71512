"""`publish`: the Dask task that commits a step when all of its shards are written.

Idempotent. The last write of a step is the one that makes it visible.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from workers import events
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.dump import paths
from workers.errors import DamagedStore, DumpIngestError, SourceChanged
from workers.model import SourceFile, StepKey
from workers.rules.step import evaluate
from workers.store import commit, findings, metadata, tables
from workers.store.backends.deadline import supervised
from workers.store.model import LARGEST_COUNT, CommitSummary, Evaluated, RowKind
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.store.record import CommitRecord, PoisonedSource, WithoutTensors, new_record
from workers.store.sketches import block_digests, histograms, marginals
from workers.store.sketches.marginals import StepMarginals
from workers.store.sketches.sketch_tables import StepSketches
from workers.store.table_codec import checksums_of
from workers.store.tables import Tables
from workers.tasks.columns import EntryColumns
from workers.tasks.index import build_tables
from workers.tasks.model import Published, Receipt, StepPlan

#: How many problems a commit record lists; the index has all of them.
MAX_PROBLEMS_IN_RECORD = 100
#: How many findings the totals of a step include; its tables have all that are stored.
_FIRST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class Assembled:
    """Everything of a generation but its shards, before any of it is written."""

    built: Tables
    summary: CommitSummary
    nodes: Mapping[str, metadata.Document]
    """Metadata of every array and group of the generation, by path in it."""
    chunks: Mapping[str, bytes]
    """Index, statistics, findings and sketches, by path in the generation."""
    record: CommitRecord


def publish(plan: StepPlan, receipts: Sequence[Receipt]) -> CommitSummary:
    """Write index, statistics and metadata of a step, then its commit. Returns its totals.

    Raises:
        StoreError: the store refused; the step is not visible, or still in its previous generation.
        SourceChanged: the plan leaves out the tensors, but meanwhile the step was committed with them.
    """
    started = time.perf_counter()
    assembled = assemble(plan, receipts)
    supervised(_commit, plan, assembled)
    events.emit(Published(assembled.summary, time.perf_counter() - started))
    return assembled.summary


def _commit(plan: StepPlan, assembled: Assembled) -> None:
    objects = open_objects(plan.store)
    if assembled.record.without_tensors is not None:
        _refuse_to_replace_tensors(objects, plan.key)
    commit.write(objects, assembled.record, assembled.nodes, assembled.chunks, replaces=plan.replaces)


def assemble(plan: StepPlan, receipts: Sequence[Receipt]) -> Assembled:
    """Return index, statistics, findings, metadata and totals of a step whose jobs are all done.

    Nothing is written. The same plan and receipts give the same bytes.
    """
    if {receipt.number for receipt in receipts} != {job.number for job in plan.jobs}:
        # A programming error, and one that would lose data: refuse rather than commit.
        raise DumpIngestError(f"{plan.key}: receipts do not cover all jobs of the plan")
    entries = EntryColumns.of(plan.entries)
    built = build_tables(entries, plan.reported, receipts)
    sketches = _sketches(plan, receipts, built)
    result = _evaluate(plan, built, sketches)
    documents, chunks = _encode(plan, receipts, built, sketches, result)
    without = _without_tensors(plan)
    nodes = _nodes(plan, receipts, documents, has_tensors=without is None)
    shards = {key: size for receipt in receipts for key, size in receipt.stored.items()}
    packed = [pooled for receipt in receipts for pooled in receipt.pooled]
    # By path, because ranks pack the same arrays in different orders.
    pooled = {array.path: array.array for array in sorted(packed, key=lambda array: array.path)}
    summary = _summarise(
        plan,
        receipts,
        built,
        stored_bytes=sum(shards.values())
        + sum(map(len, chunks.values()))
        + sum(array.nbytes for array in pooled.values()),
        objects=len(shards) + len(chunks) + len(nodes) + 2 * len(pooled) + 1,
        result=result,
    )
    record = new_record(
        summary,
        origin=plan.origin,
        stored=shards,
        without_tensors=without,
        nets=tuple(sorted(set(built.label("net")) - {""})),
        graphs=tuple(sorted(set(built.label("graph")) - {""})),
        problems=tuple(_problems(plan, built)),
        poison=_poison(plan.poison, entries),
        pool=pooled,
        checksums=checksums_of(chunks),
    )
    return Assembled(built, summary, nodes, chunks, record)


def _sketches(plan: StepPlan, receipts: Sequence[Receipt], built: Tables) -> StepSketches:
    """Return the histograms and marginals of all tensors."""
    entries = histograms.TABLE.joined(receipt.histograms for receipt in receipts)
    summed = StepMarginals.joined(receipt.marginals for receipt in receipts if receipt.marginals is not None)
    if built.has_views:
        entries, summed = histograms.without_copies(entries, built), summed.without_copies(built)
    return StepSketches(entries, summed, scope=plan.marginals if plan.sketches else MarginalScope.NONE)


def _evaluate(plan: StepPlan, built: Tables, sketches: StepSketches) -> Evaluated | None:
    """Evaluate the rules; return None if the plan has none, or the files belong to no step."""
    if plan.rules is None or plan.key.step is None:
        return None
    return evaluate(plan.rules, built, plan.key, sketches)


def _encode(
    plan: StepPlan,
    receipts: Sequence[Receipt],
    built: Tables,
    sketches: StepSketches,
    result: Evaluated | None,
) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
    """Return the metadata and the chunks of index, statistics, findings and sketches."""
    encoded = [tables.encode(built)]
    if plan.rules is not None and result is not None:
        encoded.append(findings.encode(plan.rules.definitions, result))
    if plan.sketches:
        # Equal bytes of different types are payloads of their own when they are converted.
        blocks = block_digests.without_copies(
            block_digests.TABLE.joined(receipt.block_digests for receipt in receipts), built
        )
        encoded += [
            histograms.TABLE.encode(sketches.histograms),
            block_digests.TABLE.encode(blocks),
        ]
        if (arrays := marginals.OF_SCOPE.get(plan.marginals)) is not None:
            encoded.append(arrays.encode(sketches.marginals))
    documents: dict[str, metadata.Document] = {}
    chunks: dict[str, bytes] = {}
    for own_documents, own_chunks in encoded:
        documents |= own_documents
        chunks |= own_chunks
    return documents, chunks


def _nodes(
    plan: StepPlan,
    receipts: Sequence[Receipt],
    documents: Mapping[str, metadata.Document],
    *,
    has_tensors: bool,
) -> dict[str, metadata.Document]:
    """Return the metadata of all groups and arrays of the generation."""
    ends = {
        path: end for path, end in _ends(receipts).items() if has_tensors or not metadata.is_of_tensors(path)
    }
    nodes: dict[str, metadata.Document] = {"": metadata.group(), "index": metadata.group(), **documents}
    if any(map(metadata.is_of_tensors, ends)):
        nodes["tensors"] = metadata.group()
    packed = {spec.path: spec for spec in plan.arrays if ends.get(spec.path)}
    return nodes | {path: metadata.packed_array(spec, ends[path]) for path, spec in packed.items()}


def _ends(receipts: Sequence[Receipt]) -> dict[str, int]:
    """Return for each packed array the element after its last one."""
    ends: dict[str, int] = {}
    for receipt in receipts:
        for path, end in receipt.ends.items():
            ends[path] = max(ends.get(path, 0), end)
    return ends


def _without_tensors(plan: StepPlan) -> WithoutTensors | None:
    if not plan.without_tensors:
        return None
    return WithoutTensors(datetime.now(UTC).isoformat(timespec="seconds"), "policy", plan.without_tensors)


def _refuse_to_replace_tensors(objects: ObjectStore, key: StepKey) -> None:
    """Raise SourceChanged if the step was committed with its tensors meanwhile."""
    try:
        current = commit.read(objects, key)
    except DamagedStore:
        return
    if current is not None and current.without_tensors is None:
        raise SourceChanged(f"{key} was committed with its tensors meanwhile")


def _poison(poison: Sequence[SourceFile], entries: EntryColumns) -> tuple[PoisonedSource, ...]:
    """Return the poison files as the commit record lists them.

    Whoever plans the step again does not need to find them again.
    """
    if not poison:
        return ()
    readable = dict(zip(entries.column("source.path"), entries.column("readable"), strict=True))
    return tuple(
        PoisonedSource(paths.to_text(file.path), file.size, file.mtime_ns, readable[file.path])
        for file in poison
    )


def _summarise(
    plan: StepPlan,
    receipts: Sequence[Receipt],
    built: Tables,
    *,
    stored_bytes: int,
    objects: int,
    result: Evaluated | None,
) -> CommitSummary:
    counts = count_rows(built)
    return CommitSummary(
        key=plan.key,
        fingerprint=plan.fingerprint,
        status="partial" if counts["quarantined"] or plan.problems else "complete",
        duplicates=sum(receipt.duplicates for receipt in receipts),
        raw_bytes=plan.nbytes,
        stored_bytes=stored_bytes,
        objects=objects,
        skipped=_skipped(plan, built),
        **counts,
        **_totals_of_rules(result),
    )


def count_rows(built: Tables) -> dict[str, Any]:
    """Return the totals of a summary that follow from the index and the statistics, by name."""
    kinds, problems = built.label("kind"), built.label("problem")
    is_tensor = kinds == RowKind.TENSOR.value
    has_statistics = is_tensor | (kinds == RowKind.STATISTICS.value)
    nan, pos_inf, neg_inf = (
        np.nan_to_num(built.statistic(name)[has_statistics])
        for name in ("nan_count", "pos_inf_count", "neg_inf_count")
    )
    masks = {
        "tensors": is_tensor,
        "files": kinds == RowKind.FILE.value,
        "quarantined": kinds == RowKind.QUARANTINED.value,
        "overflows": kinds == RowKind.OVERFLOW.value,
        "statistics_only": kinds == RowKind.STATISTICS.value,
        "disagreements": built.disagreeing & is_tensor,
        "tensor_problems": is_tensor & (problems != "") & ~built.disagreeing,
        "unparsed": (kinds == RowKind.FILE.value) & (problems != ""),
        "nan_tensors": nan,
        "pos_inf_tensors": pos_inf,
        "neg_inf_tensors": neg_inf,
        "anomalous_tensors": nan + pos_inf + neg_inf,
    }
    sums = {"nan_count": nan, "pos_inf_count": pos_inf, "neg_inf_count": neg_inf}
    return {name: int(np.count_nonzero(mask)) for name, mask in masks.items()} | {
        name: min(int(counts.sum()), LARGEST_COUNT) for name, counts in sums.items()
    }


def _totals_of_rules(result: Evaluated | None) -> dict[str, Any]:
    """Return the fields of a summary about what rules found; none if no rules were evaluated."""
    if result is None:
        return {}
    return {
        "rules": result.rules,
        "findings": dict(result.totals),
        "severities": result.severities,
        "failed_rules": dict(result.failed),
        "first_findings": result.findings[:_FIRST_FINDINGS],
    }


def _skipped(plan: StepPlan, built: Tables) -> int:
    """Return how many problems of the step no row of the index has."""
    of_rows = set(_problems_of_rows(built))
    return sum(paths.to_text(problem) not in of_rows for problem in plan.problems)


def _problems_of_rows(built: Tables) -> list[str]:
    return [
        f"{source}: {problem}"
        for source, problem in zip(built.label("source"), built.label("problem"), strict=True)
        if problem
    ]


def _problems(plan: StepPlan, built: Tables) -> list[str]:
    """Return the problems for the commit record: first of the step, then of its files."""
    problems = [*map(paths.to_text, plan.problems), *_problems_of_rows(built)]
    more = len(problems) - MAX_PROBLEMS_IN_RECORD
    return problems if more <= 0 else [*problems[:MAX_PROBLEMS_IN_RECORD], f"and {more} more, see the index"]
