"""Conditions over the consolidated cubes: the tensors that fulfil one, and the steps that need not be read.

Only the cubes that a condition names are read. `possible_steps` is the one place that decides between cubes
and steps for questions whose answers need the index of a step: a step is left out if the cubes hold it as it
is committed, and exclude the condition for each of its tensors. So the answer is that of the steps, and is as
exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.choice import format_ranges
from ingest.reader.cube_reader import CubeReader, counted_tensors, read_cubes, with_nan
from ingest.reader.tensor_filter import AxisColumns, BlockFilter, FilterFields
from workers.arrays.filter import BoundedColumn, Filter
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, StoreError, UsageError
from workers.model import StepKey, ceil_div
from workers.store.consolidated.blocks import BLOCK_COLUMNS
from workers.store.consolidated.cubes import BOUNDS, GROUP, KEY_FIELDS, SKETCHES, parse_state, sketch_place
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.objects import ObjectStore
from workers.store.sketch_names import PERCENTILE, ColumnsWithSketches, is_sketch_column

if TYPE_CHECKING:
    import pandas as pd

    from ingest.reader.step import Step

_Mask = npt.NDArray[np.bool_]
#: Values of tensors, by the name of their column.
_Hits = Mapping[str, npt.NDArray[Any]]

#: Text and numbers of a tensor, by its place on the axis of tensors.
_TENSOR_FIELDS = (*KEY_FIELDS, "name")
#: The columns that a condition may name.
_COLUMNS = ColumnsWithSketches([*_TENSOR_FIELDS, "rank", "step", "role", *FIELDS])
_COLUMNS_OF_BLOCKS = ColumnsWithSketches(BLOCK_COLUMNS)
#: Fewer steps are read without asking the cubes, whose axes take as many requests as a few indexes.
LEAST_STEPS = 16
#: The cubes have all ranks of a step: reading this many takes as long as the index of one rank.
RANKS_OF_AN_INDEX = 8
_STEPS_HINT = "Without --consolidated, the steps are searched."
_LACKING_HINT = (
    "`dump-ingest sketch` adds it while the tensors are there, and "
    "`dump-ingest consolidate --rebuild` puts it into the view."
)


#: How often a search is repeated because the cubes changed meanwhile.
_ATTEMPTS = 5


class ConsolidatedCubes(CubeReader):
    """Statistics and digests of all tensors over steps and ranks, as of when this was opened.

    Steps that are consolidated later are not included. A place is a position on one of the axes; `steps`,
    `ranks` and `axis` name the step, rank and tensor at each place.
    """

    def find(
        self, where: str, *, step: Sequence[int] | None = None, include_partial: bool = False
    ) -> pd.DataFrame:
        """Return the tensors that fulfil a condition on their statistics or names, at any rank and step.

        If the consolidator begins to rewrite steps meanwhile, the cubes are opened and searched again.

        Args:
            where: a condition such as `nan_count > 0 and io == 'output'` on the statistics, the fields of
                the tensor (`name`, `net`, `graph`, `op_type`, `op_name`, `io`, `slot`, `occurrence`), `rank`
                and `step`, and on the columns of `workers.store.consolidated.cubes.SKETCHES`. Unknown
                statistics are NaN. What is known between two bounds must fulfil it for all values between
                them.
            step: only these steps.
            include_partial: also search steps with quarantined or missing files.

        Returns:
            A row for each tensor, by step, rank and place. Places are in order of execution, except for
            tensors that first occurred in later steps. The columns are step, rank, name, the fields of the
            tensor, and the statistics that the condition names. `attrs` has `consolidated_at`, the time of
            the cubes, `left_out`, the steps in the cubes that were not searched, and `undecided`, how
            many other tensors may fulfil the condition.

        Raises:
            UsageError: `where` is not a valid condition, the cubes do not have one of the steps, or they lack
                a column of sketches or the histogram of a tensor.
            DamagedStore: a cube is damaged.
            StoreError: the cubes are rewritten faster than they can be read.
        """
        cubes: ConsolidatedCubes | None = self
        for _ in range(_ATTEMPTS):
            if cubes is None:
                break
            try:
                frame = find(cubes, where, step, include_partial=include_partial)
            except DamagedStore:
                if cubes.is_current():
                    raise
            else:
                if cubes.is_current():
                    return frame
            cubes = open_cubes(self.objects)
        url = self.objects.address.url
        raise StoreError(f"{url}: the consolidated view is being rewritten", hint="Try again.")


def open_cubes(objects: ObjectStore) -> ConsolidatedCubes | None:
    """Return the consolidated cubes of a store; None if it has none yet. Takes one request.

    Raises:
        DamagedStore: their metadata is damaged.
    """
    state = parse_state(objects.get(f"{GROUP}/zarr.json"))
    return None if state is None else ConsolidatedCubes(objects, state)


def find(
    cubes: CubeReader, where: str, steps: Sequence[int] | None, *, include_partial: bool
) -> pd.DataFrame:
    """Return the tensors that fulfil a condition; see `ConsolidatedCubes.find`."""
    condition = Filter(where, _COLUMNS)
    present = cubes.steps.tolist()
    chosen = set(present if steps is None else steps)
    if absent := chosen.difference(present):
        raise UsageError(
            f"{cubes.objects.address.url}: the consolidated view has no step {format_ranges(absent)}",
            hint=f"It has steps {format_ranges(present)}; `dump-ingest consolidate` brings it up to date.",
        )
    statistics = _statistics_of(condition.names)
    search = _Search(
        cubes, condition, statistics, places_of_sketches(condition.names), AxisColumns(cubes.axis)
    )
    status = cubes.table("status")
    no_hits = {name: np.zeros(0, np.int64) for name in ("step", "rank", "place", *statistics)}
    hits: list[_Hits] = [no_hits]
    undecided = 0
    for place, step in enumerate(present):
        if place in cubes.state.rewriting or step not in chosen:
            continue
        is_chosen = (status[place] != "") if include_partial else (status[place] == "complete")
        of_step, more = search.of_step(place, step, is_chosen)
        hits += of_step
        undecided += more
    frame = _frame(search.axis, len(cubes.axis), hits)
    left_out = cubes.left_out(include_partial=include_partial)
    frame.attrs = {
        "consolidated_at": cubes.state.consolidated_at,
        "left_out": [str(left) for left in left_out if left.key.step in chosen],
        "undecided": undecided,
    }
    return frame


@dataclass(frozen=True, slots=True)
class _Search:
    """A condition on single tensors, as it is evaluated over the cubes, step by step."""

    cubes: CubeReader
    condition: Filter
    statistics: tuple[str, ...]
    sketches: Mapping[str, int]
    """By name, the places of the columns of sketches that it names."""
    axis: AxisColumns

    def of_step(self, place: int, step: int, is_chosen: _Mask) -> tuple[list[_Hits], int]:
        """Return the hits of one step, if any tensor may be one, and the number of undecided tensors."""
        cubes = self.cubes
        values = dict(zip(self.statistics, cubes.cubes_of_step(self.statistics, place), strict=True))
        decided = self.condition.decide(self._columns(place, step, values, is_chosen))
        shape = (cubes.state.ranks, len(cubes.axis))
        may = np.broadcast_to(decided.possible | decided.certain, shape) & is_chosen[:, None]
        if not may.any():
            return [], 0
        # An absent tensor fulfils conditions on names, and negations; one with a known statistic is present.
        is_present = np.zeros(may.shape, bool)
        for own in values.values():
            is_present |= (own >= 0) if own.dtype.kind == "i" else ~np.isnan(own)
        if (may & ~is_present).any():
            is_present |= self.cubes.cube("row", place) >= 0
        may &= is_present
        rank, tensor = np.nonzero(may & decided.certain)
        hits = {"step": np.full(len(rank), step), "rank": cubes.ranks[rank], "place": tensor}
        hits |= {name: own[rank, tensor] for name, own in values.items()}
        return [hits], int(np.count_nonzero(may)) - len(rank)

    def _columns(self, place: int, step: int, values: _Hits, is_chosen: _Mask) -> dict[str, Any]:
        """Return the columns that it names, of one step; `values` has its statistics."""
        cubes, names = self.cubes, self.condition.names
        columns: dict[str, Any] = {"step": step, "rank": cubes.ranks[:, None]}
        columns |= {name: self.axis.column(name, len(cubes.axis)) for name in _TENSOR_FIELDS if name in names}
        columns |= {name: with_nan(own) for name, own in values.items()}
        if "role" in names:
            columns["role"] = self.axis.roles(cubes.cube("row", place), columns["count"])
        if self.sketches:
            columns |= sketches_of_step(cubes, place, self.sketches, is_chosen)
        return columns


def _statistics_of(names: Iterable[str]) -> tuple[str, ...]:
    # Whether it is a single number decides about the role of a tensor.
    needed = {*names, *(["count"] if "role" in names else [])}
    return tuple(name for name in FIELDS if name in needed)


def _frame(axis: AxisColumns, width: int, parts: Sequence[_Hits]) -> pd.DataFrame:
    import pandas as pd  # deferred: takes 0.4 s to import

    hits = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # The axis of tensors is in order of execution, except for tensors that were added later. The cube `row`
    # would give the exact order, but takes a request for each step with a hit.
    order = np.lexsort((hits["place"], hits["rank"], hits["step"]))
    tensor = hits["place"][order]
    keys = {name: axis.column(name, width)[tensor] for name in ("name", *KEY_FIELDS)}
    own = {name: with_nan(values)[order] for name, values in hits.items() if name != "place"}
    return pd.DataFrame({"step": own.pop("step"), "rank": own.pop("rank"), **keys, **own})


def possible_steps(
    objects: ObjectStore, steps: Sequence[Step], conditions: Sequence[FilterFields]
) -> list[Step]:
    """Return the steps that may have a tensor which fulfils one of these conditions, in the same order.

    These are all steps if the cubes cannot tell: there are none, they are damaged or rewritten meanwhile, or
    lack what a condition names. A step that the cubes do not hold as it is committed may have such a tensor,
    and so may one with a tensor that lacks a histogram, if a condition asks for it.

    Cost: the axes of the cubes; for each step, an object of each statistic that the conditions name, of
    `row`, and of `sketches` if they name any. Memory: these statistics of one step of all ranks.

    Args:
        objects: the store.
        steps: the steps, as they are committed.
        conditions: what a tensor must fulfil, any of them.
    """
    if len(steps) < LEAST_STEPS:
        return list(steps)
    try:
        cubes = read_cubes(objects)
        excluded = set() if cubes is None else _excluded(cubes, steps, conditions)
        if cubes is None or not excluded or not cubes.is_current():
            return list(steps)
    except (DamagedStore, UsageError):
        return list(steps)  # whatever is wrong with cubes or condition, the steps tell
    return [step for step in steps if step not in excluded]


def _excluded(cubes: CubeReader, steps: Sequence[Step], conditions: Sequence[FilterFields]) -> set[Step]:
    """Return the steps of which no tensor fulfils any of the conditions.

    Raises:
        UsageError: the cubes lack what a condition names, or it cannot be evaluated.
        DamagedStore: a cube is damaged.
    """
    filters = [BlockFilter(fields, cubes.axis, _COLUMNS_OF_BLOCKS) for fields in conditions]
    if not all(map(_asks_of_values, filters)):
        return set()  # a condition on names alone excludes no step
    names = frozenset().union(*(condition.filter.names for condition in filters))
    fields, sketches = _statistics_of(names), places_of_sketches(names)
    by_number: dict[int | None, dict[int, Step]] = {}
    for step in steps:
        by_number.setdefault(step.key.step, {})[step.key.rank] = step
    excluded: set[Step] = set()
    for place, number in enumerate(cubes.steps.tolist()):
        of_ranks = by_number.get(number, {})
        is_worth_it = of_ranks and len(of_ranks) * RANKS_OF_AN_INDEX >= len(cubes.ranks)
        if is_worth_it and place not in cubes.state.rewriting:
            excluded |= _excluded_at(
                cubes, place, of_ranks, conditions=filters, fields=fields, sketches=sketches
            )
    return excluded


def _asks_of_values(condition: BlockFilter) -> bool:
    return any(name in FIELDS or is_sketch_column(name) for name in condition.filter.names)


def _excluded_at(
    cubes: CubeReader,
    place: int,
    of_ranks: Mapping[int, Step],
    *,
    conditions: Sequence[BlockFilter],
    fields: tuple[str, ...],
    sketches: Mapping[str, int],
) -> set[Step]:
    """Return the ranks of one step that are excluded: the cubes hold them whole and without a match.

    Args:
        cubes: where the step is read.
        place: of the step.
        of_ranks: the step of each rank, as it is committed.
        conditions: what a tensor must fulfil, any of them.
        fields: the statistics that they name.
        sketches: by name, the places of the columns of sketches that they name.
    """
    ranks, generations = cubes.ranks.tolist(), {rank: step.fingerprint for rank, step in of_ranks.items()}
    committed = np.array(list(map(generations.get, ranks)), object)
    is_held = np.asarray(cubes.table("fingerprint")[place] == committed, bool)
    known: Mapping[str, BoundedColumn] = {}
    if sketches:  # all histograms have to be there
        is_held &= cubes.table("without_histogram")[place] <= 0
        known = sketches_of_step(cubes, place, sketches, is_held)
    if not is_held.any():
        return set()
    block = cubes.block(place, fields, digests=False)
    order = np.argsort(cubes.ranks)  # a block has its ranks in ascending order
    columns = {name: BoundedColumn(low[order], high[order]) for name, (low, high) in known.items()}
    may_have = np.any([own.may(block, columns).any(axis=1) for own in conditions], axis=0)
    tensors = block.present.sum(axis=1)
    return {
        of_ranks[ranks[at]]
        for number, at in enumerate(order.tolist())
        if is_held[at] and not may_have[number] and tensors[number] == counted_tensors(of_ranks[ranks[at]])
    }


def places_of_sketches(names: Iterable[str]) -> dict[str, int]:
    """Return where `SKETCHES` has each column of a condition that is about sketches, by name.

    Raises:
        UsageError: the cubes do not have it.
    """
    places: dict[str, int] = {}
    for name in filter(is_sketch_column, sorted(names)):
        place, percentile = sketch_place(name), PERCENTILE.fullmatch(name)
        spelled = f"{percentile[1] or ''}p{percentile[2].replace('_', '.')}" if percentile else name
        if place is None:
            raise UsageError(
                f"the consolidated view does not have {spelled}",
                hint=f"It has {', '.join(SKETCHES)}. {_STEPS_HINT}",
            )
        places[name] = place
    return places


def sketches_of_step(
    cubes: CubeReader, place: int, wanted: Mapping[str, int], is_chosen: _Mask
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
    without = np.where(is_chosen, cubes.table("without_histogram")[place], 0)
    for number in np.flatnonzero(without > 0).tolist():
        key, count = StepKey(int(cubes.ranks[number]), int(cubes.steps[place])), int(without[number])
        lacking = f"{count} {'tensor has' if count == 1 else 'tensors have'} no histogram in the view"
        raise UsageError(f"{key}: {lacking}", hint=_LACKING_HINT)
    has_any = is_chosen & (cubes.table("with_histogram")[place] > 0)
    numbers = sorted(set(wanted.values()))
    values = np.full((len(numbers), len(BOUNDS), len(has_any), cubes.state.tensors), np.nan)
    for layout, position, ranks, tensors in _objects(cubes, place, has_any):
        target = values[:, :, ranks, tensors]
        for number, inner in enumerate(cubes.inner_chunks(layout, position, numbers)):
            target[number] = inner[0, 0][:, : target.shape[2], : target.shape[3]]
    values[:, :, ~has_any] = np.nan
    return {name: BoundedColumn(*values[numbers.index(number)]) for name, number in wanted.items()}


def sketched_tensors(cubes: CubeReader, place: int) -> npt.NDArray[np.int64]:
    """Read all that the cubes hold of the sketches of a step; return how many tensors have any, (rank,).

    Memory: 80 MB, one object.

    Raises:
        DamagedStore: the cube is damaged.
    """
    has_any = cubes.table("with_histogram")[place] > 0
    counts = np.zeros(len(has_any), np.int64)
    for layout, position, ranks, _ in _objects(cubes, place, has_any):
        key = f"{GROUP}/{layout.key(position)}"
        data = cubes.objects.get(key)
        if data is None:
            cubes.check_absent(layout, position)
        else:
            is_held = ~np.isnan(layout.decode(data, key)[0]).all(axis=(0, 1))
            counts[ranks] += is_held[: ranks.stop - ranks.start].sum(axis=1)
    return counts


def _objects(
    cubes: CubeReader, place: int, has_any: _Mask
) -> Iterator[tuple[ArrayLayout, tuple[int, ...], slice, slice]]:
    """Yield the objects of a step that have one of these ranks: layout, position, which ranks and tensors."""
    layout = cubes.layouts.sketches
    wide, long = layout.chunk[-2:]
    ranks, tensors = len(has_any), cubes.state.tensors
    for chunk, part in product(range(ceil_div(ranks, wide)), range(ceil_div(tensors, long))):
        of_chunk = slice(chunk * wide, min((chunk + 1) * wide, ranks))
        if has_any[of_chunk].any():
            of_part = slice(part * long, min((part + 1) * long, tensors))
            yield layout, (place, 0, 0, chunk, part), of_chunk, of_part
