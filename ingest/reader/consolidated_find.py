"""A condition, asked of the consolidated view: reads only the cubes that the condition names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.where import Where
from workers.blocks import TensorKey
from workers.statistics import FIELDS
from workers.store.cubes import ANOMALY_FIELDS, KEY_FIELDS

if TYPE_CHECKING:
    import pandas as pd

    from ingest.reader.consolidated import ConsolidatedView

_OF_TENSOR = (*KEY_FIELDS, "name")
COLUMNS = frozenset([*_OF_TENSOR, "rank", "step", *FIELDS])
Array = npt.NDArray[Any]


def find(view: ConsolidatedView, where: str, steps: Sequence[int] | None) -> pd.DataFrame:
    """Return the tensors that fulfil a condition; see `ConsolidatedView.find`."""
    import pandas as pd

    condition = Where(where, COLUMNS)
    statistics = [name for name in FIELDS if name in condition.names]
    keys = view.axis.keys
    of_tensor = {name: np.array([_field(key, name) for key in keys], object) for name in _OF_TENSOR}
    for name in ("slot", "occurrence", "copy"):
        of_tensor[name] = of_tensor[name].astype(np.int64)
    named = {name: column[None, None, :] for name, column in of_tensor.items() if name in condition.names}
    parts: list[tuple[Array, Array, Array, dict[str, Array]]] = []
    for places, cubes in _read(view, statistics, steps):
        columns: dict[str, Any] = {
            **named,
            "step": view.steps[places][:, None, None],
            "rank": view.ranks[None, :, None],
        }
        present = np.ones(1, bool)
        for name, values in cubes.items():
            is_count = values.dtype.kind == "i"
            present = present & (values >= 0) if is_count else present
            columns[name] = values
        shape = (len(places), len(view.ranks), len(keys))
        hit = np.broadcast_to(condition.evaluate(columns), shape) & present
        step, rank, tensor = np.nonzero(hit)
        found = {name: values[step, rank, tensor] for name, values in cubes.items()}
        parts.append((places[step], rank, tensor, found))
    place, rank, tensor = (
        np.concatenate([part[i] for part in parts]) if parts else np.zeros(0, np.int64) for i in range(3)
    )
    row = _rows(view, place, rank, tensor)
    frame = pd.DataFrame(
        {
            "step": view.steps[place],
            "rank": view.ranks[rank],
            "row": row,
            **{name: of_tensor[name][tensor] for name in ("name", *KEY_FIELDS)},
            **{name: np.concatenate([part[3][name] for part in parts]) for name in statistics if parts},
        }
    )
    # What a rank does not have fulfils conditions on names alone.
    frame = frame[frame["row"] >= 0]
    return frame.sort_values(["step", "rank", "row"], ignore_index=True)


def _field(key: TensorKey, name: str) -> str | int:
    value: str | int = getattr(key, name)
    return value


def _read(
    view: ConsolidatedView, statistics: Sequence[str], steps: Sequence[int] | None
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


def _rows(view: ConsolidatedView, place: Array, rank: Array, tensor: Array) -> npt.NDArray[np.int64]:
    """Return the row of each hit in the index of its step: one cube for each step that has hits."""
    rows = np.full(len(place), -1, np.int64)
    for one in np.unique(place):
        of_step = place == one
        rows[of_step] = view.cube("row", int(one))[rank[of_step], tensor[of_step]]
    return rows
