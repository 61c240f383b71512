"""From an inspected step to a plan: which bytes go where, and which task does what. Pure arithmetic.

Possible copies (same element type, same size, same first bytes) go to one task, so duplicates are found
across the whole step before anything is encoded. Each task starts on a shard boundary, so two tasks
never write the same shard.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from ingest.planning.inspection import Inspected
from ingest.planning.pooling import PoolGroup, Shared, array_spec, packing_digest, pool_groups
from ingest.planning.rows import PlannedRow, plan_rows
from workers.arrays.dtypes import ElementType
from workers.arrays.marginals import MarginalScope
from workers.model import SourceFile
from workers.rules.values import RuleSet
from workers.store.model import ArraySpec, Grid, Origin, RowKind, StoreAddress
from workers.store.packed.pool import without_pool
from workers.tasks.model import CONVERTER_VERSION, Entry, Segment, ShardJob, StepPlan


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
    """What the places of a payload follow from."""

    array: str
    """The packed array that holds it; "" for none."""
    nbytes: int
    read_nbytes: int
    """Bytes of the file to read: the payload, and the header before it."""
    element: ElementType | None
    is_view: bool


def _payloads(entries: Sequence[Entry]) -> list[_Payload]:
    """Return the payload of each entry."""
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
    """Return the chunks and shards of each packed array, by path."""
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
    """Return the segments of each job, and how many bytes it reads."""
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
