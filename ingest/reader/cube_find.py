"""A condition, asked of the consolidated view: reads only the cubes that the condition names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.ranges import format_ranges
from workers.arrays.filter import Filter
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.store.blocks import TensorKey
from workers.store.cubes import ANOMALY_FIELDS, KEY_FIELDS

if TYPE_CHECKING:
    import pandas as pd

    from ingest.reader.cube_reader import CubeReader

_OF_TENSOR = (*KEY_FIELDS, "name")
COLUMNS = frozenset([*_OF_TENSOR, "rank", "step", *FIELDS])
Array = npt.NDArray[Any]


def find(view: CubeReader, where: str, steps: Sequence[int] | None, *, include_partial: bool) -> pd.DataFrame:
    """Return the tensors that fulfil a condition; see `CubeReader.find`."""
    import pandas as pd

    condition = Filter(where, COLUMNS)
    _check_steps(view, steps)
    statistics = [name for name in FIELDS if name in condition.names]
    keys = view.axis.keys
    of_tensor = {name: np.array([_field(key, name) for key in keys], object) for name in _OF_TENSOR}
    for name in ("slot", "occurrence", "copy"):
        of_tensor[name] = of_tensor[name].astype(np.int64)
    named = {name: column[None, None, :] for name, column in of_tensor.items() if name in condition.names}
    status = view.table("status")
    taken = (status != "") if include_partial else (status == "complete")
    parts: list[tuple[Array, Array, Array, dict[str, Array]]] = []
    for places, cubes in _read(view, statistics, steps):
        columns: dict[str, Any] = {
            **named,
            "step": view.steps[places][:, None, None],
            "rank": view.ranks[None, :, None],
            **{name: _known(values) for name, values in cubes.items()},
        }
        shape = (len(places), len(view.ranks), len(keys))
        hit = np.broadcast_to(condition.evaluate(columns), shape) & taken[places][:, :, None]
        step, rank, tensor = np.nonzero(_there(view, places, cubes, hit))
        found = {name: values[step, rank, tensor] for name, values in cubes.items()}
        parts.append((places[step], rank, tensor, found))
    place, rank, tensor = (
        np.concatenate([part[i] for part in parts]) if parts else np.zeros(0, np.int64) for i in range(3)
    )
    # The axis of tensors is in order of execution, but for tensors that came later. The rows would be exact,
    # at the price of a request for each step with a hit.
    order = np.lexsort((tensor, view.ranks[rank], view.steps[place]))
    values_of = {name: np.concatenate([part[3][name] for part in parts]) for name in statistics if parts}
    frame = pd.DataFrame(
        {
            "step": view.steps[place][order],
            "rank": view.ranks[rank][order],
            **{name: of_tensor[name][tensor][order] for name in ("name", *KEY_FIELDS)},
            **{name: _known(values)[order] for name, values in values_of.items()},
        }
    )
    left_out = view.left_out(include_partial=include_partial)
    asked = None if steps is None else set(steps)
    frame.attrs = {
        "consolidated_at": view.state.consolidated_at,
        "left_out": [str(one) for one in left_out if asked is None or one.key.step in asked],
    }
    return frame


def _check_steps(view: CubeReader, steps: Sequence[int] | None) -> None:
    there = set(view.steps.tolist())
    absent = set(steps or ()) - there
    if absent:
        names = ", ".join(map(str, sorted(absent)))
        raise UsageError(
            f"{view.objects.address.url}: the consolidated view has no step {names}",
            hint=f"It has steps {format_ranges(sorted(there))}; `dump-ingest consolidate` brings it up to date.",
        )


def _known(values: Array) -> Array:
    """Return counts with NaN instead of the -1 of those that are not known; other values as they are."""
    if values.dtype.kind != "i" or not values.size or values.min() >= 0:
        return values
    return np.where(values < 0, np.nan, values)


def _field(key: TensorKey, name: str) -> str | int:
    value: str | int = getattr(key, name)
    return value


def _read(
    view: CubeReader, statistics: Sequence[str], steps: Sequence[int] | None
) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yield places of steps with the cubes that are wanted of them, (step, rank, tensor).

    By blocks where only the counts are wanted that are cut so, else step by step.
    """
    wanted = np.ones(view.state.steps, bool) if steps is None else np.isin(view.steps, list(steps))
    wanted[list(view.state.rewriting)] = False
    per_block = view.state.grid.steps
    for block in range(-(-view.state.steps // per_block)):
        places = np.flatnonzero(wanted[block * per_block : (block + 1) * per_block]) + block * per_block
        if not len(places):
            continue
        counts = {name: view.anomaly_block(name, block) for name in statistics if name in ANOMALY_FIELDS}
        if len(counts) == len(statistics):
            yield places, {name: values[places - block * per_block] for name, values in counts.items()}
            continue
        for place in places.tolist():
            cubes = {
                name: counts[name][place - block * per_block] if name in counts else view.cube(name, place)
                for name in statistics
            }
            yield np.array([place]), {name: values[None] for name, values in cubes.items()}


def _there(view: CubeReader, places: Array, cubes: dict[str, Array], hit: Array) -> Array:
    """Return those hits that the ranks have: what is not there fulfils conditions on names, or negations.

    Where anything is known of a tensor, it is there; else its row tells, at a request for each step.
    """
    known = np.zeros(hit.shape, bool)
    for values in cubes.values():
        known |= (values >= 0) if values.dtype.kind == "i" else ~np.isnan(values)
    there = hit & known
    for number in np.flatnonzero((hit & ~known).any(axis=(1, 2))).tolist():
        there[number] |= hit[number] & (view.cube("row", int(places[number])) >= 0)
    return there
