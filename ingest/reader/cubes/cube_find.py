"""Find tensors in the consolidated cubes by a condition, reading only the cubes that the condition names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.block_filter import AxisColumns
from ingest.reader.cubes.cube_reader import CubeReader, with_nan
from ingest.reader.cubes.cube_sketches import places_of_sketches, sketches_of_step
from ingest.reader.ranges import format_ranges
from workers.arrays.filter import Filter
from workers.arrays.statistics import FIELDS, NON_FINITE_FIELDS
from workers.errors import UsageError
from workers.store.consolidated.cubes import KEY_FIELDS
from workers.store.sketches.sketch_names import ColumnsWithSketches

if TYPE_CHECKING:
    import pandas as pd

Array: TypeAlias = npt.NDArray[Any]

#: Text and numbers of a tensor, by its place on the axis of tensors.
_TENSOR_FIELDS = (*KEY_FIELDS, "name")
#: The columns that a condition may name.
_COLUMNS = ColumnsWithSketches([*_TENSOR_FIELDS, "rank", "step", "role", *FIELDS])


@dataclass(frozen=True, slots=True, eq=False)
class _Hits:
    """The tensors that fulfil a condition, as columns with one element each."""

    place: Array
    """(hit,): place on the axis of steps."""
    rank: Array
    """(hit,): place on the axis of ranks."""
    tensor: Array
    """(hit,): place on the axis of tensors."""
    statistics: Mapping[str, Array]
    """(hit,) by name."""
    undecided: int = 0
    """How many other tensors may fulfil it: bounds of sketches do not decide."""


def find(
    cubes: CubeReader, where: str, steps: Sequence[int] | None, *, include_partial: bool
) -> pd.DataFrame:
    """Return the tensors that fulfil a condition; see `ConsolidatedCubes.find`."""
    condition = Filter(where, _COLUMNS)
    _check_steps(cubes, steps)
    # Whether it is a single number decides about the role of a tensor.
    needed = condition.names | ({"count"} if "role" in condition.names else set())
    statistics = [name for name in FIELDS if name in needed]
    sketches = places_of_sketches(condition.names)
    axis_columns = AxisColumns(cubes.axis)
    fields = {name: axis_columns.column(name, len(cubes.axis)) for name in _TENSOR_FIELDS}
    search = _Search(cubes, condition, axis_columns, sketches, include_partial)
    parts = [
        search.evaluate(places, values)
        for places, values in _read(cubes, statistics, steps, one_by_one=bool(sketches))
    ]
    frame = _frame(cubes, fields, _joined(parts, statistics))
    left_out = cubes.left_out(include_partial=include_partial)
    chosen = None if steps is None else set(steps)
    frame.attrs = {
        "consolidated_at": cubes.state.consolidated_at,
        "left_out": [str(left) for left in left_out if chosen is None or left.key.step in chosen],
        "undecided": sum(part.undecided for part in parts),
    }
    return frame


def _check_steps(cubes: CubeReader, steps: Sequence[int] | None) -> None:
    present = set(cubes.steps.tolist())
    absent = set(steps or ()) - present
    if absent:
        raise UsageError(
            f"{cubes.objects.address.url}: the consolidated view has no step {format_ranges(absent)}",
            hint=f"It has steps {format_ranges(present)}; `dump-ingest consolidate` brings it up to date.",
        )


def _read(
    cubes: CubeReader, statistics: Sequence[str], steps: Sequence[int] | None, *, one_by_one: bool = False
) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yield places of steps with the statistics of these steps, (step, rank, tensor).

    If all of these statistics are stored in blocks of several steps, so are the yielded ones; else, or with
    `one_by_one`, each step comes by itself.
    """
    wanted = _readable(cubes, steps)
    in_blocks = [name for name in statistics if name in NON_FINITE_FIELDS]
    per_block = cubes.state.grid.steps
    for first in range(0, cubes.state.steps, per_block):
        places = np.flatnonzero(wanted[first : first + per_block]) + first
        if not len(places):
            continue
        counts = {name: cubes.anomaly_block(name, first // per_block) for name in in_blocks}
        if len(in_blocks) == len(statistics) and not one_by_one:
            yield places, {name: values[places - first] for name, values in counts.items()}
            continue
        by_step = [name for name in statistics if name not in counts]
        for place in places.tolist():
            values = {name: block[place - first] for name, block in counts.items()}
            values |= zip(by_step, cubes.cubes_of_step(by_step, place), strict=True)
            yield np.array([place]), {name: cube[None] for name, cube in values.items()}


def _readable(cubes: CubeReader, steps: Sequence[int] | None) -> npt.NDArray[np.bool_]:
    """Return for each step of the cubes whether it is asked for and is not being rewritten, (step,)."""
    wanted = np.ones(cubes.state.steps, bool) if steps is None else np.isin(cubes.steps, list(steps))
    wanted[list(cubes.state.rewriting)] = False
    return wanted


@dataclass(frozen=True, slots=True)
class _Search:
    """What tensors must fulfil."""

    cubes: CubeReader
    condition: Filter
    axis_columns: AxisColumns
    sketches: Mapping[str, int]
    """By name: places of the columns of sketches that the condition asks for."""
    include_partial: bool

    def evaluate(self, places: Array, statistics: Mapping[str, Array]) -> _Hits:
        """Return the tensors of these steps that fulfil the condition; with sketches, of one step."""
        cubes, names = self.cubes, self.condition.names
        status = cubes.table("status")[places]
        is_chosen = (status != "") if self.include_partial else (status == "complete")
        width = len(cubes.axis)
        columns: dict[str, Any] = {
            **{name: self.axis_columns.column(name, width) for name in _TENSOR_FIELDS if name in names},
            "step": cubes.steps[places][:, None, None],
            "rank": cubes.ranks[None, :, None],
            **{name: with_nan(values) for name, values in statistics.items()},
        }
        if "role" in names:
            columns["role"] = self._roles(places, with_nan(statistics["count"]))
        if self.sketches:
            columns |= sketches_of_step(cubes, int(places[0]), self.sketches, is_chosen[0])
        shape = (len(places), len(cubes.ranks), width)
        decided = self.condition.decide(columns)
        may = np.broadcast_to(decided.possible | decided.certain, shape) & is_chosen[:, :, None]
        present = _without_absent(cubes, places, statistics, may)
        fulfils = present & decided.certain
        step, rank, tensor = np.nonzero(fulfils)
        hit = {name: values[step, rank, tensor] for name, values in statistics.items()}
        undecided = int(np.count_nonzero(present)) - len(step)
        return _Hits(places[step], rank, tensor, hit, undecided)

    def _roles(self, places: Array, counts: Array) -> Array:
        """Return the roles of all tensors of some steps, (step, rank, tensor). Takes a request per step."""
        steps = [
            self.axis_columns.roles(self.cubes.cube("row", place), count)
            for place, count in zip(places.tolist(), counts, strict=True)
        ]
        return np.stack(steps)


def _without_absent(
    cubes: CubeReader, places: Array, statistics: Mapping[str, Array], fulfils: Array
) -> Array:
    """Return a mask of the tensors that fulfil a condition and are present on the rank.

    An absent tensor fulfils conditions on names, and negations. A tensor with any known statistic is present.
    For the others the cube `row` is read, which takes a request for each step.
    """
    is_known = np.zeros(fulfils.shape, bool)
    for values in statistics.values():
        is_known |= (values >= 0) if values.dtype.kind == "i" else ~np.isnan(values)
    present = fulfils & is_known
    for number in np.flatnonzero((fulfils & ~is_known).any(axis=(1, 2))).tolist():
        present[number] |= fulfils[number] & (cubes.cube("row", int(places[number])) >= 0)
    return present


def _joined(parts: Sequence[_Hits], statistics: Sequence[str]) -> _Hits:
    if not parts:
        nothing = np.zeros(0, np.int64)
        return _Hits(nothing, nothing, nothing, {})
    return _Hits(
        np.concatenate([part.place for part in parts]),
        np.concatenate([part.rank for part in parts]),
        np.concatenate([part.tensor for part in parts]),
        {name: np.concatenate([part.statistics[name] for part in parts]) for name in statistics},
    )


def _frame(cubes: CubeReader, fields: Mapping[str, Array], hits: _Hits) -> pd.DataFrame:
    """Return one line for each hit, by step, rank and place on the axis of tensors."""
    import pandas as pd  # deferred: takes 0.4 s to import

    # The axis of tensors is in order of execution, except for tensors that were added later. The cube `row`
    # would give the exact order, but takes a request for each step with a hit.
    order = np.lexsort((hits.tensor, cubes.ranks[hits.rank], cubes.steps[hits.place]))
    tensor = hits.tensor[order]
    return pd.DataFrame(
        {
            "step": cubes.steps[hits.place][order],
            "rank": cubes.ranks[hits.rank][order],
            **{name: fields[name][tensor] for name in ("name", *KEY_FIELDS)},
            **{name: with_nan(values)[order] for name, values in hits.statistics.items()},
        }
    )
