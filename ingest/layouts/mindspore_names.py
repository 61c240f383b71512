"""Names of the npy files of MindSpore."""

from __future__ import annotations

import re

from workers.dump.model import TensorName

#: Possessive: what ends at a dot cannot be shorter, and to try it would take as long again.
_TENSOR_NAME = re.compile(
    r"(?P<op_type>[^.]++)\.(?P<op_name>.+)"
    r"\.(?P<task>\d{1,18}+)\.(?P<stream>\d{1,18}+)\.(?P<timestamp>\d{1,18}+)"
    r"\.(?P<io>input|output)\.(?P<slot>\d{1,9}+)\.(?P<format>[^.]++)(?:\.(?P<declared_dtype>[^.]++))?",
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
    numbers = int(slot), 0, int(task), int(stream), int(timestamp)
    # By position: by name, it takes twice as long.
    return TensorName(net, graph, op_type, op_name, io, *numbers, memory_format, declared_dtype)
