"""The names that msProbe gives to a tensor, in the names of files and in its JSON files.

A tensor belongs to a call. The key of the call becomes its `op_name`, so that `stack.json` and
`construct.json`, which have the same keys, can be joined to it:

    Functional.conv2d.0.forward            {type}.{api}.{number of the call}.{direction}
    Primitive.conv2d.Conv2D.0.forward      the same, with the name and the class of a primitive
    Module.layers.1.Linear.forward.0       {Module|Cell}.{path}.{class}.{direction}.{number of the call}
    Module.fc.Linear.parameters_grad.0     gradients of the parameters of a module
    activations.0.debug                    what a user saved by `debugger.save`
    Aten.add.Tensor.0                      calls in a captured graph

The file name continues with the tensor of the call, as `.input.1.0` or `.kwargs.weight`: a role, and the way
through lists and dictionaries. The last index becomes the `slot`, and everything before it the `io`, here
`input.1`. So the `io` begins with `input`, `output`, `kwargs`, `parameters`, `parameters_grad` or `debug`,
and no two tensors of a call have the same `io` and `slot`.

(msProbe 26.2: `core/dump/data_dump/data_processor/base.py`, `pytorch/aclgraph_dumper.py`,
`mindspore/dump/dump_processor/cell_dump_process.py`.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from workers.dump.model import TensorName

_ROLE = r"(?P<role>input|output|kwargs|input_kwargs|parameters)(?:\.(?P<index>.+))?"
_NAMES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        rf"(?P<key>.+\.(?:forward|backward)\.\d{{1,18}})\.{_ROLE}",
        rf"(?P<key>.+\.\d{{1,18}}\.(?:forward|backward))\.{_ROLE}",
        r"(?P<key>.+\.(?P<role>parameters_grad)(?:\.\d{1,18})?)\.(?P<index>.+)",
        r"(?P<key>.+\.\d{1,18}\.(?P<role>debug))(?:\.(?P<index>.+))?",
        rf"(?P<key>.+\.\d{{1,18}})\.{_ROLE}",
    )
)
#: The end of a name for which msProbe used MindSpore's TensorDump: `{index}_{dtype}_{running number}`.
_TENSOR_DUMP_INDEX = re.compile(r"(?P<index>\d{1,9})_(?P<dtype>[A-Za-z]\w*)_(?P<number>\d{1,18})")
_INDEX = re.compile(r"\d{1,9}")
#: Parts of the key of a call that do not belong to its type.
_NOT_THE_TYPE = frozenset(["forward", "backward", "parameters_grad"])
#: Kinds whose key has the path of an instance, and its class at the end.
_INSTANCES = frozenset(["Module", "Cell", "Primitive"])


def parse_tensor_name(stem: str, *, graph: str = "") -> TensorName | None:
    """Parse the name of a tensor file, without its extension; return None if it is not msProbe's.

    >>> parse_tensor_name("Jit.Momentum.0.forward.input.1.2").io
    'input.1'
    """
    match = next((match for pattern in _NAMES if (match := pattern.fullmatch(stem))), None)
    if match is None:
        return None
    index = match["index"].split(".") if match["index"] else []
    dtype, number = "", "-1"
    if index and (tensor_dump := _TENSOR_DUMP_INDEX.fullmatch(index[-1])):
        index[-1], dtype, number = tensor_dump["index"], tensor_dump["dtype"], tensor_dump["number"]
    return tensor_name(
        match["key"], match["role"], index, graph=graph, sequence=int(number), declared_dtype=dtype
    )


def tensor_name(
    key: str,
    role: str,
    index: Sequence[str],
    *,
    graph: str = "",
    sequence: int = -1,
    declared_dtype: str = "",
) -> TensorName:
    """Return the name of one tensor of a call.

    Args:
        key: the key of the call.
        role: `input`, `output`, ...
        index: the way to the tensor through lists and dictionaries.
        graph: `graph` or `pynative`, if a dump has both.
        sequence: its place in the order of the dump.
        declared_dtype: its type, as the dump spells it.
    """
    way = ["kwargs" if role == "input_kwargs" else role, *index]
    slot = int(way.pop()) if index and _INDEX.fullmatch(index[-1]) else -1
    return TensorName(
        graph=graph,
        op_type=_op_type(key),
        op_name=key,
        io=".".join(way),
        slot=slot,
        declared_dtype=declared_dtype,
        sequence=sequence,
    )


def _op_type(key: str) -> str:
    """Return the type of a call: that of the API and its name; for an instance, its kind and its class."""
    parts = key.split(".")
    if parts[-1] == "debug":
        return "debug"
    while len(parts) > 1 and (parts[-1] in _NOT_THE_TYPE or parts[-1].isdecimal()):
        parts.pop()
    if parts[0] in _INSTANCES and len(parts) > 2:
        return f"{parts[0]}.{parts[-1]}"
    return ".".join(parts)
