"""Names of the npy files of MindSpore."""

from __future__ import annotations

import re

from workers.dump.model import TensorName

_TENSOR_NAME = re.compile(
    r"(?P<op_type>[^.]+)\.(?P<op_name>.+)"
    r"\.(?P<task>\d{1,18})\.(?P<stream>\d{1,18})\.(?P<timestamp>\d{1,18})"
    r"\.(?P<io>input|output)\.(?P<slot>\d{1,9})\.(?P<format>[^.]+)(?:\.(?P<declared_dtype>[^.]+))?",
    re.DOTALL,
)


def parse_tensor_name(file_name: str, *, net: str = "", graph: str = "") -> TensorName | None:
    """Parse the name of an npy file, from the right, because old names of parameters contain dots.

    >>> parse_tensor_name("Parameter.fc.weight.0.0.1795219189197639.output.0.DefaultFormat.npy").op_name
    'fc.weight'
    """
    match = _TENSOR_NAME.fullmatch(file_name.removesuffix(".npy"))
    if match is None:
        return None
    op_type, op_name, task, stream, timestamp, io, slot, memory_format, declared_dtype = match.groups("")
    return TensorName(
        net=net,
        graph=graph,
        op_type=op_type,
        op_name=op_name,
        io=io,
        slot=int(slot),
        task=int(task),
        stream=int(stream),
        timestamp=int(timestamp),
        format=memory_format,
        declared_dtype=declared_dtype,
    )
