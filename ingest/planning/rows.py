"""Makes the rows of a step's index from its files: the kind of each row, and the facts about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ingest.layouts.base import TensorFile
from ingest.planning.inspection import OVERFLOW_OP_TYPE, Inspected, Inspection
from workers.dump.formats.header import TensorHeader
from workers.dump.formats.overflow import OverflowRecord
from workers.dump.model import ReportedStatistics, TensorName
from workers.dump.paths import to_text
from workers.model import SourceFile
from workers.store.model import RowKind
from workers.tasks.model import Entry

#: How dump systems replace characters in the name of an operator when they make a file name of it.
_IN_FILE_NAMES = str.maketrans({"/": "_", ".": "_", "\\": "_", " ": "_"})


class PlannedRow(msgspec.Struct, frozen=True):
    """One row of the index, with what only planning needs."""

    entry: Entry
    sample: int | None = None
    """Hash of the first payload bytes of a tensor; None for anything else."""
    overflow: OverflowRecord | None = None
    reported: ReportedStatistics | None = None


def plan_rows(inspected: Inspected) -> list[PlannedRow]:
    """Return the rows of a step, in order of execution as far as it is known.

    That is the order of the writer's clock, or else of the list that the dump keeps. Rows that have neither
    come first, in order of path; among them, gradients come after everything else, as in each step.
    """
    rows = [row for file in inspected.listing.files for row in _rows_of(inspected, file)]
    rows = _with_reported(rows, inspected)
    rows.sort(
        key=lambda row: (
            row.entry.name.timestamp,
            row.entry.name.sequence,
            row.entry.name.op_type == "Gradient",
            row.entry.source.path,
            row.entry.offset,
        )
    )
    return _with_failed_operators(_with_occurrences(rows))


def _rows_of(inspected: Inspected, file: SourceFile) -> Iterable[PlannedRow]:
    inspection = inspected.inspections.get(file.path)
    named = inspected.description.named.get(file.path)
    name = named.name if named else None
    if file.path in inspected.description.sections:
        return ()
    if inspection is None:
        entry = Entry(file, RowKind.FILE, TensorName())
    elif not inspection.readable or inspection.problem:
        entry = _bad_entry(file, name, inspection, is_named=named is not None)
    elif inspection.overflow is not None:
        return _overflow_rows(file, name or TensorName(op_type=OVERFLOW_OP_TYPE), inspection)
    elif name is None:
        entry = Entry(file, RowKind.FILE, TensorName(), problem=_NOT_UNDERSTOOD)
    elif inspection.headers:
        return _tensor_rows(file, named or TensorFile(name), name, inspection)
    elif inspection.record:
        entry = Entry(file, RowKind.FILE, name, record=inspection.record)
    else:
        problem = f"holds no tensor; kept as a file{inspection.note and f': {inspection.note}'}"
        entry = Entry(file, RowKind.FILE, name, problem=problem)
    return (PlannedRow(entry),)


_NOT_UNDERSTOOD = "its name is not understood; kept as a file"


def _bad_entry(file: SourceFile, name: TensorName | None, inspection: Inspection, *, is_named: bool) -> Entry:
    """Return a file that something is wrong with. It is quarantined, unless it may not be a tensor at all."""
    if is_named and name is None and inspection.readable and not inspection.is_poison:
        return Entry(file, RowKind.FILE, TensorName(), problem=_NOT_UNDERSTOOD)
    return Entry(
        file,
        RowKind.QUARANTINED,
        name or TensorName(),
        problem=inspection.problem,
        readable=inspection.readable,
    )


def _tensor_rows(
    file: SourceFile, named: TensorFile, name: TensorName, inspection: Inspection
) -> Iterator[PlannedRow]:
    for header, sample in zip(inspection.headers, inspection.samples, strict=True):
        if header.is_part:
            yield PlannedRow(Entry(file, RowKind.PART, TensorName(), header, record=header.record))
            continue
        own = named.name_member(name, header.path, header.number) if header.number >= 0 else name
        told = named.attributes.get(".".join(header.path)) if named.attributes else None
        record = inspection.record or header.record
        record = _with_told(record, told) if told else record
        completed, envelope = _completed(own, header), inspection.envelope_digest
        # By position: by name, it takes half as long again.
        entry = Entry(file, RowKind.TENSOR, completed, header, envelope, header.problem, True, record)  # noqa: FBT003
        yield PlannedRow(entry, sample)


def _overflow_rows(file: SourceFile, name: TensorName, inspection: Inspection) -> Iterator[PlannedRow]:
    if not inspection.headers:
        yield PlannedRow(Entry(file, RowKind.OVERFLOW, name), overflow=inspection.overflow)
    for number, (header, sample) in enumerate(zip(inspection.headers, inspection.samples, strict=True)):
        kind = RowKind.OVERFLOW if number == 0 else RowKind.TENSOR
        entry = Entry(file, kind, _completed(name, header), header, inspection.envelope_digest)
        yield PlannedRow(entry, sample, inspection.overflow if number == 0 else None)


def _completed(name: TensorName, header: TensorHeader) -> TensorName:
    """Return a name, with what the content adds to it."""
    if not (header.io or header.slot >= 0 or header.format or header.declared_dtype or header.full_name):
        return name
    return name._replace(
        io=header.io or name.io,
        slot=header.slot if header.slot >= 0 else name.slot,
        format=header.format or name.format,
        declared_dtype=header.declared_dtype or name.declared_dtype,
        full_name=header.full_name or name.full_name,
        op_name=name.op_name or header.full_name.translate(_IN_FILE_NAMES),
    )


def _with_reported(rows: Sequence[PlannedRow], inspected: Inspected) -> list[PlannedRow]:
    """Join the statistics in the dump to their tensors. Those without a tensor become rows of their own."""
    files = {file.path: file for file in inspected.listing.files}
    joined = list(rows)
    by_path: dict[str, int] = {}
    by_name: dict[tuple[object, ...], int] = {}
    for number, row in enumerate(rows if inspected.description.reported else ()):
        if row.entry.kind is RowKind.TENSOR:
            by_path.setdefault(row.entry.source.path, number)
            by_name.setdefault(_identity(row.entry.name), number)
    for report in inspected.description.reported:
        index = by_path.get(report.tensor) if report.tensor else by_name.get(_identity(report.name))
        if index is not None and joined[index].reported is None:
            row = joined[index]
        else:
            row, index = PlannedRow(Entry(files[report.source], RowKind.STATISTICS, report.name)), len(joined)
            joined.append(row)
        told = report.attributes
        entry = row.entry._replace(record=_with_told(row.entry.record, told)) if told else row.entry
        joined[index] = replace(row, entry=entry, reported=report)
    return joined


def _with_told(text: str, told: str) -> str:
    """Return the record of a row, with what the dump says besides of its tensor; both as JSON."""
    record = json.loads(text) if text else {}
    record["tensor"] = {**record.get("tensor", {}), **json.loads(told)}
    return json.dumps(record)


def _identity(name: TensorName) -> tuple[object, ...]:
    """Return what a row of a table and the name of its tensor file have in common."""
    operator = name.net, name.graph, name.op_type, name.op_name
    return *operator, name.task, name.stream, name.timestamp, name.io, name.slot


def _with_occurrences(rows: Iterable[PlannedRow]) -> list[PlannedRow]:
    """Return the rows with the dumps of each slot numbered in order of time: loops dump it several times."""
    count: dict[tuple[object, ...], int] = {}
    numbered = []
    for row in rows:
        entry, occurrence = row.entry, 0
        if entry.kind in _NUMBERED:
            slot = entry.name[:_SLOT_END]
            occurrence = count[slot] = count.get(slot, -1) + 1
        renamed = entry._replace(name=entry.name._replace(occurrence=occurrence)) if occurrence else entry
        numbered.append(replace(row, entry=renamed) if occurrence else row)
    return numbered


_NUMBERED = frozenset([RowKind.TENSOR, RowKind.STATISTICS, RowKind.QUARANTINED, RowKind.OVERFLOW])
#: The first fields of a name, up to `slot`, are what is dumped.
_SLOT_END = TensorName._fields.index("slot") + 1


def _with_failed_operators(rows: list[PlannedRow]) -> list[PlannedRow]:
    """Add to each overflow record the operators that failed: those with its streams and tasks.

    The name of a record has the task and the stream of the check; the record has the operator's.
    """
    if all(row.overflow is None for row in rows):
        return rows
    operators: dict[tuple[str, int, int], TensorName] = {}
    for row in rows:
        if row.entry.kind in (RowKind.TENSOR, RowKind.STATISTICS, RowKind.QUARANTINED):
            name = row.entry.name
            operators.setdefault((_directory(row.entry), name.stream, name.task), name)
    return [_with_operators(row, operators) if row.overflow else row for row in rows]


def _with_operators(row: PlannedRow, operators: dict[tuple[str, int, int], TensorName]) -> PlannedRow:
    assert row.overflow is not None  # noqa: S101 (for mypy)
    failed = []
    for failure in row.overflow.failures():
        operator = operators.get((_directory(row.entry), failure.stream_id, failure.task_id))
        failed.append(
            {
                "unit": failure.unit,
                "stream": failure.stream_id,
                "task": failure.task_id,
                # As the index names it: file names may have any bytes.
                "op_type": to_text(operator.op_type) if operator else "",
                "op_name": to_text(operator.op_name) if operator else "",
            }
        )
    record = json.dumps({"failed": failed, "record": row.overflow.to_json()}, sort_keys=True)
    return replace(row, entry=row.entry._replace(record=record))


def _directory(entry: Entry) -> str:
    return entry.source.path.rpartition("/")[0]
