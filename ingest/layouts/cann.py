"""The tree of CANN, into which TensorFlow, TorchAir, MindSpore, msProbe and OM inference dump.

    {time}/{device}/                             single operators
    {time}/{device}/{net}/{graph}/{iteration}/   models by name and number; no iteration if they give no step
    extra-info/data-dump/{device}/               the operator that failed

`time` is when the process started, so one step may be below several times. The directories before it give the
rank (TorchAir) or the user's step (MindSpore through ACL, msProbe level L2). Without the latter the iteration
counts, which is the user's step only if the user selected steps to dump.

Files are DumpData (`ingest.layouts.bin_names`), or CSV instead. MindSpore may write npy and `statistic.csv`
instead. Converters leave their output among them: an npy file made from a DumpData file next to it is kept as
a file, so that no tensor counts twice; without that file it is the tensor.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from ingest.layouts.base import Description, Layout, Place, Problem, ReadSmall, System, TensorFile
from ingest.layouts.bin_names import kind_and_name, known_id, parse_bin_name
from ingest.layouts.long_names import LongNames
from ingest.layouts.mindspore_names import parse_tensor_name
from ingest.layouts.pattern import parse
from ingest.layouts.reports import STATISTIC_CSV, Reports, read_reports
from workers.dump.formats.header import Container
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile

_RANK = r"worldsize{world_size:\d{1,9}}_global_rank{rank}/"
_PREFIXES = (
    "",
    _RANK,  # TorchAir
    "msprobe_ge_dump/",  # msProbe around TorchAir
    f"msprobe_ge_dump/{_RANK}",
    "{step}/",  # MindSpore through ACL
    "step{step}/",  # msProbe level L2
)
_MODEL = r"{time}/{device}!/{net}/{graph:\d{1,18}}"
_TREES = (
    "{time}/{device}!",
    _MODEL,
    f"{_MODEL}/{{iteration}}",
    "extra-info/data-dump!/{device}",
)

#: The extensions of files that are not DumpData, even if the rest of the name looks like it.
_EXTENSIONS = (".npy", ".csv", ".json", ".txt", ".pt", ".bin")
_NPY_NAME = re.compile(
    r"(?P<bin>.+)\.(?P<io>input|output)\.(?P<slot>\d{1,9})"
    r"(?:\.(?P<format>[^.]+))?(?:\.(?P<declared_dtype>[^.]+))?\.npy",
    re.DOTALL,
)
#: A shape: converters put it where MindSpore puts the format.
_SHAPE = re.compile(r"\d+(?:[x_]\d+)*")


class Cann(Layout):
    """The CANN tree."""

    name = "cann"
    patterns = tuple(parse(prefix + tree) for prefix in _PREFIXES for tree in _TREES)
    systems = (
        System(
            "TensorFlow on Ascend",
            "20260101000000/3/ge_default_1/11/8",
            "DumpData, CSV of statistics, overflow records, `mapping.csv`",
        ),
        System("MindSpore from 2.3, O2, `bin`", "20260101000000/3/Net/1/8", "DumpData, overflow records"),
        System(
            "MindSpore from 2.3, O2, `npy`",
            "20260101000000/3/Net/1/8",
            "npy, `statistic.csv`, overflow records (JSON)",
        ),
        System("MindSpore through ACL, O2", "8/20260101000000/3/Net/1/0", "DumpData"),
        System(
            "MindSpore through ACL, O0 and O1", "8/20260101000000/3", "DumpData of aclop and aclnn operators"
        ),
        System(
            "TorchAir, max-autotune",
            "worldsize4_global_rank1/20260101000000/3/graph_1/1/8",
            "DumpData, CSV of statistics, overflow records",
        ),
        System("TorchAir before torch_npu 7.1", "20260101000000/3/graph_1/1/8", "DumpData"),
        System(
            "msProbe around TorchAir",
            "msprobe_ge_dump/worldsize4_global_rank1/20260101000000/3/graph_1/1/8",
            "DumpData",
        ),
        System("msProbe level L2, kernels", "step8/20260101000000/3", "DumpData of aclnn operators"),
        System("OM inference", "20260101000000/3/om_name/1/8", "DumpData"),
        System("Models that give no step", "20260101000000/3/model/1", "DumpData"),
        System("Single operators", "20260101000000/3", "DumpData"),
        System("Exception dumps", "extra-info/data-dump/3", "DumpData of the operator that failed"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Describe the files of one place; see `Layout.describe`."""
        # What kernels print is text, whatever the names of its files.
        dumped = [file for file in files if "/printf/" not in file.path.removeprefix(place.path)]
        return describe_files(
            dumped, read, net=place.fields.get("net", ""), graph=place.fields.get("graph", "")
        )


