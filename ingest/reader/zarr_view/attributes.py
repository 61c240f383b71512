"""What is known about a tensor, an operator or a step, as the attributes of a Zarr node.

The values are plain JSON: text, whole numbers, finite numbers, and lists of them. Infinity is the text
`Infinity`. What is not known is left out. Names that xarray would use to decode an array (`dtype`, `units`,
...) do not occur.
"""

from __future__ import annotations

import math
from typing import Any

from ingest.reader.rows import summary_row
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from ingest.reader.zarr_view.node_names import OperatorGroup

#: Fields of `Tensor.to_dict` that the array has itself, or that other attributes replace.
_LEFT_OUT = frozenset(["shape", "dtype", "is_dumped"])


def of_tensor(step: Step, row: int) -> dict[str, Any]:
    """Return the attributes of one tensor: `Tensor.to_dict`, with `logical_dtype` and `logical_shape`."""
    fields = Tensor(step, row).to_dict()
    attributes = {"logical_dtype": fields["dtype"], "logical_shape": fields["shape"]}
    attributes |= {name: value for name, value in fields.items() if name not in _LEFT_OUT}
    if step.device(row) is not None:
        attributes["stored_layout"] = "device" if step.is_in_device_layout(row) else "host"
    return _plain(attributes)


def of_operator(step: Step, operator: OperatorGroup) -> dict[str, Any]:
    """Return the attributes of an operator.

    `statistics_only` has the attributes of those of its tensors that are not arrays, by name.
    """
    tensor = Tensor(step, operator.row)
    names = ("rank", "step", "net", "graph", "op_type", "op_name", "full_name")
    attributes = _plain({name: getattr(tensor, name) for name in names})
    if operator.statistics_only:
        attributes["statistics_only"] = {
            name: of_tensor(step, row) for name, row in operator.statistics_only.items()
        }
    return attributes


def of_step(step: Step) -> dict[str, Any]:
    """Return the attributes of one step of one rank: its totals, and when it was committed."""
    committed_at = step.commit.record.committed_at
    return _plain({**summary_row(step.commit.summary), "committed_at": committed_at})


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is not known: None, NaN, and -1 for the numbers that a dump may not have."""
    known = {}
    for name, value in fields.items():
        if isinstance(value, float) and math.isinf(value):
            known[name] = "Infinity" if value > 0 else "-Infinity"
        elif value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        elif name not in {"timestamp", "slot"} or value != -1:
            known[name] = value
    return known
