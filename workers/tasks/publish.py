"""`publish`: the Dask task that commits a step when all of its shards are written.

Idempotent. The last write of a step is the one that makes it visible.

Its tables are built from its entries and the receipts of its jobs. Statistics that a dump reports are
compared with those computed from its tensors. Both are rounded: the reported ones when they were printed and,
on an accelerator, while they were summed up. `device_stat_precision_mode: low` of MindSpore sums in the type
of the elements. Besides half a unit of the last printed digit, this tolerates:

- in every value, 2**-23 of it, because it may have passed through float32, and denormals of float32, which
  accelerators flush to zero;
- in the L2 norm and the standard deviation, the share of them that `_SUMMING` gives for the type;
- in the mean, the same share of the root mean square, because terms of opposite sign cancel.

Counts must be equal, unless the reported one was printed with fewer digits than it has, or is only the least.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers import events
from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import canonical
from workers.arrays.histogram import NO_BINS, Histogram
from workers.arrays.marginals import MarginalScope
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, NON_FINITE_FIELDS, Statistics
from workers.dump import paths
from workers.dump.formats.header import TensorHeader
from workers.dump.model import ReportedStatistics
from workers.errors import DamagedStore, DumpIngestError, SourceChanged
from workers.model import SourceFile, StepKey
from workers.rules.step import evaluate
from workers.store import commit, findings, metadata, tables
from workers.store.backends.failures import supervised
from workers.store.model import LARGEST_COUNT, CommitSummary, Evaluated, RowKind
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.store.packed.pool import PooledArray
from workers.store.record import CommitRecord, PoisonedSource, WithoutTensors, new_record
from workers.store.sketches import (
    BLOCK_TABLE,
    HISTOGRAM_TABLE,
    MARGINALS_OF_SCOPE,
    StepMarginals,
    StepSketches,
    distinct_payloads,
    distinct_tensors,
    is_of_rows,
    rows_of,
)
from workers.store.tables import LABELS, NUMBERS, Tables, checksums_of, with_disagreement
from workers.tasks.model import EntryColumns, Headers, Published, Receipt, StepPlan

#: Relative error of a sum on a device: four times the rounding of one addition in the narrow types. All
#: others are summed in float32, whose many small errors add up.
_SUMMING = {"float16": 2.0**-8, "bfloat16": 2.0**-5}
_SUMMING_IN_FLOAT32 = 2.0**-16
_THROUGH_FLOAT32 = 2.0**-23
_LARGEST_DENORMAL = 2.0**-126


def disagreements(report: ReportedStatistics, computed: Statistics, dtype: str) -> list[str]:
    """Return a sentence for each field that both know and that cannot be the same number, rounded.

    Args:
        report: what the dump system wrote, by our definitions.
        computed: from the tensor itself.
        dtype: name of the element type in `workers.arrays.dtypes`.
    """
    differences = []
    for field in FIELDS:
        printed, value = getattr(report.statistics, field), getattr(computed, field)
        if math.isnan(printed) or math.isnan(value):
            continue
        if field == "std" and report.std_is_of_sample:
            finite = max(_finite(computed), 1)
            printed *= math.sqrt((finite - 1) / finite)
        if report.counts_are_least and field in NON_FINITE_FIELDS and 0 < printed <= value:
            continue
        if abs(printed - value) > _tolerance(field, printed, computed, _unit(printed, report), dtype):
            digits = report.digits
            differences.append(f"{field}: {printed:.{digits}g} is reported, {value:.{digits + 3}g} computed")
    return differences


def _tolerance(field: str, printed: float, computed: Statistics, unit: float, dtype: str) -> float:
    if field in COUNT_FIELDS:
        return unit / 2 if unit > 1 and printed % unit == 0 else 0
    tolerance = unit / 2 + abs(printed) * _THROUGH_FLOAT32 + _LARGEST_DENORMAL
    summing = _SUMMING.get(dtype, _SUMMING_IN_FLOAT32)
    if field in ("l2_norm", "std"):
        tolerance += summing * abs(getattr(computed, field))
    elif field == "mean" and computed.l2_norm > 0:
        tolerance += summing * computed.l2_norm / math.sqrt(max(_finite(computed), 1))
    return tolerance


def _unit(value: float, report: ReportedStatistics) -> float:
    """Return the unit of the last printed digit of a value."""
    unit = 0.0
    if value and math.isfinite(value):
        unit = float(10.0 ** (math.floor(math.log10(abs(value))) - report.digits + 1))
    return unit if report.decimals < 0 else max(unit, 10.0**-report.decimals)


def _finite(statistics: Statistics) -> float:
    return statistics.count - statistics.nan_count - statistics.pos_inf_count - statistics.neg_inf_count


_Column: TypeAlias = Sequence[Any] | npt.NDArray[Any]
#: The columns of the statistics that are counts.
_COUNTS = [FIELDS.index(name) for name in COUNT_FIELDS]
#: Kinds of rows whose payload is not that of their header.
_WITHOUT_TENSOR = RowKind.STATISTICS, RowKind.PART
#: The largest count that float64 holds exactly.
_LARGEST_COUNT = 2.0**53


def build_tables(
    entries: EntryColumns, reported: Mapping[int, ReportedStatistics], receipts: Sequence[Receipt]
) -> Tables:
    """Return the index and the statistics of a step whose jobs are all done.

    Args:
        entries: the rows of the index.
        reported: by row, the statistics that the dump itself reports.
        receipts: the receipts of all jobs.
    """
    kinds, headers, n = entries.column("kind"), entries.headers, len(entries)
    is_statistics, is_part = (np.array([kind is other for kind in kinds], bool) for other in _WITHOUT_TENSOR)
    of_headers = headers.column(_from_header(lambda header: header.nbytes, -1)).astype(np.int64)
    source_nbytes = np.where(of_headers < 0, np.array(entries.column("source.size"), np.int64), of_headers)
    source_nbytes[is_statistics] = 0
    offsets, nbytes = np.full(n, -1, np.int64), source_nbytes.copy()
    in_device_layout = np.zeros(n, np.bool_)
    # A view has a payload in the store and none in its file.
    source_nbytes[headers.column(_is_view).astype(np.bool_)] = 0
    digest, statistics = tables.empty_digests(n), tables.empty_statistics(n)
    for receipt in receipts:
        offsets[receipt.rows] = receipt.offsets
        nbytes[receipt.rows] = receipt.nbytes
        in_device_layout[receipt.rows] = receipt.in_device_layout
        digest[receipt.rows] = receipt.digests
        statistics[receipt.rows] = receipt.statistics
    shapes = headers.column(_from_header(lambda header: header.shape, None)).tolist()
    for row in [row for row, shape in enumerate(shapes) if shape is None]:
        shapes[row] = reported[row].shape if is_statistics[row] else (int(source_nbytes[row]),)
    numbers: dict[str, _Column] = _numbers(entries, headers) | {
        "offset": offsets,
        "size": nbytes // headers.column(_stored_itemsize).astype(np.int64),
        "nbytes": nbytes,
        "source_nbytes": source_nbytes,
        "ndim": [len(shape) for shape in shapes],
    }
    arrays = headers.column(_from_header(lambda header: f"tensors/{header.element.array}", "files"))
    arrays[is_part], arrays[is_statistics] = "files", ""
    for pooled in (pooled for receipt in receipts for pooled in receipt.pooled):
        for row in pooled.rows:
            arrays[row] = pooled.path
    leads, tails = _leads_and_tails(entries, headers, receipts)
    labels: dict[str, _Column] = _labels(entries, headers) | {
        "lead": leads,
        "tail": tails,
        "array": arrays,
        "layout": _layouts(headers, in_device_layout),
        "statistics_from": np.where(np.isnan(statistics).all(axis=1), "", "computed").astype(object),
    }
    disagreeing = np.zeros(n, np.bool_)
    built = Tables(
        labels=_filled(LABELS, object, labels),
        numbers=_filled(NUMBERS, np.int64, numbers),
        shape=tables.shape_table(shapes),
        digest=digest,
        statistics=statistics,
        known_disagreeing=disagreeing,
    )
    _merge_reported(reported, built, disagreeing)
    return built


def _from_header(derived: Callable[[TensorHeader], object], missing: object) -> Callable[[Any], object]:
    return lambda header: derived(header) if header else missing


def _from_device(derived: Callable[[DeviceLayout], object], missing: object) -> Callable[[Any], object]:
    return lambda header: derived(header.device) if header and header.device else missing


_is_view = _from_header(lambda header: header.view is not None, missing=False)
_stored_itemsize = _from_header(lambda header: header.element.stored_itemsize, 1)


def _layouts(headers: Headers, in_device_layout: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    has_device = headers.column(_from_device(lambda _: True, missing=False)).astype(np.bool_)
    return np.where(has_device, np.where(in_device_layout, "device", "host"), "").astype(object)


def _leads_and_tails(
    entries: EntryColumns, headers: Headers, receipts: Sequence[Receipt]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return what stands before the payload of each row, and what stands behind it, as latin-1 text.

    Raises:
        DumpIngestError: the plan has only the digest of an envelope, and no receipt has it.
    """
    leads, tails = headers.texts(0), headers.texts(1)
    missing = {row for row, digest in enumerate(entries.column("envelope_digest")) if digest is not None}
    for receipt in receipts:
        if receipt.envelopes is None:
            continue
        for row, texts in receipt.envelopes.texts():
            leads[row], tails[row] = texts
        missing.difference_update(receipt.envelopes.rows)
    if missing:
        # A programming error, and one that would lose data.
        raise DumpIngestError(f"row {min(missing)}: no receipt has its envelope")
    return leads, tails


