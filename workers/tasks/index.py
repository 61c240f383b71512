"""Builds the tables of a step from its entries and the receipts of its jobs. Pure arithmetic.

Compares statistics that a dump reports with those computed from its tensors.

Both are rounded: the reported ones when they were printed and, on an accelerator, while they were summed up.
`device_stat_precision_mode: low` of MindSpore sums in the type of the elements. Besides half a unit of the
last printed digit, this tolerates:

- in every value, 2**-23 of it, because it may have passed through float32, and denormals of float32, which
  accelerators flush to zero;
- in the L2 norm and the standard deviation, the share of them that `_SUMMING` gives for the type;
- in the mean, the same share of the root mean square, because terms of opposite sign cancel.

Counts must be equal, unless the reported one was printed with fewer digits than it has, or is only the least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import canonical
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, NON_FINITE_FIELDS, Statistics
from workers.dump import paths
from workers.dump.formats.header import TensorHeader
from workers.dump.model import ReportedStatistics
from workers.errors import DumpIngestError
from workers.store import tables
from workers.store.model import RowKind
from workers.store.tables import LABELS, NUMBERS, Tables, with_disagreement
from workers.tasks.columns import EntryColumns, Headers
from workers.tasks.model import Receipt

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
    unit = _last_digit(value, report.digits)
    return unit if report.decimals < 0 else max(unit, 10.0**-report.decimals)


def _last_digit(value: float, digits: int) -> float:
    """Return the unit of the last printed digit of a value."""
    if not value or not math.isfinite(value):
        return 0.0
    return float(10.0 ** (math.floor(math.log10(abs(value))) - digits + 1))


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
    leads, tails = headers.leads, headers.tails
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
    """Return the text columns of the index that do not depend on the conversion."""
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
        "problem": [_encodable(problem) if problem else "" for problem in entries.column("problem")],
    }


def _encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which names in a dump that it quotes may have."""
    return text.encode("utf-8", "backslashreplace").decode()


def _numbers(entries: EntryColumns, headers: Headers) -> dict[str, _Column]:
    """Return the integer columns of the index that do not depend on the conversion."""
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
    """Return columns as a table of `fields`. Rows of dicts would take three times as long."""
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
    counts = np.ix_(taken, _COUNTS)
    built.statistics[counts] = _possible_counts(built.statistics[counts])


def _possible_counts(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return counts with NaN in the place of those that no tensor has, such as -1 printed without a sign."""
    return np.where((counts >= 0) & (counts <= _LARGEST_COUNT), counts, np.nan)
