"""Which tensors an answer about replicas is limited to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingest.questions.choosing import empty_choice_error
from ingest.reader.block_filter import BlockFilter
from ingest.reader.flow.operator_kinds import is_numbered
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import FilterFields
from workers.store.consolidated.blocks import TensorKey


def chosen_tensors(
    statistics: StepStatistics, fields: FilterFields, keys: Sequence[TensorKey]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the tensors that fulfil the conditions in any step of any rank, (tensor,).

    Without conditions, all but those of functions that were called in no module.
    Conditions on anything but names need the statistics of the steps, which are read once more.

    Args:
        statistics: reads the steps.
        fields: the conditions.
        keys: the tensors, in the order of the axis of `statistics`.

    Raises:
        UsageError: no tensor fulfils them, or they are not conditions.
    """
    choice = BlockFilter(fields, statistics.axis)
    if not choice.filter.names:
        # What only a number names is something else on ranks that log more.
        return np.array([not is_numbered(key.op_type, key.op_name) for key in keys], bool)
    if choice.filter.is_of_names:
        chosen = choice.of_names(len(keys))
    else:
        chosen = np.zeros(len(keys), bool)
        for block in statistics.blocks():
            mask = np.asarray(choice.mask(block).any(axis=0))[: len(keys)]
            chosen[: mask.size] |= mask
    if not chosen.any():
        raise empty_choice_error(choice.filter, keys)
    return chosen
