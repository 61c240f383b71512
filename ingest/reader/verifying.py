"""Verify a store: read everything back, recompute every digest and statistic, and name what is damaged.

Also what lies beside the steps, the groups of ranks and the consolidated view; and what a listing alone
shows: objects of commits that are missing, or have another size. That takes a request for each thousand
objects of a rank, and reads none of them.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import format_ranges
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes, sketched_tensors
from ingest.reader.cube_reader import outdated_copies
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of, read_entries, read_marginals
from workers.arrays.digest import RunningBlockDigests, new_digest
from workers.arrays.marginals import Marginal
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, StepRemoved, TensorsRemoved
from workers.model import MIB, StepKey, ceil_div
from workers.store import commit, metadata, tables
from workers.store.commit import Commit
from workers.store.consolidated.blocks import TENSOR_KINDS
from workers.store.consolidated.cubes import GROUP, CubeLayouts
from workers.store.model import RowKind
from workers.store.objects import ObjectStore
from workers.store.packed import pool
from workers.store.record import LEAF, CommitRecord
from workers.store.sketches import (
    ARRAYS_OF_MARGINALS,
    BLOCK_DIGESTS,
    BLOCK_TABLE,
    HISTOGRAM_TABLE,
    HISTOGRAMS,
    MARGINALS,
    MARGINALS_OF_LARGE,
    SketchKind,
    histograms_of_tables,
    rows_of,
)
from workers.store.step import RecomputedStatistics

#: Ranks that are listed at once.
_RANKS_AT_ONCE = 4
#: What every generation has, by path in it.
_ALWAYS = frozenset([LEAF, *tables.chunk_keys()])
_SHARD = re.compile(r"(?:tensors|files)/(?:.*/)?c/")


@dataclass(frozen=True, slots=True)
class ExpectedObjects:
    """What a listing has to show of a commit. Small: there is one for each committed step of a dump."""

    fingerprint: str
    shards: int
    nbytes: int
    pool: tuple[str, ...] = ()
    """The arrays in the pool that it refers to, by path."""

    @classmethod
    def of(cls, record: CommitRecord) -> ExpectedObjects:
        """Return the objects that the record of a commit implies."""
        return cls(record.fingerprint, len(record.stored), sum(record.stored.values()), tuple(record.pool))


def damage_in_listing(objects: ObjectStore, expected: Mapping[StepKey, ExpectedObjects]) -> list[Damage]:
    """Check a listing for commits that lack objects, or have shards of other sizes; one damage for each.

    Memory: about 200 bytes for each object of `_RANKS_AT_ONCE` ranks.

    Raises:
        StoreError: the store refused.
    """
    ranks = sorted({key.rank for key in expected})
    with ThreadPoolExecutor(_RANKS_AT_ONCE, thread_name_prefix="dump-ingest-list") as threads:
        found = threads.map(lambda rank: list(_damage_of_rank(objects, rank, expected)), ranks)
        in_ranks = [damage for damages in found for damage in damages]
        steps = sorted({key.step for key, known in expected.items() if known.pool and key.step is not None})
        found = threads.map(lambda step: list(_damage_of_pool(objects, step, expected)), steps)
        return [*in_ranks, *(damage for damages in found for damage in damages)]


def _damage_of_pool(
    objects: ObjectStore, step: int, expected: Mapping[StepKey, ExpectedObjects]
) -> Iterator[Damage]:
    prefix = f"{pool.POOL}/step_{step}"
    present = {f"{prefix}/{name}" for name, nbytes in objects.sizes(prefix).items() if nbytes}
    for key, known in expected.items():
        if key.step != step:
            continue
        wanted = {f"{path}/{name}" for path in known.pool for name in (pool.SHARD, pool.NODE)}
        if absent := sorted(wanted - present):
            yield Damage(key, "", f"{key.path}/{known.fingerprint}: {absent[0]} is missing or empty")


def _damage_of_rank(
    objects: ObjectStore, rank: int, expected: Mapping[StepKey, ExpectedObjects]
) -> Iterator[Damage]:
    wanted = {
        f"{key.path.partition('/')[2]}/{known.fingerprint}": (key, known)
        for key, known in expected.items()
        if key.rank == rank
    }
    present: dict[str, dict[str, int]] = {prefix: {} for prefix in wanted}
    for name, nbytes in objects.sizes(f"rank_{rank}").items():
        step, _, below = name.partition("/")
        generation, _, path = below.partition("/")
        if f"{step}/{generation}" in wanted and _counts(path, nbytes):
            present[f"{step}/{generation}"][path] = nbytes
    for prefix, (key, known) in wanted.items():
        if problem := _problem(present[prefix], known):
            yield Damage(key, "", f"{key.path}/{known.fingerprint}: {problem}")


def _counts(path: str, nbytes: int) -> bool:
    return _SHARD.match(path) is not None or (path in _ALWAYS and nbytes > 0)


def _problem(present: Mapping[str, int], known: ExpectedObjects) -> str:
    if not present:
        return "the generation is missing"
    if absent := sorted(_ALWAYS - present.keys()):
        return f"{absent[0]} is missing or empty"
    shards = [nbytes for path, nbytes in present.items() if path not in _ALWAYS]
    if len(shards) != known.shards:
        return f"{len(shards)} of {known.shards} shards are there"
    if sum(shards) != known.nbytes:
        return f"its shards have {sum(shards)} bytes instead of {known.nbytes}"
    return ""


_PIECE_NBYTES = 16 * MIB
#: Totals of the commit that follow from the index; the others are not checked.
CHECKED_TOTALS = ("tensors", "nan_count", "pos_inf_count", "neg_inf_count")
#: What is said of a payload whose checksums are right.
WRONG_DIGEST = "the digest does not match"
WRONG_STATISTICS = "the statistics do not match"
#: The same of sketches.
WRONG_SKETCHES = {
    HISTOGRAMS: "the histogram does not match",
    BLOCK_DIGESTS: "the digests of its blocks do not match",
    MARGINALS: "the marginals do not match",
    MARGINALS_OF_LARGE: "the marginals of large tensors do not match",
}


@dataclass(slots=True)
class Verified:
    """How much was checked so far."""

    steps: int = 0
    files: int = 0
    nbytes: int = 0


def verify(
    store: Catalog, keys: list[StepKey] | None = None, progress: Callable[[Verified], None] = lambda _: None
) -> Iterator[Damage]:
    """Check steps of a store and yield what is damaged.

    Reads every stored byte of them once. Checks checksums, digests and statistics, and looks for missing
    objects.

    Args:
        store: the store.
        keys: the steps to check; all that are committed if None.
        progress: is called with the same object after each file and step.
    """
    done = Verified()
    for key in commit.list_keys(store.objects) if keys is None else keys:
        try:
            committed = commit.read(store.objects, key)
            if committed is not None:
                step = Step(store.objects, committed)
                for damage in verify_step(step, done, progress):
                    if step.removed_meanwhile():
                        break  # what was removed is not damaged
                    yield damage
                done.steps += 1
        except (StepRemoved, TensorsRemoved):
            pass  # removed by another process while it was read
        except DamagedStore as exc:
            yield Damage(key, "", exc.message)
        progress(done)


def verify_step(
    step: Step, done: Verified, progress: Callable[[Verified], None] = lambda _: None
) -> Iterator[Damage]:
    """Check one step; see `verify`.

    Raises:
        DamagedStore: its index is damaged.
        StepRemoved, TensorsRemoved: it was removed by another process while it was read.
    """
    table = step.tables
    yield from _verify_objects(step)
    yield from _verify_metadata(step)
    rows = [int(row) for row in np.flatnonzero(table.number("offset") >= 0) if step.has_payload(int(row))]
    yield from _verify_totals(step)
    try:
        findings_of(step)  # its tables carry checksums
    except DamagedStore as exc:
        yield Damage(step.key, "", exc.message)
    sketches, damages = _verify_sketches(step)
    yield from damages
    for row, pieces in step.payloads(rows, _PIECE_NBYTES):
        reason = _payload_damage(step, row, pieces, sketches[row])
        if reason:
            # A payload with the right digest is right, whatever else contradicts it.
            is_of_payload = not reason.startswith((WRONG_STATISTICS, *WRONG_SKETCHES.values()))
            source = str(table.label("source")[row])
            yield Damage(step.key, source, reason, row=row if is_of_payload else -1)
        done.files += 1
        done.nbytes += int(table.number("nbytes")[row])
        progress(done)


def _verify_objects(step: Step) -> Iterator[Damage]:
    """Compare the sizes of the stored objects, and of those in the pool, with what the commit says."""
    objects, record, prefix = step.objects, step.commit.record, step.commit.prefix
    sizes = objects.sizes(prefix)
    found = {f"{prefix}/{path}": (nbytes, sizes.get(path)) for path, nbytes in record.stored.items()}
    for path, array in record.pool.items():
        found[f"{path}/{pool.SHARD}"] = array.nbytes, objects.sizes(path).get(pool.SHARD)
    for path, (nbytes, size) in found.items():
        if size != nbytes:
            problem = "is missing" if size is None else f"has {size} bytes instead of {nbytes}"
            yield Damage(step.key, "", f"{path} {problem}", path=path)


def documents_of(committed: Commit) -> dict[str, bytes]:
    """Return the metadata of all nodes that a commit has, also of those in the pool, by key in the store."""
    nodes = {
        f"{committed.prefix}/{path}/{LEAF}".replace("//", "/"): own for path, own in committed.nodes.items()
    }
    nodes |= {f"{path}/{pool.NODE}": array.node for path, array in committed.record.pool.items()}
    return {key: metadata.encode(node) for key, node in nodes.items()}


def _verify_metadata(step: Step) -> Iterator[Damage]:
    """Compare the metadata of each Zarr node, which other readers use, with that in the commit."""
    documents = documents_of(step.commit)
    stored = step.objects.get_many(list(documents))
    for key, data in documents.items():
        if stored.get(key) != data:
            problem = "is not what the commit says" if key in stored else "is missing"
            yield Damage(step.key, "", f"{key} {problem}", path=key)


def _verify_totals(step: Step) -> Iterator[Damage]:
    """Compare the totals of the commit record, which listings show, with the sums over its rows."""
    table, summary = step.tables, step.commit.summary
    kinds = table.label("kind")
    has_statistics = np.isin(kinds, TENSOR_KINDS)
    for name in CHECKED_TOTALS:
        counted = (
            kinds == RowKind.TENSOR.value if name == "tensors" else table.statistic(name)[has_statistics]
        )
        if getattr(summary, name) != (total := int(np.nansum(counted))):
            reason = f"the commit says {name} {getattr(summary, name)}, its rows make {total}"
            yield Damage(step.key, "", reason)


#: What the sketches of a step have of one row, by kind: entries of a table, or marginals by axis.
_RowSketches: TypeAlias = dict[SketchKind, Any]


def _verify_sketches(step: Step) -> tuple[defaultdict[int, _RowSketches], list[Damage]]:
    """Return by row what the sketches have of it, and which of their objects are damaged."""
    by_row: defaultdict[int, _RowSketches] = defaultdict(dict)
    damages = []
    for kind in (HISTOGRAMS, BLOCK_DIGESTS, *ARRAYS_OF_MARGINALS):
        try:
            for row, own in _sketches_of(step, kind):
                by_row[row][kind] = own
        except DamagedStore as exc:
            paths = (f"{step.commit.prefix}/{array}/c/0/0" for array in kind.arrays)
            damages += [Damage(step.key, "", exc.message, path=path) for path in paths]
    return by_row, damages


def _sketches_of(step: Step, kind: SketchKind) -> Iterable[tuple[int, Any]]:
    """Return what a step has of one kind, by row.

    The sums of histograms are compared with the counts among the statistics, without the tensors.
    """
    if kind in ARRAYS_OF_MARGINALS:
        stored = read_marginals(step, ARRAYS_OF_MARGINALS[kind])
        return [(row, stored.of_row(row)) for row in rows_of(stored.entries)]
    table = HISTOGRAM_TABLE if kind is HISTOGRAMS else BLOCK_TABLE
    entries = read_entries(step, table)
    if kind is HISTOGRAMS:
        histograms_of_tables(step.tables, entries, str(step.key))
    return table.own(entries).items()


def _payload_damage(
    step: Step,
    row: int,
    pieces: Iterator[bytes],
    sketches: _RowSketches,
) -> str:
    table = step.tables
    payload_digest = new_digest()
    recomputed = RecomputedStatistics(
        step,
        row,
        with_histogram=HISTOGRAMS in sketches,
        with_marginals=not sketches.keys().isdisjoint(ARRAYS_OF_MARGINALS),
    )
    blocks = RunningBlockDigests() if BLOCK_DIGESTS in sketches else None
    try:
        for piece in pieces:
            payload_digest.update(piece)
            recomputed.update(piece)
            if blocks is not None:
                blocks.update(memoryview(piece))
    except DamagedStore as exc:
        return exc.message
    wrong_statistics = _differing_statistics(step, row, recomputed.result())
    if payload_digest.digest() != table.digest[row].tobytes():
        return WRONG_DIGEST
    if wrong_statistics:
        return f"{WRONG_STATISTICS}: {', '.join(wrong_statistics)}"
    for kind in _wrong_sketches(sketches, recomputed, blocks):
        return WRONG_SKETCHES[kind]
    return ""


def _wrong_sketches(
    stored: _RowSketches, recomputed: RecomputedStatistics, blocks: RunningBlockDigests | None
) -> Iterator[SketchKind]:
    marginals = recomputed.marginals().by_axis()
    for kind, own in stored.items():
        if kind in ARRAYS_OF_MARGINALS:
            is_same = _same_marginals(own, marginals)
        else:
            made = recomputed.histogram_rows() if blocks is None or kind is HISTOGRAMS else blocks.result()
            is_same = np.array_equal(own.ravel(), made.ravel())
        if not is_same:
            yield kind


def _same_marginals(stored: dict[int, Marginal], made: dict[int, Marginal]) -> bool:
    """Return whether marginals agree but for the order of summation, which depends on the machine."""
    return stored.keys() == made.keys() and all(
        stored[axis].sum.size == made[axis].sum.size and stored[axis].agrees_with(made[axis]) for axis in made
    )


def _differing_statistics(
    step: Step, row: int, recomputed: npt.NDArray[np.float64] | None
) -> list[str] | None:
    """Return the names of the stored statistics that are not those of the payload; None if none were."""
    if recomputed is None:
        return None
    stored = step.tables.statistics[row]
    if stored.tobytes() == recomputed.tobytes():  # as nearly always: the rest takes as long as a small tensor
        return []
    differ = ~np.isclose(stored, recomputed, rtol=1e-9, atol=_rounding(stored), equal_nan=True)
    return [name for name, differs in zip(FIELDS, differ, strict=True) if differs]


def _rounding(stored: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the absolute tolerance of each statistic, in addition to the relative one.

    Elements may cancel in the mean and in the deviations from it. The rest then depends on the order of the
    summation, and so on machine and version. The largest element gives the scale of the tolerance.
    """
    largest = np.nan_to_num(np.abs(stored[[FIELDS.index("min"), FIELDS.index("max")]])).max()
    return np.where(np.isin(FIELDS, ["mean", "std"]), 1e-9 * largest, 0.0)


