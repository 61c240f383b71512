"""From an inspected step to a plan: which bytes go where, and which task does what. Pure arithmetic.

Possible copies (same element type, same size, same first bytes) go to one task, so duplicates are found
across the whole step before anything is encoded. Each task starts on a shard boundary, so two tasks
never write the same shard.

The rows of the index are made first: the kind of each row, and the facts about it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import xxhash
from msgspec.structs import replace

from ingest.layouts.base import TensorFile
from ingest.planning.inspection import OVERFLOW_OP_TYPE, Inspected, Inspection
from ingest.planning.pooling import PoolGroup, Shared, array_spec, packing_digest, pool_groups
from workers.arrays.dtypes import ElementType
from workers.arrays.marginals import MarginalScope
from workers.dump.formats.header import TensorHeader
from workers.dump.formats.overflow import OverflowRecord
from workers.dump.model import ReportedStatistics, TensorName
from workers.dump.paths import to_text
from workers.model import SourceFile
from workers.rules.values import RuleSet
from workers.store.model import ArraySpec, Grid, Origin, RowKind, StoreAddress
from workers.store.packed.pool import without_pool
from workers.tasks.model import CONVERTER_VERSION, Entry, Segment, ShardJob, StepPlan

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
    # Loops dump a slot several times: its dumps are numbered in order of time.
    count: dict[tuple[object, ...], int] = {}
    numbered = []
    for row in rows:
        entry, occurrence = row.entry, 0
        if entry.kind in _NUMBERED:
            slot = entry.name[:_SLOT_END]
            occurrence = count[slot] = count.get(slot, -1) + 1
        renamed = entry._replace(name=entry.name._replace(occurrence=occurrence)) if occurrence else entry
        numbered.append(replace(row, entry=renamed) if occurrence else row)
    return _with_failed_operators(numbered)


def _rows_of(inspected: Inspected, file: SourceFile) -> Iterable[PlannedRow]:
    inspection = inspected.inspections.get(file.path)
    named = inspected.description.named.get(file.path)
    name = named.name if named else None
    if file.path in inspected.description.sections:
        return ()
    if inspection is None:
        record = inspected.description.records.get(file.path, "")
        entry = Entry(file, RowKind.FILE, TensorName(), record=record)
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
    operator = name.net, name.graph, name.op_type, name.op_name
    return *operator, name.task, name.stream, name.timestamp, name.io, name.slot


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


def fingerprint(
    files: Iterable[SourceFile],
    naming: str,
    grid: Grid,
    unreadable: Iterable[str] = (),
    undecoded: Iterable[str] = (),
) -> str:
    """Return the name of the generation that is made from these source files: 32 hexadecimal digits.

    XXH3-128 over converter version, `Listing.naming`, grid, and path, size and modification time of each
    file; then the paths of files that the disk does not return, and of those that are not decoded because
    they kill the process. These count because without them all other files are stored in different places.
    """
    running = xxhash.xxh3_128(f"{CONVERTER_VERSION}\n{naming}\n{grid}\n".encode())
    lines = "".join([f"{file.path}\0{file.size}\0{file.mtime_ns}\n" for file in files])
    running.update(lines.encode("utf-8", "surrogateescape"))
    for path in unreadable:
        running.update(f"unreadable\0{path}\n".encode("utf-8", "surrogateescape"))
    for path in undecoded:
        running.update(f"undecoded\0{path}\n".encode("utf-8", "surrogateescape"))
    return running.hexdigest()


def without_tensors(name: str) -> str:
    """Return the name of the generation that is the same without the payloads of its tensors.

    The names differ, so that after a restart it is still known that the payloads are missing.
    """
    return xxhash.xxh3_128(f"{name}\nwithout tensors\n".encode()).hexdigest()


#: How often a step may be rewritten with the same sizes and times.
_MAX_REWRITES = 64


def rewritten(name: str, times: int) -> str:
    """Return the name of the generation of the same files, after they were rewritten `times` times.

    The name without a rewrite belongs to the generation stored before, which readers may still have open.
    """
    for _ in range(times):
        name = xxhash.xxh3_128(f"{name}\nrewritten\n".encode()).hexdigest()
    return name


def times_rewritten(name: str, committed: str) -> int:
    """Return how often the files of a generation were rewritten until they were committed; 0 if never.

    So a new process knows from names alone what an earlier one found out by reading the files.
    """
    name, committed = without_pool(name), without_pool(committed)
    for times in range(1, _MAX_REWRITES):
        name = rewritten(name, 1)
        if committed in (name, without_tensors(name)):
            return times
    return 0


def plan_step(
    inspected: Inspected,
    origin: Origin,
    store: StoreAddress,
    grid: Grid,
    rules: RuleSet | None = None,
    *,
    leave_out_tensors: str = "",
    rewrites: int = 0,
    sketches: bool = False,
    marginals: MarginalScope = MarginalScope.ALL,
    shared: Shared | None = None,
) -> StepPlan:
    """Return the plan for converting one step. The same listing gives the same plan, everywhere.

    Args:
        inspected: the step.
        origin: where the dump comes from.
        store: where it goes.
        grid: sizes of chunks, shards and jobs.
        rules: evaluated when the step is committed; what is stored of the dump does not depend on them.
        leave_out_tensors: why the payloads of tensors are not stored; "" if they are.
        rewrites: how often the files were rewritten with the same sizes and times since their first commit.
        sketches: whether histograms of tensors are stored; what is stored besides does not depend on it.
        marginals: the tensors whose marginals are stored, too, if `sketches` is set.
        shared: what other ranks are expected to have, too; None for nothing.
    """
    listing = inspected.listing
    rows = plan_rows(inspected)
    entries = tuple(row.entry for row in rows)
    samples = [row.sample for row in rows]
    pooled = [] if leave_out_tensors else pool_groups(entries, samples, shared or {}, grid)
    in_pool = {row for group in pooled for row in group.rows}
    payloads = _payloads(entries)
    arrays = _arrays([payload for row, payload in enumerate(payloads) if row not in in_pool], grid)
    name = fingerprint(listing.files, listing.naming, grid, inspected.unreadable, inspected.undecoded)
    name = rewritten(name, rewrites)
    if leave_out_tensors:
        name = without_tensors(name)
    if pooled:
        # It begins with the name without: what is expected to be shared is not known any more when the same
        # files are listed again.
        name = f"{name}-{packing_digest(pooled)}"
    jobs = tuple(
        ShardJob(
            key=listing.key,
            number=number,
            fingerprint=name,
            root=origin.root,
            store=store,
            segments=segments,
            entries={row: entries[row] for segment in segments for row in segment.rows},
            nbytes=nbytes,
            keep_device_layout=grid.keep_device_layout,
            without_tensors=bool(leave_out_tensors),
            sketches=sketches,
            marginals=marginals,
        )
        for number, (segments, nbytes) in enumerate(
            _segments(rows, payloads, arrays, _turned(pooled, listing.key.rank), grid)
        )
    )
    return StepPlan(
        key=listing.key,
        fingerprint=name,
        origin=origin,
        store=store,
        nbytes=listing.nbytes,
        entries=entries,
        arrays=tuple(arrays.values()),
        jobs=jobs,
        problems=tuple(str(problem) for problem in (*listing.problems, *inspected.description.problems)),
        rules=rules,
        without_tensors=leave_out_tensors,
        sketches=sketches,
        marginals=marginals,
        poison=inspected.poison,
        reported={number: row.reported for number, row in enumerate(rows) if row.reported is not None},
    )


class _Payload(NamedTuple):
    array: str
    nbytes: int
    read_nbytes: int
    """Bytes of the file to read: the payload, and the header before it."""
    element: ElementType | None
    is_view: bool


def _payloads(entries: Sequence[Entry]) -> list[_Payload]:
    # Thousands of files of a step share few headers, which alone decide unless the file is kept as it is.
    of_header: dict[tuple[int, RowKind], _Payload] = {}
    payloads = []
    for entry in entries:
        header = entry.header
        payload = of_header.get((id(header), entry.kind)) if header else None
        if payload is None:
            element = header.element if header else None
            is_view = entry.view is not None
            payload = _Payload(entry.array, entry.nbytes, entry.read_nbytes, element, is_view)
            if header:
                of_header[id(header), entry.kind] = payload
        payloads.append(payload)
    return payloads


def _arrays(payloads: Iterable[_Payload], grid: Grid) -> dict[str, ArraySpec]:
    nbytes: dict[str, int] = {}
    elements: dict[str, ElementType | None] = {}
    for payload in payloads:
        path = payload.array
        if path in nbytes:
            nbytes[path] += payload.nbytes
        elif path:
            nbytes[path], elements[path] = payload.nbytes, payload.element
    return {path: array_spec(path, elements[path], grid, nbytes[path]) for path in sorted(nbytes)}


@dataclass(slots=True)
class _CopyGroup:
    """Rows that may be copies of one another; or that go into the pool together."""

    array: str
    rows: list[int]
    nbytes: int
    pooled: PoolGroup | None = None


def _segments(
    rows: Sequence[PlannedRow],
    payloads: Sequence[_Payload],
    arrays: dict[str, ArraySpec],
    pooled: Sequence[PoolGroup],
    grid: Grid,
) -> list[tuple[tuple[Segment, ...], int]]:
    next_shard = dict.fromkeys(arrays, 0)
    jobs = []
    in_pool = frozenset(row for group in pooled for row in group.rows)
    pooled_groups = [
        _CopyGroup(group.spec.path, list(group.rows), sum(payloads[n].read_nbytes for n in group.rows), group)
        for group in pooled
    ]
    others = _groups(rows, payloads, in_pool, grid.job_nbytes)
    for groups in _packed([*pooled_groups, *others], grid.job_nbytes):
        members: dict[str, list[int]] = {}
        segments = []
        for group in groups:
            if group.pooled is None:
                members.setdefault(group.array, []).extend(group.rows)
            else:
                segments.append(Segment(group.pooled.spec, 0, group.pooled.rows, pooled=True))
        for path in sorted(members):
            in_order = tuple(sorted(members[path]))
            segments.append(Segment(arrays[path], next_shard[path], in_order))
            # As if there were no copies; shards that are not needed are never written.
            next_shard[path] += arrays[path].shards_for(sum(payloads[row].nbytes for row in in_order))
        jobs.append((tuple(segments), sum(group.nbytes for group in groups)))
    return jobs


def _turned(pooled: Sequence[PoolGroup], rank: int) -> list[PoolGroup]:
    """Return what goes into the pool, in an order in which ranks that are converted at once seldom meet.

    They begin with different arrays: the bits of the rank in reverse order are the fraction that comes last.
    So one finds later what another has written first.
    """
    bits = f"{rank:b}"[::-1]
    first = len(pooled) * int(bits, 2) // 2 ** len(bits)
    return [*pooled[first:], *pooled[:first]]


def _groups(
    rows: Sequence[PlannedRow], payloads: Sequence[_Payload], in_pool: Collection[int], job_nbytes: int
) -> list[_CopyGroup]:
    """Group the rows that do not go into the pool: all of an array together if one job can read all rows."""
    is_one = sum(payload.read_nbytes for payload in payloads) <= job_nbytes
    groups: dict[tuple[object, ...], _CopyGroup] = {}
    for number, (row, payload) in enumerate(zip(rows, payloads, strict=True)):
        if payload.array and not payload.is_view and number not in in_pool and row.entry.readable:
            # Only tensors have a sample: nothing else can be recognised as a copy.
            sample = -number if row.sample is None else row.sample
            key = (payload.array,) if is_one else (payload.array, payload.nbytes, sample)
            if key not in groups:
                groups[key] = _CopyGroup(payload.array, [], 0)
            groups[key].rows.append(number)
            groups[key].nbytes += payload.read_nbytes
    return _with_views(list(groups.values()), rows, payloads)


def _with_views(
    groups: list[_CopyGroup], rows: Sequence[PlannedRow], payloads: Sequence[_Payload]
) -> list[_CopyGroup]:
    """Return the groups with the views: those that are a part of a payload go where that goes."""
    views = [number for number, payload in enumerate(payloads) if payload.is_view]
    if not views:
        return groups
    homes = {
        (rows[number].entry.source.path, rows[number].entry.offset, group.array): group
        for group in groups
        for number in group.rows
        if rows[number].entry.nbytes
    }
    for number in views:
        entry = rows[number].entry
        base = entry.view.base if entry.view else -1
        group = homes.get((entry.source.path, base, entry.array))
        if group is None:
            group = _CopyGroup(entry.array, [], 0)
            groups.append(group)
        group.rows.append(number)
        group.nbytes += entry.read_nbytes
    return groups


def _packed(groups: Sequence[_CopyGroup], job_nbytes: int) -> list[list[_CopyGroup]]:
    """Distribute the groups over as few jobs as the size of a job allows, all of about the same size."""
    total = sum(group.nbytes for group in groups)
    share = total / max(math.ceil(total / job_nbytes), 1)
    jobs: list[list[_CopyGroup]] = []
    filled = 0
    for group in groups:
        if not jobs or filled + group.nbytes / 2 > share * len(jobs):
            jobs.append([])
        jobs[-1].append(group)
        filled += group.nbytes
    return jobs
