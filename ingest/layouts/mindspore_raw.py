r"""Synchronous dumps of MindSpore 1.1 and 1.2, files of elements without a header.

    {net}/device_{device}/iteration_{step}/   GPU and Ascend
    {net}/iteration_{step}/                   CPU
        {op}_{io}_{slot}_shape_{d0}_{d1}..._{type}_{format}.bin

`op` is the full name with `--` for `/`. It contains dots and underscores, so names are parsed from the right.
The full name is restored. A parameter has no scope; its type is `Parameter`, as in all later releases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingest.layouts.base import Description, Layout, Place, ReadSmall, System, TensorFile
from ingest.layouts.pattern import parse
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

_RAW_NAME = re.compile(
    r"(?P<op>.+)_(?P<io>input|output)_(?P<slot>\d{1,9})_shape_(?P<shape>(?:\d{1,18}_)*)"
    r"(?:kNumberType)?(?P<type>[A-Za-z]+\d*)_(?P<format>[A-Za-z0-9_]+)\.bin",
    re.DOTALL,
)
_OP_TYPE = re.compile(r"(.+)-op\d+", re.DOTALL)
#: By type in MindSpore's mstype namespace (type_id.h); those without a number have 32 bits.
_TYPES = {
    "bool": "bool",
    "float": "float32",
    "int": "int32",
    "uint": "uint32",
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bfloat16",
    "complex64": "complex64",
    "complex128": "complex128",
}


class MindSporeRaw(Layout):
    """The tree of MindSpore's first synchronous dumps."""

    name = "mindspore_raw"
    patterns = (
        parse("{net}/device_{device}/iteration_{step}!"),
        parse(r"{net:(?!device_\d+$).+}/iteration_{step}!"),
    )
    systems = (
        System("MindSpore 1.1 and 1.2, synchronous", "Net/device_3/iteration_8", "raw elements"),
        System("MindSpore 1.1 and 1.2, synchronous, CPU", "Net/iteration_8", "raw elements"),
    )
    evidence = re.compile(r".+_shape_.*\.bin", re.DOTALL)

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
        net = place.fields.get("net", "")
        named = {file.path: parse_raw_name(file.path.rpartition("/")[2], net=net) for file in files}
        return Description({path: tensor for path, tensor in named.items() if tensor is not None})


def parse_raw_name(file_name: str, *, net: str = "") -> TensorFile | None:
    """Parse the name of a raw file; return None if it has another form.

    Elements of an unknown type are bytes on one axis, with the type as `declared_dtype`.

    >>> parse_raw_name("moments.fc3.bias_output_0_shape_10_Float32_DefaultFormat.bin").shape
    (10,)
    """
    match = _RAW_NAME.fullmatch(file_name)
    if match is None:
        return None
    op_name = match["op"].replace("--", "/")
    name = TensorName(
        net=net,
        op_type=_op_type(op_name),
        op_name=op_name,
        io=match["io"],
        slot=int(match["slot"]),
        format=match["format"],
        declared_dtype=match["type"],
    )
    dtype = _TYPES.get(match["type"].lower())
    if dtype is None:
        return TensorFile(name, Container.RAW, "uint8")
    shape = tuple(int(length) for length in match["shape"].split("_")[:-1])
    return TensorFile(name, Container.RAW, dtype, shape)


def _op_type(op_name: str) -> str:
    if match := _OP_TYPE.fullmatch(op_name.rpartition("/")[2]):
        return match[1]
    return "" if "/" in op_name else "Parameter"