#: How long an ingest may be under way before objects without a commit are worth a note, in seconds.
UNCOMMITTED_AFTER_S = 86400.0


@dataclass(frozen=True, slots=True)
class StoreDamage:
    """A damaged part of a store that belongs to no single step."""

    path: str
    """The object, or the group, relative to the store."""
    reason: str
    key: None = None
    source: str = ""

    def __str__(self) -> str:
        return self.reason


def verify_surroundings(objects: ObjectStore) -> Iterator[StoreDamage]:
    """Read the groups of all ranks and the whole consolidated view, and yield what is damaged there."""
    ranks = {f"rank_{rank}/zarr.json": rank for rank in commit.list_ranks(objects)}
    contents = objects.get_many(list(ranks))
    for path, rank in ranks.items():
        if path not in contents:
            yield StoreDamage(path, f"{path} is missing")
        elif not _is_group_of(rank, contents[path]):
            yield StoreDamage(path, f"{path} is not the metadata of the group of rank {rank}")
    yield from verify_view(objects)


def verify_copies(objects: ObjectStore) -> Iterator[StoreDamage]:
    """Compare the copies of commits in the consolidated view with the commits, and yield what differs."""
    try:
        cubes = open_cubes(objects)
        if cubes is None:
            return
        for step in cubes.steps.tolist():
            keys = {StepKey(rank, step) for rank in cubes.ranks.tolist()}
            # Once more: what was changed and copied meanwhile is not damaged.
            for key in outdated_copies(cubes, outdated_copies(cubes, keys)):
                reason = f"the copy of {key} is not its commit; `consolidate --check` renews it"
                yield StoreDamage(GROUP, f"{GROUP}/commit: {reason}")
    except DamagedStore as exc:
        yield StoreDamage(GROUP, _in_view(exc.message))