def describe_files(
    files: Sequence[SourceFile], read: ReadSmall, *, net: str = "", graph: str = ""
) -> Description:
    """Describe the files that CANN, or MindSpore through CANN, wrote for one model."""
    place = TensorName(net=net, graph=graph)
    paths = {file.path for file in files}
    names = LongNames(read)
    named: dict[str, TensorFile] = {}
    reported: list[ReportedStatistics] = []
    problems: list[Problem] = []
    unfinished = ""
    for file in files:
        stem, extension = _split(file.path.rpartition("/")[2])
        if extension in ("", ".npy"):
            tensor = _named(file.path, stem, extension, names, place)
            if tensor is not None and not _is_copy(file.path, paths):
                named[file.path] = tensor
        elif extension == ".csv":
            reports = _read_csv(file.path, stem, names, place, read)
            reported += reports.reported
            problems += reports.problems
            if reports.unfinished:
                unfinished = unfinished or file.path
    return Description(named, tuple(reported), tuple(problems), unfinished)


def parse_npy_name(file_name: str, *, net: str = "", graph: str = "") -> TensorName | None:
    """Parse the name of an npy file of MindSpore or a converter; return None if it has another form.

    >>> parse_npy_name("Add.Add_2.4.7.1722556800123456.output.0.2x3.npy").slot
    0
    """
    match = _NPY_NAME.fullmatch(file_name)
    name = None if match is None else parse_bin_name(match["bin"], net=net, graph=graph)
    if match is None or name is None:
        # Old names of parameters contain dots.
        name = parse_tensor_name(file_name, net=net, graph=graph)
        if name is None:
            return None
        op_type, op_name = kind_and_name(name.op_type, name.op_name)
        return name._replace(
            op_type=op_type, op_name=op_name, task=known_id(name.task), stream=known_id(name.stream)
        )
    memory_format = match["format"] or ""
    return name._replace(
        io=match["io"],
        slot=int(match["slot"]),
        format="" if _SHAPE.fullmatch(memory_format) else memory_format,
        declared_dtype=match["declared_dtype"] or "",
    )


def _split(file_name: str) -> tuple[str, str]:
    extension = next((known for known in _EXTENSIONS if file_name.endswith(known)), "")
    return file_name.removesuffix(extension), extension


def _named(path: str, stem: str, extension: str, names: LongNames, place: TensorName) -> TensorFile | None:
    parse_name = parse_npy_name if extension else parse_bin_name
    container = Container.NPY if extension else Container.DUMP_DATA
    file_name = stem + extension
    name = parse_name(file_name, net=place.net, graph=place.graph)
    if name is not None:
        return TensorFile(name, container)
    real, settled = names.real_name(path) if _may_be_mapped(stem, extension) else ("", True)
    if real:
        name = parse_name(real, net=place.net, graph=place.graph)
    elif not stem.isdecimal():
        return None
    # Without a row, or with one that is not understood, the number is its name.
    return TensorFile(name or place._replace(op_name=stem), container, settled=settled)


def _may_be_mapped(stem: str, extension: str) -> bool:
    # The vendor's converter gives its output 32 hexadecimal digits for a name, followed by io and slot.
    return stem.isdecimal() or (extension != "" and re.match(r"[0-9a-f]{32}(\.|$)", stem) is not None)


def _is_copy(path: str, paths: Collection[str]) -> bool:
    """Return whether an npy file was made from a DumpData file that exists too."""
    directory, slash, file_name = path.rpartition("/")
    match = _NPY_NAME.fullmatch(file_name)
    return match is not None and f"{directory}{slash}{match['bin']}" in paths


def _read_csv(path: str, stem: str, names: LongNames, place: TensorName, read: ReadSmall) -> Reports:
    name, settled = _reported_name(path, stem, names, place)
    if name is None:
        return Reports()
    reports = read_reports(path, read, name)
    return reports if settled else replace(reports, unfinished=True)


def _reported_name(
    path: str, stem: str, names: LongNames, place: TensorName
) -> tuple[TensorName | None, bool]:
    """Return the tensor whose statistics a CSV file holds, or None, and whether that is final."""
    if f"{stem}.csv" == STATISTIC_CSV:
        return place, True
    if not stem.isdecimal():
        return parse_bin_name(stem, net=place.net, graph=place.graph), True
    real, settled = names.real_name(path)
    if not real:
        real, settled = names.real_name(path.removesuffix(".csv"))
    name = parse_bin_name(real.removesuffix(".csv"), net=place.net, graph=place.graph)
    return name or place._replace(op_name=stem), settled
