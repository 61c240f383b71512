"""Percentiles and losses of casts in the cubes: what conditions ask of sketches, without the steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import numpy as np
import numpy.typing as npt

from ingest.reader.cubes.cube_reader import CubeReader
from workers.arrays.bounds import BoundedColumn
from workers.errors import DamagedStore, UsageError
from workers.model import MIB, StepKey, ceil_div
from workers.store.consolidated.cubes import BOUNDS, GROUP, REBUILD_HINT, SKETCHES, sketch_place
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.objects import ObjectStore
from workers.store.sketches.sketch_names import PERCENTILE, is_sketch_column

#: What is asked for at the end of an object: its index, and all of an object that is shorter.
_END_NBYTES = MIB // 32
_STEPS_HINT = "Without --consolidated, the steps are searched."
_LACKING_HINT = (
    "`dump-ingest sketch` adds it while the tensors are there, and "
    "`dump-ingest consolidate --rebuild` puts it into the view."
)


def places_of_sketches(names: Iterable[str]) -> dict[str, int]:
    """Return where `sketches` has each column of a condition that is about sketches, by name.

    Raises:
        UsageError: the cubes do not have it.
    """
    places: dict[str, int] = {}
    for name in filter(is_sketch_column, sorted(names)):
        place = sketch_place(name)
        if place is None:
            raise UsageError(
                f"the consolidated view does not have {_spelled(name)}",
                hint=f"It has {', '.join(SKETCHES)}. {_STEPS_HINT}",
            )
        places[name] = place
    return places


def _spelled(name: str) -> str:
    percentile = PERCENTILE.fullmatch(name)
    return name if percentile is None else f"{percentile[1] or ''}p{percentile[2].replace('_', '.')}"


def sketches_of_step(
    cubes: CubeReader, place: int, wanted: Mapping[str, int], is_chosen: npt.NDArray[np.bool_]
) -> dict[str, BoundedColumn]:
    """Return the bounds of some columns of one step, (rank, tensor) each, by name.

    They are NaN for tensors that are not of real numbers, and for percentiles of tensors without a finite
    element. Takes two requests for each 256 ranks and 1024 tensors, or one if that object is small; and one
    for the cube `row` if tensors were added to the axis after the step.

    Args:
        cubes: where they are read.
        place: of the step.
        wanted: by name, the place of a column in `SKETCHES`.
        is_chosen: which ranks are asked about, (rank,).

    Raises:
        UsageError: a tensor of real numbers of these ranks has no histogram.
        DamagedStore: the cube is damaged.
    """
    _refuse_lacking(cubes, place, is_chosen)
    has_any = is_chosen & (cubes.table("with_histogram")[place] > 0)
    values = np.full((len(wanted), len(BOUNDS), len(has_any), cubes.state.tensors), np.nan)
    for layout, key, ranks, tensors in _objects(cubes, place, has_any):
        target = values[:, :, ranks, tensors]
        if not _read(cubes.objects, layout, key, list(wanted.values()), target):
            _check_absent(cubes, place, key, ranks, tensors)
    values[:, :, ~has_any] = np.nan
    return {name: BoundedColumn(*values[number]) for number, name in enumerate(wanted)}


def sketched_tensors(cubes: CubeReader, place: int) -> npt.NDArray[np.int64]:
    """Read all that the cubes hold of the sketches of a step; return how many tensors have any, (rank,).

    Memory: 80 MB, one object.

    Raises:
        DamagedStore: the cube is damaged.
    """
    has_any = cubes.table("with_histogram")[place] > 0
    counts = np.zeros(len(has_any), np.int64)
    for layout, key, ranks, tensors in _objects(cubes, place, has_any):
        data = cubes.objects.get(key)
        if data is None:
            _check_absent(cubes, place, key, ranks, tensors)
            continue
        is_held = ~np.isnan(layout.decode(data, key)[0]).all(axis=(0, 1))
        counts[ranks] += is_held[: ranks.stop - ranks.start].sum(axis=1)
    return counts


def _objects(
    cubes: CubeReader, place: int, has_any: npt.NDArray[np.bool_]
) -> Iterator[tuple[ArrayLayout, str, slice, slice]]:
    """Yield the objects of a step that have one of these ranks: layout, key, and which ranks and tensors."""
    layout = cubes.layouts.sketches
    wide, long = layout.chunk[-2:]
    ranks, tensors = len(has_any), cubes.state.tensors
    for chunk, part in product(range(ceil_div(ranks, wide)), range(ceil_div(tensors, long))):
        of_chunk = slice(chunk * wide, min((chunk + 1) * wide, ranks))
        if has_any[of_chunk].any():
            key = f"{GROUP}/{layout.key((place, 0, 0, chunk, part))}"
            yield layout, key, of_chunk, slice(part * long, min((part + 1) * long, tensors))


def _check_absent(cubes: CubeReader, place: int, key: str, ranks: slice, tensors: slice) -> None:
    """Check that an object is absent because all of its tensors were added to the axis after the step.

    Raises:
        DamagedStore: the step has one of them.
    """
    if (cubes.cube("row", place)[ranks, tensors] >= 0).any():
        raise DamagedStore(f"{key}: missing", hint=REBUILD_HINT)


def _refuse_lacking(cubes: CubeReader, place: int, is_chosen: npt.NDArray[np.bool_]) -> None:
    without = np.where(is_chosen, cubes.table("without_histogram")[place], 0)
    if (lacking := np.flatnonzero(without > 0)).size:
        number = int(without[lacking[0]])
        key = StepKey(int(cubes.ranks[lacking[0]]), int(cubes.steps[place]))
        raise UsageError(
            f"{key}: {number} {'tensor has' if number == 1 else 'tensors have'} no histogram in the view",
            hint=_LACKING_HINT,
        )


def _read(
    objects: ObjectStore, layout: ArrayLayout, key: str, columns: list[int], target: npt.NDArray[np.float64]
) -> bool:
    """Read some columns of an object into an array, (column, bound, rank, tensor); False if it is absent."""
    asked = max(layout.index_nbytes, _END_NBYTES)
    end = objects.get_range(key, -asked)
    if end is None:
        return False
    ranges = layout.inner_ranges(end, key)
    nbytes = max(stop for _, stop in ranges) + layout.index_nbytes
    for number, (start, stop) in enumerate(ranges[column] for column in columns):
        first = nbytes - len(end)
        if start >= first:
            data = end[start - first : stop - first]
        else:
            data = objects.get_range(key, start, stop) or b""
        inner = layout.decode_inner(data, key, stop - start)[0, 0]
        target[number] = inner[:, : target.shape[2], : target.shape[3]]
    return True
