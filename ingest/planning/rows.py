"""From the files of a step to the rows of its index: what each is, and what names and contents tell of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ingest.planning.inspection import OVERFLOW_OP_TYPE, Inspected, Inspection
from workers.dump.formats.header import TensorHeader
from workers.dump.formats.overflow import OverflowRecord
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile
from workers.store.model import RowKind
from workers.tasks.model import Entry

#: What the dump systems put in the place of these characters when they make a file name of an operator's.
_IN_FILE_NAMES = str.maketrans({"/": "_", ".": "_", "\\": "_", " ": "_"})


class Row(NamedTuple):
    """One row of the index, and what only planning needs to know of it."""

    entry: Entry
    sample: int | None = None
    """Hash of the first payload bytes of a tensor."""
    overflow: OverflowRecord | None = None
    reported: ReportedStatistics | None = None


def plan_rows(inspected: Inspected) -> list[Row]:
    """Return the rows of a step, in order of execution as far as the dump tells.

    That is the order of the writer's clock; where there is none, that of the list that the dump keeps; what
    has neither comes first, in order of path.
    """
    rows = [row for file in inspected.listing.files for row in _rows_of(inspected, file)]
    rows = _with_reported(rows, inspected)
    rows.sort(key=_place)
    return _with_failed_operators(_with_occurrences(rows))


def _place(row: Row) -> tuple[int, int, str, int]:
    entry = row.entry
    return entry.name.timestamp, entry.name.sequence, entry.source.path, entry.offset


def _rows_of(inspected: Inspected, file: SourceFile) -> Iterator[Row]:
    inspection = inspected.inspections.get(file.path)
    named = inspected.description.named.get(file.path)
    name = named.name if named else None
    if inspection is None:
        yield Row(Entry(file, RowKind.FILE, TensorName()))
    elif not inspection.readable or inspection.problem:
        readable = inspection.readable
        if named is not None and name is None and readable and not inspection.is_poison:
            yield Row(Entry(file, RowKind.FILE, TensorName(), problem=_NOT_UNDERSTOOD))
        else:
            wrong = inspection.problem
            yield Row(
                Entry(file, RowKind.QUARANTINED, name or TensorName(), problem=wrong, readable=readable)
            )
    elif inspection.overflow is not None:
        yield from _overflow_rows(file, name or TensorName(op_type=OVERFLOW_OP_TYPE), inspection)
    elif name is None:
        yield Row(Entry(file, RowKind.FILE, TensorName(), problem=_NOT_UNDERSTOOD))
    elif not inspection.headers:
        said = f"holds no tensor; kept as a file{inspection.note and f': {inspection.note}'}"
        yield Row(Entry(file, RowKind.FILE, name, problem=said))
    else:
        for header, sample in zip(inspection.headers, inspection.samples, strict=True):
            entry = Entry(file, RowKind.TENSOR, _completed(name, header), header, problem=header.problem)
            yield Row(entry, sample)


_NOT_UNDERSTOOD = "its name is not understood; kept as a file"


def _overflow_rows(file: SourceFile, name: TensorName, inspection: Inspection) -> Iterator[Row]:
    if not inspection.headers:
        yield Row(Entry(file, RowKind.OVERFLOW, name), overflow=inspection.overflow)
    for number, (header, sample) in enumerate(zip(inspection.headers, inspection.samples, strict=True)):
        entry = Entry(
            file, RowKind.OVERFLOW if number == 0 else RowKind.TENSOR, _completed(name, header), header
        )
        yield Row(entry, sample, inspection.overflow if number == 0 else None)


def _completed(name: TensorName, header: TensorHeader) -> TensorName:
    """Return a name with what the content tells beside it."""
    tells = header.io or header.slot >= 0 or header.format or header.declared_dtype or header.full_name
    if not tells:
        return name
    return name._replace(
        io=header.io or name.io,
        slot=header.slot if header.slot >= 0 else name.slot,
        format=header.format or name.format,
        declared_dtype=header.declared_dtype or name.declared_dtype,
        full_name=header.full_name or name.full_name,
        op_name=name.op_name or header.full_name.translate(_IN_FILE_NAMES),
    )


def _with_reported(rows: Sequence[Row], inspected: Inspected) -> list[Row]:
    """Join the statistics that the dump gives to their tensors; where there is none, they make a row."""
    reported = inspected.description.reported
    if not reported:
        return list(rows)
    files = {file.path: file for file in inspected.listing.files}
    joined = list(rows)
    by_path: dict[str, int] = {}
    by_name: dict[tuple[object, ...], int] = {}
    for number, row in enumerate(rows):
        if row.entry.kind is RowKind.TENSOR:
            by_path.setdefault(row.entry.source.path, number)
            by_name.setdefault(_identity(row.entry.name), number)
    for report in reported:
        found = by_path.get(report.tensor) if report.tensor else by_name.get(_identity(report.name))
        if found is not None and joined[found].reported is None:
            joined[found] = joined[found]._replace(reported=report)
        else:
            entry = Entry(files[report.source], RowKind.STATISTICS, report.name)
            joined.append(Row(entry, reported=report))
    return joined


def _identity(name: TensorName) -> tuple[object, ...]:
    # By which a table and the tensor files agree: formats.md, "Rows match tensor files by all of ...".
    return (
        name.net,
        name.graph,
        name.op_type,
        name.op_name,
        name.task,
        name.stream,
        name.timestamp,
        name.io,
        name.slot,
    )


def _with_occurrences(rows: Iterable[Row]) -> list[Row]:
    """Count the dumps of one slot of one operator, in order of time: loops dump it several times a step."""
    count: dict[tuple[object, ...], int] = {}
    numbered = []
    for row in rows:
        name = row.entry.name
        slot = (name.net, name.graph, name.op_type, name.op_name, name.io, name.slot)
        occurrence = 0
        if row.entry.kind in (RowKind.TENSOR, RowKind.STATISTICS, RowKind.QUARANTINED, RowKind.OVERFLOW):
            occurrence = count[slot] = count.get(slot, -1) + 1
        numbered.append(_numbered(row, occurrence) if occurrence else row)
    return numbered


def _numbered(row: Row, occurrence: int) -> Row:
    return row._replace(entry=row.entry._replace(name=row.entry.name._replace(occurrence=occurrence)))


def _with_failed_operators(rows: list[Row]) -> list[Row]:
    """Write into each overflow record which operators it is about: those of its streams and tasks.

    The task and the stream in the name of the record are its own; those of the operator are in it.
    """
    if all(row.overflow is None for row in rows):
        return rows
    operators: dict[tuple[str, int, int], TensorName] = {}
    for row in rows:
        if row.entry.kind in (RowKind.TENSOR, RowKind.STATISTICS, RowKind.QUARANTINED):
            name = row.entry.name
            place = (_directory(row.entry), name.stream, name.task)
            operators.setdefault(place, name)
    return [_joined(row, operators) if row.overflow else row for row in rows]


def _joined(row: Row, operators: dict[tuple[str, int, int], TensorName]) -> Row:
    assert row.overflow is not None  # noqa: S101 (for mypy)
    failed = []
    for failure in row.overflow.failures():
        found = operators.get((_directory(row.entry), failure.stream_id, failure.task_id))
        failed.append(
            {
                "unit": failure.unit,
                "stream": failure.stream_id,
                "task": failure.task_id,
                "op_type": found.op_type if found else "",
                "op_name": found.op_name if found else "",
            }
        )
    record = json.dumps({"failed": failed, "record": row.overflow.to_json()}, sort_keys=True)
    return row._replace(entry=row.entry._replace(record=record))


def _directory(entry: Entry) -> str:
    return entry.source.path.rpartition("/")[0]
