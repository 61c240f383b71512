"""msProbe's native dumps, of MindSpore with the graph engine (O2).

    rank_{rank}/{time}/step_{step}/
        {CANN name}.{input|output}.{slot}.{format}.{TYPE}.npy
        {CANN name}.{input|output}.{slot}.{format}.{TYPE}
        statistic.csv  mapping.csv  Opdebug....output.{slot}.json

`TYPE` is the original type of the tensor: BF16 is written as float32, and INT4 as int8. A file without `.npy`
holds only elements: of a type that npy lacks, or because the user asked for it. Then the shape is not
recorded, and the elements may be in the layout of the device although the format is that of the host; such a
file becomes one axis. A name that is too long is replaced by 32 random digits and its last extension.
(msProbe in the repository mstt, `ccsrc/core/AclDumpDataProcessor.cpp`.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from ingest.layouts.base import Description, Layout, Place, Problem, ReadSmall, System, TensorFile
from ingest.layouts.cann import STATISTIC_CSV, LongNames, parse_bin_name, read_reports
from ingest.layouts.pattern import parse
from workers.dump.formats.header import Container
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile

_NAME = re.compile(
    r"(?P<bin>.+)\.(?P<io>input|output)\.(?P<slot>\d{1,9})\.(?P<format>[^.]+)\.(?P<type>[A-Z][A-Z0-9_]*)(?P<npy>\.npy)?",
    re.DOTALL,
)
_LONG_NAME = re.compile(r"(?P<number>\d{32})(?:\.(?P<extension>\w+))?")
#: The types of files that hold only elements; other types are kept as bytes.
_TYPES = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "BF16": "bfloat16",
    "FLOAT8_E8M0": "float8_e8m0fnu",
    "FLOAT4_E2M1": "float4_e2m1fn",
    **{
        name: name.lower()
        for name in (
            *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FLOAT16"),
            *("COMPLEX32", "COMPLEX64", "COMPLEX128", "INT2", "INT4", "UINT1", "UINT2"),
            *("FLOAT8_E5M2", "FLOAT8_E4M3FN", "HIFLOAT8", "FLOAT6_E3M2", "FLOAT6_E2M3", "FLOAT4_E1M2"),
        )
    },
}
_BYTES = "|V1"


class MsProbeNative(Layout):
    """The tree of msProbe's native dumps."""

    name = "msprobe_native"
    patterns = (parse("rank_{rank}/{time}!/step_{step}"),)
    systems = (
        System(
            "msProbe, native (MindSpore O2)",
            "rank_1/20260101000000/step_8",
            "npy, raw elements, `statistic.csv`, `mapping.csv`, overflow records (JSON)",
        ),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one step; see `Layout.describe`."""
        names = LongNames(read)
        named: dict[str, TensorFile] = {}
        reported: list[ReportedStatistics] = []
        problems: list[Problem] = []
        unfinished = ""
        for file in files:
            file_name = file.path.rpartition("/")[2]
            if file_name == STATISTIC_CSV:
                reports = read_reports(file.path, read, TensorName())
                reported += reports.reported
                problems += reports.problems
                if reports.unfinished:
                    unfinished = unfinished or file.path
            elif (tensor := _named(file.path, file_name, names)) is not None:
                named[file.path] = tensor
        return Description(named, reported, problems, unfinished)


def parse_tensor_name(file_name: str) -> TensorFile | None:
    """Parse the name of a file; return None if it is not that of a tensor.

    >>> parse_tensor_name("Add.Add_1.2.7.1722484800151657.output.0.ND.FLOAT").dtype
    'float32'
    """
    match = _NAME.fullmatch(file_name)
    name = None if match is None else parse_bin_name(match["bin"])
    if match is None or name is None:
        return None
    name = name._replace(
        io=match["io"],
        slot=int(match["slot"]),
        format=match["format"],
        declared_dtype=match["type"],
    )
    if match["npy"]:
        return TensorFile(name, Container.NPY)
    return TensorFile(name, Container.RAW, dtype=_TYPES.get(match["type"], _BYTES))


def _named(path: str, file_name: str, names: LongNames) -> TensorFile | None:
    if (tensor := parse_tensor_name(file_name)) is not None:
        return tensor
    if (name := parse_bin_name(file_name)) is not None:
        return TensorFile(name, Container.DUMP_DATA)  # written by CANN itself
    if (match := _LONG_NAME.fullmatch(file_name)) is not None:
        return _long_named(path, match["number"], match["extension"] or "", names)
    # Npy files of anybody else, too.
    return TensorFile(None, Container.NPY) if file_name.endswith(".npy") else None


def _long_named(path: str, number: str, extension: str, names: LongNames) -> TensorFile | None:
    if extension in ("csv", "json"):
        return None
    real, settled = names.real_name(path)
    # Without its row, the number is its name. The extension of a file of elements is their type.
    if extension == "npy":
        numbered = TensorFile(TensorName(op_name=number), Container.NPY)
    else:
        name = TensorName(op_name=number, declared_dtype=extension)
        numbered = TensorFile(name, Container.RAW, dtype=_TYPES.get(extension, _BYTES))
    named = parse_tensor_name(real) if real else None
    best = named if named and named.container is numbered.container else numbered
    return replace(best, settled=settled)
