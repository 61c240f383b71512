r"""MindSpore dumps, versions 1.3 to 2.10, and msProbe on top of them.

    rank_{r}/{net}/{graph}/{iteration}/
        {op_type}.{op_name}.{task}.{stream}.{time}.{io}.{slot}.{format}[.{dtype}].npy
        {op_type}.{op_name}.{task}.{stream}.{time}                     (asynchronous, up to 2.2)
    rank_{r}/{net}/{graph}/constants/...
    rank_{r}/{graphs,execution_order,.dump_metadata}/...

All graphs of one rank and iteration make one step. Files of a rank outside of its iterations are its run
files.

Asynchronous dumps of MindSpore 1.1 and 1.2 on Ascend.

    {device}/{net}_graph_{root_graph}/{graph}/{iteration}/          by the documentation
    device_{device}/{net}_graph_{root_graph}/{graph}/{iteration}/   by data_dumper.cc

Later releases write the same files into the tree of `ingest.layouts.mindspore`.

Synchronous dumps of MindSpore 1.1 and 1.2, files of elements without a header.

    {net}/device_{device}/iteration_{step}/   GPU and Ascend
    {net}/iteration_{step}/                   CPU
        {op}_{io}_{slot}_shape_{d0}_{d1}..._{type}_{format}.bin

`op` is the full name with `--` for `/`. It contains dots and underscores, so names are parsed from the right.
The full name is restored. A parameter has no scope; its type is `Parameter`, as in all later releases.

The steps that a dump configuration of MindSpore or CANN asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from ingest.layouts.base import Description, Layout, Place, ReadSmall, System, TensorFile, parse
from ingest.layouts.cann import LongNames, describe_files, parse_tensor_name
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

#: The directory of a net. msProbe's native dumps have a time there (14 digits).
_NET = r"{net:(?!(?:_|\.dump_metadata|graphs|execution_order|debug_files|[0-9]{14})$).+}"


def _describe_mindspore(place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
    net, graph = place.fields.get("net", ""), place.fields.get("graph", "")
    npy = [file.path for file in files if file.path.endswith(".npy")]
    others = [file for file in files if not file.path.endswith(".npy")]
    described = describe_files(place, others, read)
    names = LongNames(read)
    named = {path: _named(path, net, graph, names) for path in npy}
    return replace(described, named={**described.named, **named})


def _mindspore_steps(configuration: bytes) -> frozenset[int]:
    try:
        settings = json.loads(configuration)["common_dump_settings"]
        return parse_iterations(settings["iteration"]) or frozenset()
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset()  # optional, and no version guarantees it


#: The trees of MindSpore's own dumps.
MINDSPORE = Layout(
    name="mindspore",
    patterns=(
        parse(f"rank_{{rank}}!/{_NET}/{{graph}}/{{step}}"),
        parse(f"rank_{{rank}}!/{_NET}/{{graph}}/constants"),
        parse("rank_{rank}!/debug_files/{step}"),
    ),
    systems=(
        System(
            "MindSpore 1.3 to 2.10, synchronous (CPU, GPU, Ascend O0 and O1)",
            "rank_1/Net/0/8",
            "npy, `statistic.csv`, `mapping.csv`, overflow records, kernel arguments",
        ),
        System(
            "MindSpore 1.3 to 2.2, asynchronous, `npy`",
            "rank_1/Net/0/8",
            "npy, `statistic.csv`, `mapping.csv`",
        ),
        System("MindSpore 1.3 to 2.2, asynchronous, `bin`", "rank_1/Net/0/8", "DumpData, `mapping.csv`"),
        System("MindSpore 2.0 to 2.2, overflow detection", "rank_1/debug_files/8", "overflow records"),
        System("MindSpore, constants of a graph", "rank_1/Net/0/constants", "npy"),
        System(
            "msProbe level L2 of MindSpore in static graphs",
            "rank_1/Net/0/8",
            "as MindSpore, which writes it",
        ),
    ),
    # 1.3 and 1.4 write here first.
    transient=(parse("rank_{rank}/_/{graph}/{step}"),),
    near_miss=re.compile(r"rank_.*|rank[-+]?\d+", re.DOTALL),
    configuration="/.dump_metadata/data_dump.json",
    of_place=_describe_mindspore,
    expected_steps=_mindspore_steps,
)


def _named(path: str, net: str, graph: str, names: LongNames) -> TensorFile:
    file_name = path.rpartition("/")[2]
    name = parse_tensor_name(file_name, net=net, graph=graph)
    if name is not None:
        return TensorFile(name)
    stem = file_name.removesuffix(".npy")
    if not stem.isdecimal():
        return TensorFile(None)
    # A name that is too long is replaced by a number; without its row, the number is its name.
    real, settled = names.real_name(path)
    if real:
        return TensorFile(parse_tensor_name(real, net=net, graph=graph), settled=settled)
    return TensorFile(TensorName(net=net, graph=graph, op_name=stem), settled=False)


_MODEL = r"{net}_graph_{root_graph:\d{1,18}}!/{graph:\d{1,18}}/{iteration}"


#: The tree of MindSpore's first asynchronous dumps.
MINDSPORE_ASYNC = Layout(
    name="mindspore_async",
    patterns=(parse(f"{{device}}/{_MODEL}"), parse(f"device_{{device}}/{_MODEL}")),
    systems=(
        System("MindSpore 1.1 and 1.2, asynchronous, as documented", "3/Net_graph_1/1/8", "DumpData"),
        System("MindSpore 1.1 and 1.2, asynchronous", "device_3/Net_graph_1/1/8", "DumpData"),
    ),
    of_place=describe_files,
)


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


#: The tree of MindSpore's first synchronous dumps.
MINDSPORE_RAW = Layout(
    name="mindspore_raw",
    patterns=(
        parse("{net}/device_{device}/iteration_{step}!"),
        parse(r"{net:(?!device_\d+$).+}/iteration_{step}!"),
    ),
    systems=(
        System("MindSpore 1.1 and 1.2, synchronous", "Net/device_3/iteration_8", "raw elements"),
        System("MindSpore 1.1 and 1.2, synchronous, CPU", "Net/iteration_8", "raw elements"),
    ),
    evidence=re.compile(r".+_shape_.*\.bin", re.DOTALL),
    of_path=lambda place, path: parse_raw_name(path.rpartition("/")[2], net=place.fields.get("net", "")),
)


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


#: One step, or the first and the last of several. Steps have at most 18 digits, here as in paths.
_GROUP = re.compile(r"\s*(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18}))?\s*")
#: Those that are listed twice count twice: a configuration of some kilobytes could list a million of them
#: again and again.
_MAX_STEPS = 1_000_000


def parse_iterations(text: str) -> frozenset[int] | None:
    """Return the steps that the `iteration` of a dump configuration lists, as in `0|5-8|100-120`.

    None for `all`, for nonsense, and for more than a million steps.
    """
    steps: set[int] = set()
    left = _MAX_STEPS
    for group in str(text).split("|"):
        match = _GROUP.fullmatch(group)
        if match is None:
            return None
        low, high = int(match["first"]), int(match["last"] or match["first"])
        left -= high - low + 1
        if high < low or left < 0:
            return None
        steps.update(range(low, high + 1))
    return frozenset(steps)
