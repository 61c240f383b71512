"""Verify what lies beside the steps of a store: the groups of ranks, and the consolidated view."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from ingest.reader.cubes.commit_copies import outdated_copies
from ingest.reader.cubes.conditions import sketched_tensors
from ingest.reader.cubes.consolidated import ConsolidatedCubes, open_cubes
from ingest.reader.ranges import format_ranges
from workers.errors import DamagedStore
from workers.model import StepKey, ceil_div
from workers.store import commit
from workers.store.consolidated.cubes import GROUP, CubeLayouts
from workers.store.objects import ObjectStore
from workers.store.record import LEAF

#: How long an ingest may be under way before objects without a commit are worth a note, in seconds.
UNCOMMITTED_AFTER_S = 86400.0


@dataclass(frozen=True, slots=True)
class StoreDamage:
    """A damaged part of a store that belongs to no single step."""

    path: str
    """The object, or the group, relative to the store."""
    reason: str
    key: None = None
    """As for the damage of a step."""
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
            if objects.children(GROUP) and _holds_arrays(objects):
                yield StoreDamage(GROUP, f"{GROUP}/zarr.json is missing: the view cannot be opened")
            return
        yield from _verify_cubes(objects, cubes)
    except DamagedStore as exc:
        yield StoreDamage(GROUP, _in_view(exc.message))


def _verify_cubes(objects: ObjectStore, cubes: ConsolidatedCubes) -> Iterator[StoreDamage]:
    """Read every cube, and compare what the cubes hold with the commits and with each other."""
    layouts = cubes.layouts
    _check_labels(objects, layouts, cubes.state.tensors)
    for layout in layouts.of_ranks:
        for number in range(ceil_div(cubes.state.steps, layout.chunk[0])):
            cubes.steps_block(layout, number)
    yield from _verify_counts(objects, cubes)
    yield from _verify_sketches(cubes)
    yield from _verify_cubes_by_tensor(cubes)


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


def _verify_sketches(cubes: ConsolidatedCubes) -> Iterator[StoreDamage]:
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


def _holds_arrays(objects: ObjectStore) -> bool:
    """Return whether the view has more than announcements and a lease, which stand there before it."""
    return "step" in objects.children(GROUP)


def _is_group_of(rank: int, data: bytes) -> bool:
    try:
        return bool(json.loads(data) == json.loads(commit.rank_document(rank)))
    except (ValueError, RecursionError):
        return False


def _in_view(message: str) -> str:
    return message if message.startswith(GROUP) else f"{GROUP}: {message}"
