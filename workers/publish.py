"""`publish`: what a Dask worker runs when all shards of a step are written: receipts become the commit.

Idempotent, and the last write of a step is the one that makes it visible.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from workers import events, paths
from workers.disagreements import disagreements
from workers.errors import DumpIngestError
from workers.formats.dtype_names import canonical
from workers.model import CommitSummary, Entry, Kind, Receipt, Reported, StepPlan
from workers.statistics import Statistics
from workers.store import commit, metadata, tables
from workers.store.objects import open_objects
from workers.store.tables import LABELS, NUMBERS, Tables

#: How many problems a commit record names; all of them are in the index.
MAX_PROBLEMS_IN_RECORD = 100


def publish(plan: StepPlan, receipts: Sequence[Receipt]) -> CommitSummary:
    """Write index, statistics and metadata of a step, then its commit. Returns its totals.

    Raises:
        StoreError: the store refused; the step is not visible, or still in its previous generation.
    """
    started = time.perf_counter()
    if {receipt.number for receipt in receipts} != {job.number for job in plan.jobs}:
        # A programming error, and one that would lose data: refuse rather than commit.
        raise DumpIngestError(f"{plan.key}: receipts do not cover all jobs of the plan")
    built = _tables(plan, receipts)
    documents, chunks = tables.encode(built)
    ends = _ends(receipts)
    nodes: dict[str, metadata.Document] = {"": metadata.group(), "index": metadata.group(), **documents}
    if any(path.startswith("tensors/") for path in ends):
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
    )
    commit.write(
        open_objects(plan.store),
        summary,
        origin=plan.origin,
        nodes=nodes,
        objects_to_write=chunks,
        facts={
            "nets": sorted(set(built.label("net")) - {""}),
            "graphs": sorted(set(built.label("graph")) - {""}),
            "stored": shards,
            "problems": _problems(plan, built),
        },
    )
    events.emit(events.Published(summary, time.perf_counter() - started))
    return summary


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
    computed: npt.NDArray[np.bool_] = np.asarray(~np.isnan(statistics).all(axis=1))
    labels = [
        _labels(entry, in_device_layout=bool(in_device_layout[row]), computed=bool(computed[row]))
        for row, entry in enumerate(entries)
    ]
    shapes = [_shape(plan, row) for row in range(n)]
    _take_reported(plan.reported, statistics, labels)
    return Tables(
        labels=np.array([[values[field] for field in LABELS] for values in labels], object),
        numbers=np.array(
            [
                _numbers(entry, int(offsets[row]), int(nbytes[row]), len(shapes[row]))
                for row, entry in enumerate(entries)
            ],
            np.int64,
        ),
        shape=tables.shape_table(shapes),
        digest=digest,
        statistics=statistics,
    )


def _take_reported(
    reported: Mapping[int, Reported], statistics: npt.NDArray[np.float64], labels: list[dict[str, str]]
) -> None:
    """Enter the statistics that the dump gives, where none were computed; elsewhere compare them."""
    for row, report in reported.items():
        if labels[row]["kind"] == Kind.STATISTICS:
            labels[row]["dtype"] = canonical(report.dtype)
            labels[row]["declared_dtype"] = report.dtype
        if not labels[row]["statistics_from"]:
            statistics[row] = report.statistics.as_row()
            labels[row]["statistics_from"] = paths.to_text(report.source)
            continue
        computed = Statistics(*statistics[row].tolist())
        differ = disagreements(report.statistics, computed, report.digits, labels[row]["dtype"])
        if differ:
            said = f"{paths.to_text(report.source)} disagrees: {', '.join(differ)}"
            labels[row]["problem"] = "; ".join(filter(None, [labels[row]["problem"], said]))


def _shape(plan: StepPlan, row: int) -> tuple[int, ...]:
    entry = plan.entries[row]
    if entry.kind is Kind.STATISTICS:
        return plan.reported[row].shape
    return entry.header.shape if entry.header else (entry.nbytes,)


def _labels(entry: Entry, *, in_device_layout: bool, computed: bool) -> dict[str, str]:
    name, header = entry.name, entry.header
    device = header.device if header else None
    values = {
        "kind": entry.kind.value,
        "net": name.net,
        "graph": name.graph,
        "op_type": name.op_type,
        "op_name": name.op_name,
        "full_name": name.full_name,
        "io": name.io,
        "format": device.format if device else name.format,
        "declared_dtype": name.declared_dtype,
        "dtype": header.element.name if header else "",
        "array": entry.array,
        "layout": ("device" if in_device_layout else "host") if device else "",
        "device_shape": ",".join(map(str, device.shape)) if device else "",
        "source": entry.source.path,
        "lead": header.lead.decode("latin-1") if header else "",
        "tail": header.tail.decode("latin-1") if header else "",
        "record": entry.record,
        "statistics_from": "computed" if computed else "",
        "problem": entry.problem,
    }
    return {field: paths.to_text(value) if field in _FROM_PATHS else value for field, value in values.items()}


#: Columns cut out of file names, which may hold any bytes.
_FROM_PATHS = frozenset(
    ["net", "graph", "op_type", "op_name", "full_name", "io", "format", "declared_dtype", "source"]
)


def _numbers(entry: Entry, offset: int, nbytes: int, ndim: int) -> tuple[int, ...]:
    name, header = entry.name, entry.header
    values = {
        "slot": name.slot,
        "occurrence": name.occurrence,
        "task": name.task,
        "stream": name.stream,
        "timestamp": name.timestamp,
        "sequence": name.sequence,
        "offset": offset,
        "size": nbytes // (header.element.stored_itemsize if header else 1),
        "nbytes": nbytes,
        "source_offset": entry.offset,
        "source_nbytes": entry.nbytes,
        "source_size": entry.source.size,
        "ndim": ndim,
        "fortran_order": int(header.fortran_order) if header else 0,
        "groups": header.device.groups if header and header.device else 1,
        "mtime_ns": entry.source.mtime_ns,
    }
    return tuple(values[field] for field in NUMBERS)


def _summarise(
    plan: StepPlan, receipts: Sequence[Receipt], built: Tables, *, stored_bytes: int, objects: int
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
        disagreements=sum(1 for row in plan.reported if is_tensor[row] and built.label("problem")[row]),
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
