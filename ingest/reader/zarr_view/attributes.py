"""What is known of a tensor, an operator or a step, as the attributes of a Zarr node.

Plain JSON: text, whole numbers, finite numbers, and lists of them. Infinity is the text `Infinity`, and what
is not known is left out. Names that xarray would take for instructions how to decode (`dtype`, `units`, ...)
do not occur.
"""

from __future__ import annotations

import math
from typing import Any

from ingest.reader.rows import summary_row
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from ingest.reader.zarr_view.names import Operator

#: Of `Tensor.to_dict`: what says nothing of an array that is there, or is said by another attribute.
_LEFT_OUT = frozenset(["shape", "dtype", "is_dumped"])


def of_tensor(step: Step, row: int) -> dict[str, Any]:
    """Return the attributes of one tensor: `Tensor.to_dict`, with `logical_dtype` and `logical_shape`."""
    fields = Tensor(step, row).to_dict()
    known = {"logical_dtype": fields["dtype"], "logical_shape": fields["shape"]}
    known |= {name: value for name, value in fields.items() if name not in _LEFT_OUT}
    if step.device(row) is not None:
        known["stored_layout"] = "device" if step.is_in_device_layout(row) else "host"
    return _plain(known)


def of_operator(step: Step, operator: Operator) -> dict[str, Any]:
    """Return the attributes of an operator; `statistics_only` has those of its tensors that are no arrays."""
    tensor = Tensor(step, operator.row)
    fields = ("rank", "step", "net", "graph", "op_type", "op_name", "full_name")
    known = _plain({name: getattr(tensor, name) for name in fields})
    if operator.statistics_only:
        known["statistics_only"] = {
            name: of_tensor(step, row) for name, row in operator.statistics_only.items()
        }
    return known


def of_step(step: Step) -> dict[str, Any]:
    """Return the attributes of one step of one rank: its totals."""
    committed_at = step.commit.record.committed_at
    return _plain({**summary_row(step.commit.summary), "committed_at": committed_at})


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is not known: None, NaN, and the -1 of numbers that a dump does not tell."""
    known = {}
    for name, value in fields.items():
        if isinstance(value, float) and math.isinf(value):
            known[name] = "Infinity" if value > 0 else "-Infinity"
        elif value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        elif name not in {"timestamp", "slot"} or value != -1:
            known[name] = value
    return known