def _labels(entries: EntryColumns, headers: Headers) -> dict[str, _Column]:
    # Parts of file names may hold any bytes. Most of them repeat.
    text = cache(paths.to_text)
    names = ("net", "graph", "op_type", "op_name", "full_name", "io", "format", "declared_dtype")
    labels: dict[str, _Column] = {name: list(map(text, entries.column(f"name.{name}"))) for name in names}
    formats = headers.column(_from_device(lambda device: text(device.format), None))
    return labels | {
        "kind": list(map(str, entries.column("kind"))),
        "format": [
            in_name if in_content is None else in_content
            for in_name, in_content in zip(labels["format"], formats, strict=True)
        ],
        "dtype": headers.column(_from_header(lambda header: header.element.name, "")),
        "device_shape": headers.column(_from_device(lambda device: ",".join(map(str, device.shape)), "")),
        "source": list(map(paths.to_text, entries.column("source.path"))),
        "record": entries.column("record"),
        # Names in a dump that a problem quotes may have halves of surrogate pairs.
        "problem": [
            problem.encode("utf-8", "backslashreplace").decode() if problem else ""
            for problem in entries.column("problem")
        ],
    }


def _numbers(entries: EntryColumns, headers: Headers) -> dict[str, _Column]:
    names = ("slot", "occurrence", "task", "stream", "timestamp", "sequence")
    numbers: dict[str, _Column] = {name: entries.column(f"name.{name}") for name in names}
    return numbers | {
        "source_offset": headers.column(_from_header(lambda header: header.offset, 0)),
        "source_size": entries.column("source.size"),
        "fortran_order": headers.column(_from_header(lambda header: int(header.fortran_order), 0)),
        "groups": headers.column(_from_device(lambda device: device.groups, 1)),
        "mtime_ns": entries.column("source.mtime_ns"),
    }


