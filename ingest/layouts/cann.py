r"""The tree of CANN, into which TensorFlow, TorchAir, MindSpore, msProbe and OM inference dump.

    {time}/{device}/                             single operators
    {time}/{device}/{net}/{graph}/{iteration}/   models by name and number; no iteration if they give no step
    extra-info/data-dump/{device}/               the operator that failed

`time` is when the process started, so one step may be below several times. The directories before it give the
rank (TorchAir) or the user's step (MindSpore through ACL, msProbe level L2). Without the latter the iteration
counts, which is the user's step only if the user selected steps to dump.

Files are DumpData (`ingest.layouts.cann`), or CSV instead. MindSpore may write npy and `statistic.csv`
instead. Converters leave their output among them: an npy file made from a DumpData file next to it is kept as
a file, so that no tensor counts twice; without that file it is the tensor.

Names of CANN's dump files: `{op_type}.{op_name}.{task}.{stream}.{timestamp}`, without extension.

The CANN runtime builds them (dump_task.cpp), and replaces `.`, `/`, `\` and space in both names by `_`, so
that a dot always separates two fields. Other forms:

- without the stream: releases of 2021, and exception dumps, whose time may be `YYYYMMDDHHMMSSmmm`;
- `exception_info.{stream}.{task}.{time}`: an exception whose operator is not known;
- `....{task_type}.{context}.{thread}[.{device}]` at the end: FFTS+, where each thread of an operator dumps a
  slice. The thread becomes part of the operator's name, `{op_name}.thread_{thread}`, after a dot that no
  other name contains: so two slices are never taken for two dumps of one tensor.
- `{api}_{sequence}_L2.{api}...` and `{api}_{sequence}_L0.{kernel}...`: single operators (op_dfx), where the
  call comes first and its kind second. Here they are exchanged, so that `op_type` is always the kind.

Statistics that a dump system computed, as the CSV files of a place have them.

Files whose name was too long: it was replaced by a number, and `mapping.csv` next to them has it.

TorchAir's dumps of FX graphs and of captured graphs are:

    [msprobe_fx_dump/]worldsize{n}_global_rank{rank}/{graph}/{step}/
        {node}-{target}.{INPUT|OUTPUT}.{i}[.{j}].{YYYYMMDDHHMMSSffffff}.npy
    [msprobe_fx_dump/]data_dump/{step + 1}/{graph}/      older releases, without a rank
    worldsize{n}_global_rank{rank}/
        {node}_device_{device}_{count}.pt                aclgraph and npugraph_ex

`target` is what the node calls, such as `aten.add.Tensor`. It contains dots, and for a Python function blanks
and brackets, so names are parsed from the right. `j` is the place in an argument that is a list; then it
becomes the slot, and `i` a part of the io: `input.0`. The time is UTC, taken before the call, and the same
for all files of one call. A graph without a name is called `gm_{time}_dump`. A directory named by a time of
14 digits in its place is a dump of the graph engine (`ingest.layouts.cann`).

Arguments that are not tensors are saved as well: numbers as arrays without axes, `None` as a pickled object,
which is not read. (TorchAir, `npu_fx_compiler` and `fx_dumper`.)

Reference dumps of other frameworks, as the vendor's comparison tool takes them, are:

    {op_name}.{output_index}.{timestamp}.npy      outputs of Caffe, TensorFlow, ONNX and others
    {op_name}.{output_index}.{timestamp}.pb       the same as DumpData, of a Caffe model before quantisation
    {op_name}.{output_index}.{timestamp}.quant    the same after quantisation

Characters other than letters, digits, `-` and `_` in names of operators are replaced; the timestamp has 16
digits. (CANN, accuracy comparison: "Dump File Naming Conventions".) The files of one run are in one
directory, which may be called `step8`.

Nothing tells the type of an operator: it is `Reference`. What is quantised has the graph `quantized`, so that
both halves of a pair have the same name otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from ingest.layouts.base import Description, Layout, Place, Problem, ReadSmall, System, TensorFile, parse
from workers.dump.formats import statistic_csv
from workers.dump.formats.header import Container
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile

MAPPING = "mapping.csv"


class LongNames:
    """The real names of numbered files. Reads the `mapping.csv` of each directory once, on first use."""

    def __init__(self, read: ReadSmall) -> None:
        self._read = read
        self._mappings: dict[str, tuple[Mapping[str, str], str]] = {}

    def real_name(self, path: str) -> tuple[str, bool]:
        """Return the real name of a file, and whether it is final.

        ("", False) if it has no row: its writer adds the row after the file.
        """
        directory, _, file_name = path.rpartition("/")
        if directory not in self._mappings:
            self._mappings[directory] = self._mapping(f"{directory}/{MAPPING}" if directory else MAPPING)
        mapping, last = self._mappings[directory]
        return mapping.get(file_name, ""), file_name in mapping and file_name != last

    def _mapping(self, path: str) -> tuple[Mapping[str, str], str]:
        """Return the rows, and the file name of a row that may continue, because no line feed ends it."""
        mapping = {}
        last = ""
        # Without quotes: it is written by plain concatenation. Names contain commas, but the number does not.
        for line in os.fsdecode(self._read(path) or b"").split("\n"):
            number, comma, real = line.removesuffix("\r").partition(",")
            last = number if comma else ""
            if comma:
                mapping[number] = real
        return mapping, last


#: The file of MindSpore and of msProbe native.
STATISTIC_CSV = "statistic.csv"
_CUT_HINT = "Its writer was still at work, or died."


def read_reports(path: str, read: ReadSmall, name: TensorName) -> Description:
    """Return the statistics in one file.

    Args:
        path: the file, one of those that `workers.dump.formats.statistic_csv` describes.
        read: reads it.
        name: net and graph of its tensors. For CANN's files, which have one operator each, also its name.
    """
    data = read(path)
    if data is None:
        return Description(problems=(Problem(path, "has statistics, but cannot be read"),))
    table = statistic_csv.parse(data)
    problems = [Problem(path, problem) for problem in table.problems]
    if table.unfinished:
        # Seen only if the step is ingested nevertheless: while the file may still grow, the step waits.
        problems.append(Problem(path, "ends within a line, which is left out", _CUT_HINT))
    reported = [_reported(path, row, name) for row in table.rows]
    return Description(reported=reported, problems=problems, unfinished=path if table.unfinished else "")


def _reported(path: str, row: statistic_csv.StatisticRow, name: TensorName) -> ReportedStatistics:
    name = name._replace(io=row.io, slot=row.slot, format=row.format)
    if row.op_type or row.op_name:
        op_type, op_name = kind_and_name(row.op_type, row.op_name)
        name = name._replace(
            op_type=op_type,
            op_name=op_name,
            task=row.task,
            stream=row.stream,
            timestamp=row.timestamp,
        )
    return ReportedStatistics(
        path,
        name,
        row.dtype,
        row.shape,
        statistic_csv.statistics(row),
        checksum=statistic_csv.checksum(row),
        digits=statistic_csv.DIGITS,
    )


#: The task and the stream if they are not known.
_UNKNOWN_ID = 65535
#: Digits of a time that is long enough to show that the numbers after it are those of FFTS+.
_SHORTEST_TIME = 13
_BIN_NAME = re.compile(r"([^.]+)\.([^.]+)((?:\.\d{1,18}){2,7})", re.DOTALL)
_CALL = re.compile(r".+_\d+_L[0-9]|L2DfxAbscent_\d+", re.DOTALL)


def parse_bin_name(file_name: str, *, net: str = "", graph: str = "") -> TensorName | None:
    """Parse the name of a DumpData file; return None if it has another form.

    Io and slot are not in the name, but in the file.

    >>> parse_bin_name("aclnnMul_12_L2.aclnnMul.130.2.1722484800151657").op_type
    'aclnnMul'
    """
    match = _BIN_NAME.fullmatch(file_name)
    if match is None:
        return None
    first, second, rest = match.groups()
    numbers = rest[1:].split(".")
    if _is_unknown_operator(first, second, numbers):
        numbers, second = [numbers[0], second, numbers[1]], ""
    at = _time_at(numbers)
    of_thread = numbers[at + 1 :]
    if of_thread and (len(of_thread) not in (3, 4) or len(numbers[at]) < _SHORTEST_TIME):
        return None
    op_type, op_name = kind_and_name(first, second)
    if of_thread:
        op_name += f".thread_{int(of_thread[2])}"
    return TensorName(
        net=net,
        graph=graph,
        op_type=op_type,
        op_name=op_name,
        task=known_id(int(numbers[0])),
        stream=known_id(int(numbers[1])) if at == 2 else -1,
        timestamp=_timestamp(numbers[at]),
    )


def _is_unknown_operator(first: str, second: str, numbers: Sequence[str]) -> bool:
    return first == "exception_info" and len(numbers) == 2 and second.isdecimal() and len(second) <= 18


def kind_and_name(first: str, second: str) -> tuple[str, str]:
    """Return the type and the name of an operator, from the first two fields of the name of its file."""
    if _CALL.fullmatch(first) is None:
        return first, second
    # The second version of the runtime puts the level before the kind: `_L0Add`.
    return second.removeprefix("_L0") or second, first


def known_id(number: int) -> int:
    """Return the number of a task or a stream; -1 for the number that means unknown."""
    return -1 if number == _UNKNOWN_ID else number


def _time_at(numbers: Sequence[str]) -> int:
    """Return which number is the time: the second, or the third if the stream comes before it."""
    if len(numbers) <= 3:
        return len(numbers) - 1
    return 2 if len(numbers[2]) >= len(numbers[1]) else 1


def _timestamp(text: str) -> int:
    """Return microseconds since the epoch; for a date, which is local time, as if it were UTC."""
    return _microseconds(text, 1000, int(text)) if len(text) == 17 else int(text)


def _microseconds(date: str, unit_us: int, otherwise: int) -> int:
    """Return microseconds since the epoch; `otherwise` for an invalid date.

    Args:
        date: with a fraction of a second behind it.
        unit_us: the unit of the fraction, in microseconds.
        otherwise: returned if there is no such date.
    """
    try:
        second = datetime.strptime(date[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return otherwise
    return int(second.timestamp()) * 1_000_000 + int(date[14:]) * unit_us


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


def _describe_cann(place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
    # What kernels print is text, whatever the names of its files.
    dumped = [file for file in files if "/printf/" not in file.path.removeprefix(place.path)]
    return describe_files(place, dumped, read)


#: The CANN tree.
CANN = Layout(
    name="cann",
    patterns=tuple(parse(prefix + tree) for prefix in _PREFIXES for tree in _TREES),
    systems=(
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
    ),
    of_place=_describe_cann,
)


def describe_files(of: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
    """Describe the files that CANN, or MindSpore through CANN, wrote for one model."""
    place = TensorName(net=of.fields.get("net", ""), graph=of.fields.get("graph", ""))
    paths = {file.path for file in files}
    names = LongNames(read)
    named: dict[str, TensorFile] = {}
    reports: list[Description] = []
    for file in files:
        stem, extension = _split(file.path.rpartition("/")[2])
        if extension in ("", ".npy"):
            tensor = _named(file.path, stem, extension, names, place)
            if tensor is not None and not _is_copy(file.path, paths):
                named[file.path] = tensor
        elif extension == ".csv":
            reports.append(_read_csv(file.path, stem, names, place, read))
    return Description.joined([Description(named), *reports])


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


def _read_csv(path: str, stem: str, names: LongNames, place: TensorName, read: ReadSmall) -> Description:
    name, settled = _reported_name(path, stem, names, place)
    if name is None:
        return Description()
    reports = read_reports(path, read, name)
    return reports if settled else replace(reports, unfinished=path)


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


_FX_RANK = r"worldsize{world_size:\d{1,9}}_global_rank{rank}"
_GRAPH = r"{graph:(?!\d{14}\Z).+}"

_CALL_NAME = re.compile(
    r"(?P<node>[^-]+)-(?P<target>.+)\.(?P<io>INPUT|OUTPUT)\.(?P<i>\d{1,9})(?:\.(?P<j>\d{1,9}))?\.(?P<time>\d{20})",
    re.DOTALL,
)
_NODE_NAME = re.compile(r"(?P<node>.+)_device_(?P<device>\d{1,9})_(?P<count>\d{1,18})", re.DOTALL)
_NUMBERED = re.compile(r"_\d+\Z")


def _torchair_file(place: Place, path: str) -> TensorFile | None:
    directory, _, file_name = path.rpartition("/")
    graph = place.fields.get("graph", "")
    if graph and file_name.endswith(".npy"):
        return TensorFile(parse_call_name(file_name, graph=graph), Container.NPY, any_argument=True)
    if not graph and directory == place.path and file_name.endswith(".pt"):
        return TensorFile(parse_node_name(file_name), Container.PT)
    return None


#: The tree of TorchAir's dumps, except for those of the graph engine.
TORCHAIR = Layout(
    name="torchair",
    patterns=(
        *(
            parse(f"{prefix}{tree}")
            for prefix in ("", "msprobe_fx_dump/")
            for tree in (
                f"{_FX_RANK}!/{_GRAPH}/{{step}}",
                r"data_dump/{previous_step}/{graph:gm_\d{8,20}_dump}!",
            )
        ),
        parse(f"{_FX_RANK}!"),
    ),
    systems=(
        System("TorchAir, eager", "worldsize4_global_rank1/graph_1/8", "npy"),
        System(
            "TorchAir, eager, older",
            "data_dump/9/gm_20260101000000_dump",
            "npy; the directory is the step + 1",
        ),
        System("msProbe around TorchAir, eager", "msprobe_fx_dump/worldsize4_global_rank1/graph_1/8", "npy"),
        System("TorchAir, aclgraph and npugraph_ex", "worldsize4_global_rank1", "pt, of no step"),
    ),
    of_path=_torchair_file,
)


def parse_call_name(file_name: str, *, graph: str = "") -> TensorName | None:
    """Parse the name of an npy file; return None if it is not TorchAir's.

    >>> parse_call_name("add_1-aten.add.Tensor.INPUT.0.20240801120000123456.npy").op_type
    'aten.add.Tensor'
    """
    match = _CALL_NAME.fullmatch(file_name.removesuffix(".npy"))
    if match is None:
        return None
    io, i, j = match["io"].lower(), int(match["i"]), match["j"]
    return TensorName(
        graph=graph,
        op_type=match["target"],
        op_name=match["node"],
        io=io if j is None else f"{io}.{i}",
        slot=i if j is None else int(j),
        timestamp=_microseconds(match["time"], 1, -1),
    )


def parse_node_name(file_name: str) -> TensorName | None:
    """Parse the name of a `.pt` file; return None if it is not TorchAir's.

    >>> parse_node_name("mm_1_device_0_12.pt").op_name
    'mm_1'
    """
    match = _NODE_NAME.fullmatch(file_name.removesuffix(".pt"))
    if match is None:
        return None
    # FX numbers the nodes that call the same target.
    op_type = _NUMBERED.sub("", match["node"]) or match["node"]
    return TensorName(op_type=op_type, op_name=match["node"], io="output", sequence=int(match["count"]))


#: The type of all operators of a reference dump.
REFERENCE = "Reference"
QUANTIZED = "quantized"
_FILE = r"{tensor:[A-Za-z0-9_-]+\.\d{1,9}\.\d{16}}.{kind:npy|pb|quant}"
_NAME = re.compile(r"(?P<op>[A-Za-z0-9_-]+)\.(?P<slot>\d{1,9})\.(?P<time>\d{16})\.(?P<kind>npy|pb|quant)")


#: The files that a reference of an Ascend dump consists of: of one process.
REFERENCE_DUMP = Layout(
    name="reference",
    file_patterns=tuple(
        parse(f"{above}{_FILE}", of_files=True)
        for above in ("", r"{before:(?:.*[._-])?}step{sep:[._-]?}{step}/")
    ),
    implied={"step": "0"},
    systems=(
        System(
            "references of other frameworks, in the vendor's comparison format",
            "conv1.0.1610000000000000.npy",
            "npy; DumpData as `.pb` and `.quant`",
        ),
    ),
    of_path=lambda _, path: parse_reference_name(path.rpartition("/")[2]),
)


def parse_reference_name(file_name: str) -> TensorFile | None:
    """Parse the name of a file; return None if it has another form.

    >>> parse_reference_name("conv1.0.1610000000000000.npy").name.op_name
    'conv1'
    """
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    name = TensorName(
        graph=QUANTIZED if match["kind"] == "quant" else "",
        op_type=REFERENCE,
        op_name=match["op"],
        io="output",
        slot=int(match["slot"]),
        timestamp=int(match["time"]),
    )
    return TensorFile(name, Container.NPY if match["kind"] == "npy" else Container.DUMP_DATA)
