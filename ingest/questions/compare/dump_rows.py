"""What is known of the tensors of a dump from names, headers and reports, in the form of an index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import canonical
from workers.arrays.statistics import FIELDS
from workers.dump.model import ReportedStatistics
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.model import Entry


def statistics_of(reported: Sequence[ReportedStatistics | None]) -> npt.NDArray[np.float64]:
    """Return the statistics that the dump reports, (tensor, len(FIELDS)); NaN if it reports none."""
    statistics = np.full((len(reported), len(FIELDS)), np.nan)
    for number, report in enumerate(reported):
        if report is not None:
            statistics[number] = report.statistics.as_row()
    return statistics


def types_and_shapes(
    entries: Sequence[Entry], reported: Sequence[ReportedStatistics | None]
) -> tuple[list[str], list[tuple[int, ...]]]:
    """Return type and shape of each tensor: those of its file, or those that the dump reports."""
    dtypes: list[str] = []
    shapes: list[tuple[int, ...]] = []
    for entry, report in zip(entries, reported, strict=True):
        header = entry.header
        dtypes.append(header.element.name if header else canonical(report.dtype) if report else "")
        shapes.append(header.shape if header else report.shape if report else ())
    return dtypes, shapes


def keys_of(entries: Sequence[Entry]) -> list[TensorKey]:
    """Return the keys that these entries would have in a store."""
    seen: dict[TensorKey, int] = {}
    keys = []
    for entry in entries:
        name = entry.name
        key = TensorKey(name.net, name.graph, name.op_type, name.op_name, name.io, name.slot, name.occurrence)
        copy = seen[key] = seen.get(key, -1) + 1
        keys.append(key._replace(copy=copy))
    return keys
