"""Limits a comparison to some tensors: after all of them were matched, so that the choice changes no pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.matching import Matching
from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.arrays.statistics import FIELDS
from workers.store.roles import hints_of, roles_of

_KEY_FIELDS = ("net", "graph", "op_type", "op_name", "io", "slot", "occurrence", "name")
#: The columns that a condition on compared tensors may name.
COLUMNS = frozenset([*_KEY_FIELDS, *FIELDS, "rank", "step", "dtype", "role"])


def only_chosen(matching: Matching, a: StepTensors, b: StepTensors, fields: FilterFields) -> Matching:
    """Return the pairs of which the tensor of A is chosen, and the chosen ones of what is not matched.

    Raises:
        UsageError: the conditions are not valid.
    """
    choice = TensorFilter(fields, COLUMNS)
    if not choice.names:
        return matching
    of_a, of_b = _mask(choice, a), _mask(choice, b)
    return Matching(
        [pair for pair in matching.pairs if of_a[pair.a]],
        [number for number in matching.only_a if of_a[number]],
        [number for number in matching.only_b if of_b[number]],
    )


def _mask(choice: TensorFilter, side: StepTensors) -> npt.NDArray[np.bool_]:
    return choice.mask({name: _column(side, name) for name in choice.names}, len(side.keys))


def _column(side: StepTensors, name: str) -> Any:
    if name in FIELDS:
        return side.statistics[:, FIELDS.index(name)]
    if name == "role":
        return _roles(side)
    if name in ("rank", "step"):
        return getattr(side.key, name)
    values = side.dtypes if name == "dtype" else [getattr(key, name) for key in side.keys]
    return np.array(values, np.int64 if name in ("slot", "occurrence") else object)


def _roles(side: StepTensors) -> npt.NDArray[Any]:
    hints = hints_of((key.op_type, key.op_name, key.io, key.slot) for key in side.keys)
    counts = np.array([np.prod(shape, dtype=np.float64) for shape in side.shapes], np.float64)
    return roles_of(hints, counts, [(key.net, key.graph) for key in side.keys])