def verify_view(objects: ObjectStore) -> Iterator[StoreDamage]:
    """Read the consolidated view but for copies of commits, and yield what is damaged; it may be missing."""
    try:
        cubes = open_cubes(objects)
        if cubes is None:
            # Announcements and a lease stand there before it.
            if "step" in objects.children(GROUP):
                yield StoreDamage(GROUP, f"{GROUP}/zarr.json is missing: the view cannot be opened")
            return
        layouts = cubes.layouts
        _check_labels(objects, layouts, cubes.state.tensors)
        for layout in layouts.of_ranks:
            for number in range(ceil_div(cubes.state.steps, layout.chunk[0])):
                cubes.steps_block(layout, number)
        yield from _verify_counts(objects, cubes)
        yield from _verify_cube_sketches(cubes)
        yield from _verify_cubes_by_tensor(cubes)
    except DamagedStore as exc:
        yield StoreDamage(GROUP, _in_view(exc.message))


def _verify_counts(objects: ObjectStore, cubes: ConsolidatedCubes) -> Iterator[StoreDamage]:
    """Compare how many tensors the cubes have of each commit with the count in the commit.

    Tensors that `row` lacks would otherwise look like some that nobody dumped.
    """
    fingerprints, counts = cubes.table("fingerprint"), cubes.table("tensors")
    ranks = cubes.ranks.tolist()
    for place, step in enumerate(cubes.steps.tolist()):
        if place in cubes.state.rewriting:
            continue
        block = cubes.block(place)
        present = dict(zip(block.ranks, block.present.sum(axis=1).tolist(), strict=True))
        keys = [StepKey(rank, step) for rank in ranks]
        commits, _ = commit.read_many(objects, keys)
        for number, key in enumerate(keys):
            committed = commits.get(key)
            if committed is None or committed.fingerprint != fingerprints[place, number]:
                continue  # the next round takes it in
            totals = committed.summary
            expected = totals.tensors + totals.statistics_only
            if present[key.rank] != expected or np.any(counts[place, number] < 0):
                yield StoreDamage(
                    GROUP, f"{GROUP}: {key}: it has {present[key.rank]} tensors instead of {expected}"
                )