def _filled(fields: Sequence[str], dtype: Any, columns: Mapping[str, _Column]) -> npt.NDArray[Any]:
    table = np.empty((len(columns[fields[0]]), len(fields)), dtype)
    for number, field in enumerate(fields):
        table[:, number] = columns[field]
    return table


def _merge_reported(
    reported: Mapping[int, ReportedStatistics], built: Tables, disagreeing: npt.NDArray[np.bool_]
) -> None:
    """Add the statistics that the dump reports to rows without computed ones; compare them in other rows."""
    kinds, dtypes, declared = (built.label(name) for name in ("kind", "dtype", "declared_dtype"))
    statistics_from, problems = built.label("statistics_from"), built.label("problem")
    taken = []
    for row, report in reported.items():
        if kinds[row] == RowKind.STATISTICS:
            dtypes[row], declared[row] = map(paths.to_text, (canonical(report.dtype), report.dtype))
        if not statistics_from[row]:
            built.statistics[row] = report.statistics.as_row()
            statistics_from[row] = paths.to_text(report.source)
            taken.append(row)
            continue
        computed = Statistics(*built.statistics[row].tolist())
        differences = disagreements(report, computed, dtypes[row])
        if differences:
            problems[row] = with_disagreement(problems[row], paths.to_text(report.source), differences)
            disagreeing[row] = True
    at = np.ix_(taken, _COUNTS)
    counts = built.statistics[at]
    # No tensor has some of them, such as -1 printed without a sign.
    built.statistics[at] = np.where((counts >= 0) & (counts <= _LARGEST_COUNT), counts, np.nan)


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
    # Files that belong to no step have no findings.
    rules = plan.rules if plan.key.step is not None else None
    result = None if rules is None else evaluate(rules, built, plan.key, sketches)
    documents, chunks = _encode(plan, receipts, built, sketches, result)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    without = WithoutTensors(since, "policy", plan.without_tensors) if plan.without_tensors else None
    nodes = _nodes(plan, receipts, documents, has_tensors=without is None)
    shards = {key: size for receipt in receipts for key, size in receipt.stored.items()}
    pooled = _pooled(receipts)
    problems, skipped = _problems(plan, built)
    summary = _summarise(
        plan,
        receipts,
        built,
        stored_bytes=sum(shards.values())
        + sum(map(len, chunks.values()))
        + sum(array.nbytes for array in pooled.values()),
        objects=len(shards) + len(chunks) + len(nodes) + 2 * len(pooled) + 1,
        skipped=skipped,
        result=result,
    )
    record = new_record(
        summary,
        origin=plan.origin,
        stored=shards,
        without_tensors=without,
        nets=tuple(sorted(set(built.label("net")) - {""})),
        graphs=tuple(sorted(set(built.label("graph")) - {""})),
        problems=problems,
        poison=_poison(plan.poison, entries),
        pool=pooled,
        checksums=checksums_of(chunks),
    )
    return Assembled(built, summary, nodes, chunks, record)


