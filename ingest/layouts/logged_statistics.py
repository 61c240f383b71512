"""Statistics by the definitions of torch, as logs have them: what they say about the elements of a tensor.

In torch, one NaN makes maximum, minimum, mean and norms NaN, and one infinity makes some of them infinite.
Ours cover the finite elements, and count the others. So a finite number is taken, and one that is not tells
that there are such elements: then their count is 1, which means at least one (`counts_are_least`).

A statistic that the store has no column for (an L1 norm, the share of underflows) is a row of its own: a
single number, which is its minimum, maximum and mean. So `trend`, `compare` and rules work on it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.arrays.statistics import NON_FINITE_FIELDS, Statistics
from workers.dump.formats.header import MAX_NDIM
from workers.dump.model import ReportedStatistics, TensorName

#: The first part of the label of rows that hold a statistic.
STATISTIC_IO = "statistic"
#: Each tensor of an operator keeps what a log says of the operator: this many characters of a text at most.
MAX_TEXT = 1000
#: Collectives that return before their output is written: what is hashed then is what was in its memory.
_WRITES_LATER = re.compile(r"all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast")
_COLUMNS = ("min", "max", "mean", "std", "l2_norm")


@dataclass(frozen=True, slots=True)
class LoggedTensor:
    """One tensor, as a log describes it."""

    name: TensorName
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Statistics by name: `min`, `max`, `mean`, `std`, `l2_norm`, and others."""
    norms: Sequence[float] = ()
    """Norms, or sums of absolute values, which tell NaN and infinities but have no row."""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tensor: str = ""
    """Path of the file that holds it, if the dump may have one."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How the numbers of a log were printed."""

    digits: int = 15
    decimals: int = -1
    std_is_of_sample: bool = False


def reported(source: str, logged: LoggedTensor, precision: Precision) -> Iterator[ReportedStatistics]:
    """Yield the row of a tensor, and those of its statistics that have no column.

    Args:
        source: path of the log.
        logged: what it says.
        precision: of its numbers.
    """
    statistics = statistics_of(logged.numbers, logged.norms, logged.shape)
    yield ReportedStatistics(
        source=source,
        name=logged.name,
        dtype=logged.dtype,
        shape=logged.shape or (),
        statistics=statistics,
        tensor=logged.tensor,
        digits=precision.digits,
        decimals=precision.decimals,
        counts_are_least=True,
        std_is_of_sample=precision.std_is_of_sample,
        attributes=_attributes(logged, precision),
    )
    for number_name, value in logged.numbers.items():
        if number_name not in _COLUMNS:
            yield _number_row(source, logged.name, number_name, value, precision)


def number_row(source: str, name: TensorName, value: float, precision: Precision) -> ReportedStatistics:
    """Return the row of a single number."""
    is_finite = math.isfinite(value)
    attributes: dict[str, Any] = {} if is_finite else {"value": str(value)}
    if precision.decimals >= 0:
        attributes["decimals"] = precision.decimals
    statistics = Statistics(
        count=1, min=value, max=value, mean=value, l2_norm=abs(value), **dict.fromkeys(NON_FINITE_FIELDS, 0.0)
    )
    return ReportedStatistics(
        source=source,
        name=name,
        dtype="",
        shape=(),
        # Whether the tensor has NaN is told by its own row: this one would be one more.
        statistics=statistics if is_finite else Statistics(),
        digits=precision.digits,
        decimals=precision.decimals,
        attributes=json.dumps(attributes) if attributes else "",
    )


def _number_row(
    source: str, name: TensorName, statistic: str, value: float, precision: Precision
) -> ReportedStatistics:
    io = f"{STATISTIC_IO}.{name.io}.{statistic}"
    return number_row(source, name._replace(io=io), value, precision)


def statistics_of(
    numbers: Mapping[str, float], norms: Sequence[float], shape: tuple[int, ...] | None
) -> Statistics:
    """Convert numbers by torch's definitions to ours; NaN for what they do not tell.

    Args:
        numbers: `min`, `max`, `mean`, `std`, `l2_norm`.
        norms: others that are NaN, or infinite, if and only if an element is.
        shape: lengths of the axes; None if they are not known.
    """
    if not numbers and not norms:
        return Statistics()  # with a count alone, it would look as if a NaN had made the rest unknown
    values = {name: value for name, value in numbers.items() if name in _COLUMNS and math.isfinite(value)}
    if values.get("min", -math.inf) > values.get("max", math.inf):
        del values["min"], values["max"]
    if norms and not any(norms) and 0 not in (shape or ()):
        values = dict.fromkeys(_COLUMNS, 0.0)  # each element is zero
    return Statistics(
        count=math.nan if shape is None else float(math.prod(shape)),
        **_non_finite(numbers.get("min"), numbers.get("max"), norms),
        **values,
    )


def _non_finite(low: float | None, high: float | None, norms: Sequence[float]) -> dict[str, float]:
    """Return the counts of NaN and infinities: 0, 1 for some, or none where nothing is known."""
    extremes = [value for value in (low, high) if value is not None]
    if extremes and any(map(math.isnan, extremes)):
        return {"nan_count": 1.0}
    if low is not None and high is not None:
        # Neither is NaN, so no element is.
        return {
            "nan_count": 0.0,
            "pos_inf_count": float(high == math.inf),
            "neg_inf_count": float(low == -math.inf),
        }
    if norms and all(map(math.isfinite, norms)):
        return dict.fromkeys(NON_FINITE_FIELDS, 0.0)
    if any(map(math.isnan, norms)):
        return {"nan_count": 1.0}
    # Which sign it has is not known.
    return {"pos_inf_count": 1.0} if norms else {}


def _attributes(logged: LoggedTensor, precision: Precision) -> str:
    attributes = dict(logged.attributes)
    if precision.decimals >= 0:
        attributes["decimals"] = precision.decimals
    not_finite = {name: str(value) for name, value in logged.numbers.items() if not math.isfinite(value)}
    if not_finite:
        attributes["not_finite"] = not_finite
    return json.dumps(attributes) if attributes else ""


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Return the lengths of axes that a log separates by commas; None if no tensor can have them.

    >>> parse_shape("2, 3")
    (2, 3)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MAX_NDIM or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        return None
    shape = tuple(map(int, parts))
    return shape if math.prod(n for n in shape if n) < 2**63 else None


def writes_later(op_type: str) -> bool:
    """Return whether an operator may not have written its outputs yet when it returns."""
    return _WRITES_LATER.search(op_type.lower()) is not None


def known(*numbers: float | None) -> list[float]:
    """Return the numbers that are known."""
    return [number for number in numbers if number is not None]