def _verify_cube_sketches(cubes: ConsolidatedCubes) -> Iterator[StoreDamage]:
    """Read the cube of the sketches; and compare how many tensors it has with the number beside it."""
    for place, step in enumerate(cubes.steps.tolist()):
        if place in cubes.state.rewriting:
            continue
        held = sketched_tensors(cubes, place)
        expected = np.maximum(cubes.table("with_histogram")[place], 0)
        for number in np.flatnonzero(held != expected).tolist():
            if not cubes.is_current():
                return  # a step was written again meanwhile
            key = StepKey(int(cubes.ranks[number]), step)
            reason = f"it has histograms of {held[number]} tensors instead of {expected[number]}"
            yield StoreDamage(GROUP, f"{GROUP}/sketches: {key}: {reason}")


def _verify_cubes_by_tensor(cubes: ConsolidatedCubes) -> Iterator[StoreDamage]:
    """Compare the cubes by tensor with those that have objects for each step: they hold the same."""
    state, steps = cubes.state, cubes.state.grid.steps
    for block, (name, layout) in product(range(state.full_blocks), cubes.layouts.by_tensor.items()):
        if not state.is_cut(block):
            continue
        places = range(block * steps, (block + 1) * steps)
        held = cubes.steps_block(layout, block)
        # One after the other: a block may take 64 MiB for each 256 ranks.
        are_equal = (
            np.array_equal(values, cubes.cube(name, place), equal_nan=True)
            for place, values in zip(places, held, strict=True)
        )
        if not all(are_equal):
            if not cubes.is_current():
                return  # a step was written again meanwhile, and its block will be
            numbers = cubes.steps[places.start : places.stop].tolist()
            yield StoreDamage(
                GROUP, f"{GROUP}/{layout.path}: of steps {format_ranges(numbers)}, it has not what {name} has"
            )


