"""The condition `where` of a rule, checked when the rule is loaded: a wrong one must not wait for a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays.filter import Filter
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.store.sketches.sketch_names import is_sketch_column
from workers.store.tables import NUMBERS

#: The columns that are numbers, besides the columns of sketches. All others are text.
_NUMBERS = frozenset([*FIELDS, *NUMBERS, "rank", "step", "copy"])


def checked_condition(text: str, columns: frozenset[str]) -> str:
    """Return a condition that has the right form and compares what can be compared.

    Args:
        text: the condition.
        columns: the names that it may use.

    Raises:
        ValueError: it names something else, is not a condition, or takes text for a number.
    """
    try:
        condition = Filter(text, columns, said_by="")
        condition.evaluate({name: _example(name) for name in condition.names})
    except UsageError as exc:
        raise ValueError(". ".join(filter(None, (exc.message, exc.hint)))) from exc
    return text


def _example(column: str) -> npt.NDArray[Any]:
    """Return a column of one element, of the type that the column has."""
    is_number = column in _NUMBERS or is_sketch_column(column)
    return np.array([1.0]) if is_number else np.array(["text"], object)