def _sketches(plan: StepPlan, receipts: Sequence[Receipt], built: Tables) -> StepSketches:
    computed = (receipt.histograms for receipt in receipts)
    # Of tensors of which the dump has no elements: those that agree with the statistics.
    kinds, rows, parts = built.label("kind"), [], []
    for row, report in plan.reported.items():
        bins = np.frombuffer(report.histogram, np.int64).reshape(-1, NO_BINS.shape[1])
        if len(bins) and kinds[row] == RowKind.STATISTICS:
            with suppress(ValueError):
                Histogram.of_rows(bins, Statistics.from_row(built.statistics[row].tolist()))
                rows.append(row)
                parts.append(bins)
    reported = HISTOGRAM_TABLE.gathered(rows, list(map(len, parts)), parts)
    entries = HISTOGRAM_TABLE.joined((*computed, reported))
    summed = StepMarginals.joined(receipt.marginals for receipt in receipts if receipt.marginals is not None)
    if built.has_views:
        entries = entries[is_of_rows(entries, distinct_tensors(rows_of(entries), built))]
        summed = summed.without_copies(built)
    return StepSketches(entries, summed, scope=plan.marginals if plan.sketches else MarginalScope.NONE)


def _encode(
    plan: StepPlan,
    receipts: Sequence[Receipt],
    built: Tables,
    sketches: StepSketches,
    result: Evaluated | None,
) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
    encoded = [tables.encode(built)]
    if plan.rules is not None and result is not None:
        encoded.append(findings.encode(plan.rules.definitions, result))
    if plan.sketches:
        # Equal bytes of different types are payloads of their own when they are converted.
        blocks = BLOCK_TABLE.joined(receipt.block_digests for receipt in receipts)
        blocks = blocks[is_of_rows(blocks, distinct_payloads(rows_of(blocks), built))]
        encoded += [
            HISTOGRAM_TABLE.encode(sketches.histograms),
            BLOCK_TABLE.encode(blocks),
        ]
        if (arrays := MARGINALS_OF_SCOPE.get(plan.marginals)) is not None:
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
    ends: dict[str, int] = {}
    for path, end in (end for receipt in receipts for end in receipt.ends.items()):
        if has_tensors or not metadata.is_of_tensors(path):
            ends[path] = max(ends.get(path, 0), end)
    nodes: dict[str, metadata.Document] = {"": metadata.group(), "index": metadata.group(), **documents}
    if any(map(metadata.is_of_tensors, ends)):
        nodes["tensors"] = metadata.group()
    packed = {spec.path: spec for spec in plan.arrays if ends.get(spec.path)}
    return nodes | {path: metadata.packed_array(spec, ends[path]) for path, spec in packed.items()}


def _refuse_to_replace_tensors(objects: ObjectStore, key: StepKey) -> None:
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


def _pooled(receipts: Sequence[Receipt]) -> dict[str, PooledArray]:
    """Return arrays in the pool by path, sorted, because ranks pack the same ones in different orders."""
    arrays = {rows.path: rows.array for receipt in receipts for rows in receipt.pooled}
    return dict(sorted(arrays.items()))


def _problems(plan: StepPlan, built: Tables) -> tuple[tuple[str, ...], int]:
    """Return the problems that the commit record lists, and how many of them the index does not have."""
    of_rows = [
        f"{source}: {problem}"
        for source, problem in zip(built.label("source"), built.label("problem"), strict=True)
        if problem
    ]
    known, of_plan = set(of_rows), list(map(paths.to_text, plan.problems))
    listed = [*of_plan, *of_rows]
    if (more := len(listed) - MAX_PROBLEMS_IN_RECORD) > 0:
        listed[MAX_PROBLEMS_IN_RECORD:] = [f"and {more} more, see the index"]
    return tuple(listed), sum(problem not in known for problem in of_plan)


def _summarise(
    plan: StepPlan, receipts: Sequence[Receipt], built: Tables, *, result: Evaluated | None, **totals: Any
) -> CommitSummary:
    counts = count_rows(built)
    return CommitSummary(
        key=plan.key,
        fingerprint=plan.fingerprint,
        status="partial" if counts["quarantined"] or plan.problems else "complete",
        duplicates=sum(receipt.duplicates for receipt in receipts),
        raw_bytes=plan.nbytes,
        **totals,
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
    if result is None:
        return {}
    return {
        "rules": result.rules,
        "findings": dict(result.totals),
        "severities": result.severities,
        "failed_rules": dict(result.failed),
        "first_findings": result.findings[:_FIRST_FINDINGS],
    }