def _check_labels(objects: ObjectStore, layouts: CubeLayouts, tensors: int) -> None:
    """Decode what names tensors, statistics and sketches.

    Raises:
        DamagedStore: a chunk of it is missing or damaged.
    """
    lengths = dict.fromkeys(layouts.keys.values(), tensors)
    lengths |= {layout: layout.chunk[0] for layout in (layouts.statistics, *layouts.sketch_labels.values())}
    for layout, length in lengths.items():
        keys = [f"{GROUP}/{key}" for key in layout.keys((length,)).values()]
        chunks = objects.get_many(keys)
        for key in keys:
            if key not in chunks:
                raise DamagedStore(f"{key}: missing")
            layout.decode(chunks[key], key)


def uncommitted(objects: ObjectStore, now: float | None = None) -> list[StepKey]:
    """Return the steps that have objects but no commit, and to which nothing was written for a day.

    An ingest was interrupted there, or the commit was deleted. Takes one listing for each of them.
    """
    then = (time.time() if now is None else now) - UNCOMMITTED_AFTER_S
    keys = commit.list_keys(objects)
    commits, damaged = commit.read_many(objects, keys)
    found = []
    for key in keys:
        if key in commits or key in damaged:
            continue
        listed = objects.listed(key.path)
        if listed and LEAF not in listed and max(held.modified_at for held in listed.values()) < then:
            found.append(key)
    return found


def _is_group_of(rank: int, data: bytes) -> bool:
    try:
        return bool(json.loads(data) == json.loads(commit.rank_document(rank)))
    except (ValueError, RecursionError):
        return False


def _in_view(message: str) -> str:
    return message if message.startswith(GROUP) else f"{GROUP}: {message}"
