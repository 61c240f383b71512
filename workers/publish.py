"""`publish`: what a Dask worker runs when all shards of a step are written: receipts become the commit.

Idempotent, and the last write of a step is the one that makes it visible.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from workers import events, paths
from workers.disagreements import disagreements
from workers.errors import DamagedStore, DumpIngestError, SourceChanged
from workers.formats.dtype_names import canonical
from workers.model import CommitSummary, Entry, Kind, Receipt, Reported, StepKey, StepPlan
from workers.rules.step import DISAGREES, evaluate
from workers.rules.values import Evaluated
from workers.statistics import Statistics
from workers.store import commit, findings, metadata, tables
from workers.store.commit import WithoutTensors
from workers.store.objects import ObjectStore, open_objects
from workers.store.tables import LABELS, NUMBERS, Tables

#: How many problems a commit record names; all of them are in the index.
MAX_PROBLEMS_IN_RECORD = 100
#: How many findings go with the totals of a step; all that are stored are in its tables.
_FIRST_FINDINGS = 20


def publish(plan: StepPlan, receipts: Sequence[Receipt]) -> CommitSummary:
    """Write index, statistics and metadata of a step, then its commit. Returns its totals.

    Raises:
        StoreError: the store refused; the step is not visible, or still in its previous generation.
        SourceChanged: the plan leaves out the tensors, and the step has been committed with them meanwhile.
    """
    started = time.perf_counter()
    if {receipt.number for receipt in receipts} != {job.number for job in plan.jobs}:
        # A programming error, and one that would lose data: refuse rather than commit.
        raise DumpIngestError(f"{plan.key}: receipts do not cover all jobs of the plan")
    built = _tables(plan, receipts)
    documents, chunks = tables.encode(built)
    found = _evaluated(plan, built)
    if plan.rules is not None and found is not None:
        more_documents, more_chunks = findings.encode(plan.rules, found)
        documents |= more_documents
        chunks |= more_chunks
    without = _without_tensors(plan)
    ends = _ends(receipts)
    if without is not None:
        ends = {path: end for path, end in ends.items() if not metadata.is_of_tensors(path)}
    nodes: dict[str, metadata.Document] = {"": metadata.group(), "index": metadata.group(), **documents}
    if any(metadata.is_of_tensors(path) for path in ends):
        nodes["tensors"] = metadata.group()
    nodes.update(
        (spec.path, metadata.packed_array(spec, ends[spec.path]))
        for spec in plan.arrays
        if ends.get(spec.path)
    )
    shards = {key: size for receipt in receipts for key, size in receipt.stored.items()}
    summary = _summarise(
        plan,
        receipts,
        built,
        stored_bytes=sum(shards.values()) + sum(map(len, chunks.values())),
        objects=len(shards) + len(chunks) + len(nodes) + 1,
        found=found,
    )
    objects = open_objects(plan.store)
    if without is not None:
        _refuse_to_replace_tensors(objects, plan.key)
    commit.write(
        objects,
        summary,
        origin=plan.origin,
        nodes=nodes,
        objects_to_write=chunks,
        facts={
            "nets": sorted(set(built.label("net")) - {""}),
            "graphs": sorted(set(built.label("graph")) - {""}),
            "stored": shards,
            "problems": _problems(plan, built),
            **_poison(plan),
        },
        without_tensors=without,
        replaces=plan.replaces,
    )
    events.emit(events.Published(summary, time.perf_counter() - started))
    return summary


def _without_tensors(plan: StepPlan) -> WithoutTensors | None:
    if not plan.without_tensors:
        return None
    return WithoutTensors(datetime.now(UTC).isoformat(timespec="seconds"), "policy", plan.without_tensors)


def _refuse_to_replace_tensors(objects: ObjectStore, key: StepKey) -> None:
    """Raise SourceChanged where a step has its tensors by now: by another watcher, or this task is late."""
    try:
        found = commit.read(objects, key)
    except DamagedStore:
        return
    if found is not None and found.without_tensors is None:
        raise SourceChanged(f"{key}: it has been committed with its tensors meanwhile")


def _poison(plan: StepPlan) -> dict[str, Any]:
    """Return what the record says of files that kill the process that reads them; nothing where none does.

    Whoever plans the step again need not find out again.
    """
    if not plan.poison:
        return {}
    readable = {entry.source.path: entry.readable for entry in plan.entries}
    rows = [
        {
            "source": paths.to_text(file.path),
            "size": file.size,
            "mtime_ns": file.mtime_ns,
            "bytes_kept": readable[file.path],
        }
        for file in plan.poison
    ]
    return {"poison": rows}


def _evaluated(plan: StepPlan, built: Tables) -> Evaluated | None:
    """Return what the rules find; None where there are none, or for what belongs to no step."""
    if plan.rules is None or plan.key.step is None:
        return None
    return evaluate(plan.rules, built, plan.key)


def _ends(receipts: Sequence[Receipt]) -> dict[str, int]:
    ends: dict[str, int] = {}
    for receipt in receipts:
        for path, end in receipt.ends.items():
            ends[path] = max(ends.get(path, 0), end)
    return ends


def _tables(plan: StepPlan, receipts: Sequence[Receipt]) -> Tables:
    entries = plan.entries
    n = len(entries)
    offsets = np.full(n, -1, np.int64)
    nbytes = np.array([entry.nbytes for entry in entries], np.int64)
    in_device_layout = np.zeros(n, np.bool_)
    digest = tables.empty_digests(n)
    statistics = tables.empty_statistics(n)
    for receipt in receipts:
        offsets[receipt.rows] = receipt.offsets
        nbytes[receipt.rows] = receipt.nbytes
        in_device_layout[receipt.rows] = receipt.in_device_layout
        digest[receipt.rows] = receipt.digests
        statistics[receipt.rows] = receipt.statistics
    shapes = [_shape(plan, row) for row in range(n)]
    computed: npt.NDArray[np.bool_] = np.asarray(~np.isnan(statistics).all(axis=1))
    built = Tables(
        labels=_filled(LABELS, object, _labels(entries, in_device_layout, computed)),
        numbers=_filled(NUMBERS, np.int64, _numbers(entries, offsets, nbytes, shapes)),
        shape=tables.shape_table(shapes),
        digest=digest,
        statistics=statistics,
    )
    _take_reported(plan.reported, built)
    return built


def _filled(fields: Sequence[str], dtype: Any, columns: Mapping[str, Sequence[Any]]) -> npt.NDArray[Any]:
    """Return columns as a table of `fields`. Column by column: rows of dicts take three times as long."""
    table = np.empty((len(columns[fields[0]]), len(fields)), dtype)
    for number, field in enumerate(fields):
        table[:, number] = columns[field]
    return table


def _take_reported(reported: Mapping[int, Reported], built: Tables) -> None:
    """Enter the statistics that the dump gives, where none were computed; elsewhere compare them."""
    kinds, dtypes, declared = (built.label(name) for name in ("kind", "dtype", "declared_dtype"))
    statistics_from, problems = built.label("statistics_from"), built.label("problem")
    for row, report in reported.items():
        if kinds[row] == Kind.STATISTICS:
            dtypes[row], declared[row] = canonical(report.dtype), report.dtype
        if not statistics_from[row]:
            built.statistics[row] = report.statistics.as_row()
            statistics_from[row] = paths.to_text(report.source)
            continue
        computed = Statistics(*built.statistics[row].tolist())
        differ = disagreements(report.statistics, computed, report.digits, dtypes[row])
        if differ:
            said = f"{paths.to_text(report.source)}{DISAGREES}{', '.join(differ)}"
            problems[row] = "; ".join(filter(None, [problems[row], said]))


def _shape(plan: StepPlan, row: int) -> tuple[int, ...]:
    entry = plan.entries[row]
    if entry.kind is Kind.STATISTICS:
        return plan.reported[row].shape
    return entry.header.shape if entry.header else (entry.nbytes,)


def _labels(
    entries: Sequence[Entry], in_device_layout: npt.NDArray[np.bool_], computed: npt.NDArray[np.bool_]
) -> dict[str, list[str]]:
    """Return the text columns of the index."""
    names = [entry.name for entry in entries]
    headers = [entry.header for entry in entries]
    devices = [header.device if header else None for header in headers]
    layouts = ["device" if is_device else "host" for is_device in in_device_layout.tolist()]
    # Parts of file names may hold any bytes; most of them occur again and again.
    text = cache(paths.to_text)
    return {
        "kind": [str(entry.kind) for entry in entries],
        "net": [text(name.net) for name in names],
        "graph": [text(name.graph) for name in names],
        "op_type": [text(name.op_type) for name in names],
        "op_name": [text(name.op_name) for name in names],
        "full_name": [text(name.full_name) for name in names],
        "io": [text(name.io) for name in names],
        "format": [
            text(device.format if device else name.format)
            for name, device in zip(names, devices, strict=True)
        ],
        "declared_dtype": [text(name.declared_dtype) for name in names],
        "dtype": [header.element.name if header else "" for header in headers],
        "array": [entry.array for entry in entries],
        "layout": [layout if device else "" for layout, device in zip(layouts, devices, strict=True)],
        "device_shape": [",".join(map(str, device.shape)) if device else "" for device in devices],
        "source": [paths.to_text(entry.source.path) for entry in entries],
        "lead": [header.lead.decode("latin-1") if header else "" for header in headers],
        "tail": [header.tail.decode("latin-1") if header else "" for header in headers],
        "record": [entry.record for entry in entries],
        "statistics_from": ["computed" if known else "" for known in computed.tolist()],
        "problem": [entry.problem for entry in entries],
    }


def _numbers(
    entries: Sequence[Entry],
    offsets: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    shapes: Sequence[tuple[int, ...]],
) -> dict[str, Any]:
    """Return the integer columns of the index."""
    names = [entry.name for entry in entries]
    headers = [entry.header for entry in entries]
    itemsizes = np.array([header.element.stored_itemsize if header else 1 for header in headers], np.int64)
    return {
        "slot": [name.slot for name in names],
        "occurrence": [name.occurrence for name in names],
        "task": [name.task for name in names],
        "stream": [name.stream for name in names],
        "timestamp": [name.timestamp for name in names],
        "sequence": [name.sequence for name in names],
        "offset": offsets,
        "size": nbytes // itemsizes,
        "nbytes": nbytes,
        "source_offset": [entry.offset for entry in entries],
        "source_nbytes": [entry.nbytes for entry in entries],
        "source_size": [entry.source.size for entry in entries],
        "ndim": [len(shape) for shape in shapes],
        "fortran_order": [int(header.fortran_order) if header else 0 for header in headers],
        "groups": [header.device.groups if header and header.device else 1 for header in headers],
        "mtime_ns": [entry.source.mtime_ns for entry in entries],
    }


def _summarise(
    plan: StepPlan,
    receipts: Sequence[Receipt],
    built: Tables,
    *,
    stored_bytes: int,
    objects: int,
    found: Evaluated | None,
) -> CommitSummary:
    kinds = built.label("kind")
    is_tensor = kinds == Kind.TENSOR
    has_statistics = is_tensor | (kinds == Kind.STATISTICS)
    quarantined = int(np.count_nonzero(kinds == Kind.QUARANTINED))
    nan, pos_inf, neg_inf = (
        np.nan_to_num(built.statistic(name)[has_statistics])
        for name in ("nan_count", "pos_inf_count", "neg_inf_count")
    )
    return CommitSummary(
        key=plan.key,
        fingerprint=plan.fingerprint,
        status="partial" if quarantined or plan.problems else "complete",
        tensors=int(np.count_nonzero(is_tensor)),
        files=int(np.count_nonzero(kinds == Kind.FILE)),
        quarantined=quarantined,
        overflows=int(np.count_nonzero(kinds == Kind.OVERFLOW)),
        statistics_only=int(np.count_nonzero(kinds == Kind.STATISTICS)),
        disagreements=sum(
            1
            for row in plan.reported
            if is_tensor[row] and built.label("problem")[row] != plan.entries[row].problem
        ),
        unparsed=sum(1 for entry in plan.entries if entry.kind is Kind.FILE and entry.problem),
        duplicates=sum(receipt.duplicates for receipt in receipts),
        raw_bytes=plan.nbytes,
        stored_bytes=stored_bytes,
        objects=objects,
        nan_count=int(nan.sum()),
        pos_inf_count=int(pos_inf.sum()),
        neg_inf_count=int(neg_inf.sum()),
        nan_tensors=int(np.count_nonzero(nan)),
        pos_inf_tensors=int(np.count_nonzero(pos_inf)),
        neg_inf_tensors=int(np.count_nonzero(neg_inf)),
        anomalous_tensors=int(np.count_nonzero(nan + pos_inf + neg_inf)),
        rules=found.rules if found else "",
        findings=dict(found.totals) if found else {},
        severities=found.severities if found else {},
        failed_rules=dict(found.failed) if found else {},
        first_findings=found.findings[:_FIRST_FINDINGS] if found else (),
    )


def _problems(plan: StepPlan, built: Tables) -> list[str]:
    named = [
        f"{source}: {problem}"
        for source, problem in zip(built.label("source"), built.label("problem"), strict=True)
        if problem
    ]
    problems = [*map(paths.to_text, plan.problems), *named]
    more = len(problems) - MAX_PROBLEMS_IN_RECORD
    return problems if more <= 0 else [*problems[:MAX_PROBLEMS_IN_RECORD], f"and {more} more, see the index"]
