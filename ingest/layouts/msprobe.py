"""msProbe in Python, for PyTorch and MindSpore.

    step{step}/rank{rank}/        the global rank; `rank` alone in old releases, with one process
    step{step}/proc{pid}/         while the rank is not known; renamed to rank{rank} when it is
    step{step}/pid{pid}/          the same, of AclGraphDumper
    {graph|pynative}/step{step}/...    MindSpore with both modes in one job
    rank{rank}/                   what a user saved with 1.2 and 1.3, of all steps; has `debug.json`
        dump.json  stack.json  construct.json  [debug.json]
        dump_tensor_data/*.pt or *.npy

`dump.json` names every tensor, has its statistics, and says in which file it is. It is written from time to
time and at the end of a step, so there may be files that it does not contain yet; AclGraphDumper writes no
JSON next to tensors. Tensors in the NZ format, and those whose path is too long, have an entry but no file.
(msProbe 26.2: `core/dump/service.py`, `core/dump/data_dump/json_writer.py`.)

What msProbe records about tensors: `dump.json`, and `debug.json` of the same form.

    {"task": ..., "data": {key of a call: {"input_args": [...], "input_kwargs": {...}, "output": [...]}}}

An element of a call that is a tensor is an object with `type`, `dtype`, `shape` and statistics, and
`data_name` if the tensor itself was dumped. Other elements have no `dtype`. Values may be NaN and Infinity,
which are not standard JSON.

Its statistics are torch's or MindSpore's (msProbe 26.2, `pytorch_processor.py` and `mindspore_processor.py`,
`get_stat_info`), and compare to those of `workers.arrays.statistics` as follows:

- A single NaN or infinite element makes `Max`, `Min`, `Mean` and `Norm` NaN or infinite. A finite number is
  that of the finite elements, and is taken; any other says nothing. If the mean is finite, all elements are.
- `Max_except_inf_nan` and `Min_except_inf_nan`, in older files, are our maximum and minimum.
- For complex tensors they are those of the magnitudes, and are not taken.
- For a tensor without axes `Norm` is the value with its sign.
- They are rounded to the type of the tensor or, for integers in MindSpore, to float32.
- `md5` is a CRC-32 of the elements in memory, in 8 hexadecimal digits, or an XOR in 16. For bfloat16 it may
  be that of the same values as float32. If a tensor is changed in place, it may be that of a moment later.

The names that msProbe gives to a tensor, in the names of files and in its JSON files.

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

msProbe's native dumps, of MindSpore with the graph engine (O2).

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

import dataclasses
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard

from msgspec.structs import replace

from ingest.layouts.base import Description, Layout, Place, Problem, ReadSmall, System, TensorFile, parse
from ingest.layouts.cann import STATISTIC_CSV, LongNames, parse_bin_name, read_reports
from workers.arrays.statistics import NON_FINITE_FIELDS, Statistics
from workers.dump.formats.header import MAX_NDIM, Container
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile, counted

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


#: Sections of a call, and the role of the tensors in them.
_ROLES = {"input_args": "input", "input_kwargs": "kwargs"}
#: The end of the key of what a user saved. Versions 1.2 and 1.3 did not write it.
_SAVED = ".debug"
#: It names a file for every tensor, and writes those of operators that differ from a reference (26.1).
_TASK_OF_DIFFERENCES = "diff_check"
#: How deep the elements of a call may be nested; msProbe's own limit is 400.
_MAX_DEPTH = 400
#: How many characters the names of all tensors may have, for each byte of the file and besides.
_NAMES_PER_BYTE, _MIN_NAMES = 4, 64 * 1024
#: Significant decimal digits of sums in types that have few. Numbers are printed in full, so for all other
#: types it is the nine that float32 needs.
_DIGITS = {"bfloat16": 2, "float16": 3, "half": 3}
_DEFAULT_DIGITS = 9
_CHECKSUMS = (
    ("crc32", re.compile(r"([0-9a-f]{8})")),
    ("xor64", re.compile(r"0x([0-9a-f]{16})")),
    ("md5", re.compile(r"([0-9a-f]{32})")),
)
_Index: TypeAlias = tuple[str, ...]
_Members: TypeAlias = Iterator[tuple[_Index, object]]


class NotMsProbe(ValueError):
    """The file is not JSON, or does not have this form."""


def read_tensors(
    source: str, data: bytes, *, graph: str = "", first: int = 0
) -> tuple[list[ReportedStatistics], bool]:
    """Return the tensors of a `dump.json` or `debug.json`, in the order of the dump, each with its file.

    Takes time and memory in proportion to the size of `data`.

    Args:
        source: the path of the file.
        data: its content.
        graph: `graph` or `pynative`, if a dump has both.
        first: the number of the first tensor, for `TensorName.sequence`.

    Returns:
        The tensors, with the names of their files alone; and whether these are only written of tensors that
        differ from a reference.

    Raises:
        NotMsProbe: it is cut off, or another kind of file.
    """
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise NotMsProbe(f"is not JSON: {exc}"[:200]) from exc
    calls = whole.get("data") if isinstance(whole, dict) else None
    if not isinstance(calls, dict):
        raise NotMsProbe("lacks the object `data` that msProbe writes")
    if whole.get("level") == "debug":
        calls = {f"{key.removesuffix(_SAVED)}{_SAVED}": call for key, call in calls.items()}
    tensors: list[ReportedStatistics] = []
    left = _MIN_NAMES + _NAMES_PER_BYTE * len(data)
    for key in _in_order(calls):
        op_name = _text(key)
        for role, index, element in _elements(key, calls[key]):
            left -= len(op_name) + sum(map(len, index))
            if left < 0:
                raise NotMsProbe("has names that are many times as long as the file")
            name = tensor_name(
                op_name,
                role,
                index,
                graph=graph,
                sequence=first + len(tensors),
                declared_dtype=_text(element["dtype"]),
            )
            tensors.append(_json_tensor(source, name, element))
    return tensors, whole.get("task") == _TASK_OF_DIFFERENCES


def _in_order(calls: Collection[str]) -> list[str]:
    """Return the keys of calls in the order in which their tensors were known.

    Before 26.0, msProbe entered the gradients of the parameters of a module when the module had run forward,
    without a number, and filled them in after the backward pass.
    """
    entered_early = [key for key in calls if key.endswith(".parameters_grad")]
    return [*(key for key in calls if not key.endswith(".parameters_grad")), *reversed(entered_early)]


def _elements(key: str, call: object) -> Iterator[tuple[str, _Index, Mapping[str, Any]]]:
    for role, start, section in _sections(key, call):
        # No recursion: a file may be nested more deeply than Python's stack. One iterator for each level: the
        # indices of all elements would take far more memory than the file.
        levels: list[tuple[_Index, _Members]] = [((), iter([(start, section)]))]
        while levels:
            above, members = levels[-1]
            step, element = next(members, (None, None))
            if step is None:
                levels.pop()
                continue
            index = (*above, *step)
            if len(index) > _MAX_DEPTH:
                continue
            if _is_tensor(element):
                yield role, index, element
            else:
                levels.append((index, _below(element)))


def _sections(key: str, call: object) -> list[tuple[str, _Index, object]]:
    if key.endswith(_SAVED) or not isinstance(call, dict):
        return [("debug", (), call)]
    if ".parameters_grad" in key:
        # For each parameter a list of one tensor.
        return [
            (
                "parameters_grad",
                (_text(name),),
                value[0] if isinstance(value, list) and len(value) == 1 else value,
            )
            for name, value in call.items()
        ]
    return [(_ROLES.get(name, _text(name)), (), value) for name, value in call.items()]


def _below(element: object) -> _Members:
    if isinstance(element, list):
        yield from (((str(number),), below) for number, below in enumerate(element))
    elif isinstance(element, dict) and "class_type" in element:
        # An operation of point-to-point communication; its tensor has the index of the operation.
        yield (), element.get("tensor")
    elif isinstance(element, dict):
        yield from (((_text(name),), below) for name, below in element.items())


def _is_tensor(element: object) -> TypeGuard[Mapping[str, Any]]:
    if not isinstance(element, dict) or not isinstance(element.get("type"), str):
        return False
    shape = element.get("shape")
    return (
        isinstance(element.get("dtype"), str)
        and isinstance(shape, list)
        and len(shape) <= MAX_NDIM
        and all(type(n) is int and 0 <= n < 2**62 for n in shape)
    )


def _json_tensor(source: str, name: TensorName, tensor: Mapping[str, Any]) -> ReportedStatistics:
    dtype = tensor["dtype"].casefold().rpartition(".")[2]
    shape = tuple(tensor["shape"])
    data_name = tensor.get("data_name")
    return ReportedStatistics(
        source=source,
        name=name,
        dtype=name.declared_dtype,
        shape=shape,
        statistics=_statistics(tensor, dtype, shape),
        digits=_DIGITS.get(dtype, _DEFAULT_DIGITS),
        checksum=_checksum(tensor.get("md5")),
        tensor=data_name if isinstance(data_name, str) else "",
    )


def _statistics(tensor: Mapping[str, Any], dtype: str, shape: tuple[int, ...]) -> Statistics:
    count = _number(math.prod(shape))
    if "complex" in dtype:
        return Statistics(count=count)
    low, high = _first_number(tensor, "Min"), _first_number(tensor, "Max")
    if low > high:
        low = high = math.nan
    mean, norm = _number(tensor.get("Mean")), _number(tensor.get("Norm"))
    if not shape:
        norm = abs(norm)
    is_float = "float" in dtype or dtype in ("half", "double")
    non_finite = 0.0 if not is_float or math.isfinite(mean) else math.nan
    return Statistics(
        count=count,
        min=low,
        max=high,
        mean=mean,
        l2_norm=norm if norm >= 0 else math.nan,
        **dict.fromkeys(NON_FINITE_FIELDS, non_finite),
    )


def _first_number(tensor: Mapping[str, Any], name: str) -> float:
    number = _number(tensor.get(name))
    return number if math.isfinite(number) else _number(tensor.get(f"{name}_except_inf_nan"))


def _number(value: object) -> float:
    """Return a number that is finite in float64; NaN for anything else."""
    if not isinstance(value, int | float):  # a boolean is an int
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _checksum(value: object) -> str:
    if isinstance(value, str):
        for kind, pattern in _CHECKSUMS:
            if match := pattern.fullmatch(value):
                return f"{kind}:{match[1]}"
    return ""


def _text(value: str) -> str:
    # JSON may contain half a surrogate pair, which a text column cannot.
    return value.encode(errors="replace").decode()


_JSON = ("dump.json", "debug.json")
_TENSORS = "dump_tensor_data"
_CONTAINERS = {".npy": Container.NPY, ".pt": Container.PT}


def _describe_msprobe(place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
    mode = place.fields.get("mode", "")
    paths = {file.path for file in files}
    tensor_files = [file.path for file in files if _extension(file.path) in _CONTAINERS]
    directory = f"{place.path}/{_TENSORS}/"
    json_files = _json_files(place, paths)
    if not json_files and not any(path.startswith(directory) for path in tensor_files):
        return Description()  # another program's directories of the same names, perhaps of checkpoints
    content = _read_json_files(json_files, mode, read)
    named, reported, missing = _locate(content, directory, paths)
    unlisted = [path for path in tensor_files if path not in named]
    named |= {path: _named_by_path(path, mode) for path in unlisted}
    _check_complete(json_files, missing, unlisted, content)
    return Description(named, reported, content.problems, content.unfinished)


#: The tree of msProbe's dumps from Python.
MSPROBE = Layout(
    name="msprobe",
    # `step3` alone proves nothing.
    patterns=tuple(
        parse(f"{mode}step{{step}}/{process}!")
        for mode in ("", "{mode:graph|pynative}/")
        for process in ("rank{rank}", "rank", "proc{pid}", "pid{pid}")
    ),
    systems=(
        System(
            "msProbe, PyTorch",
            "step8/rank1",
            "pt, `dump.json` with statistics, `stack.json`, `construct.json`",
        ),
        System("msProbe, PyTorch, before a rank is known", "step8/proc4711", "the same"),
        System(
            "msProbe, MindSpore",
            "step8/rank1",
            "npy, `dump.json` with statistics, `stack.json`, `construct.json`",
        ),
        System("msProbe, MindSpore with `jit`", "graph/step8/rank1", "the same"),
        System("msProbe, AclGraphDumper", "step8/pid4711", "pt, `dump.json`"),
    ),
    # Directories of checkpoints have the same names.
    evidence=re.compile(
        r"(?:dump|debug|stack|construct)\.json|dump_tensor_data|dump_error_info\.log|.+\.(?:pt|npy)",
        re.DOTALL,
    ),
    of_place=_describe_msprobe,
)


#: What users of msProbe 1.2 and 1.3 saved by `PrecisionDebugger.save`, which told no step then.
MSPROBE_SAVED = Layout(
    name="msprobe_saved",
    patterns=(parse("rank{rank}!"), parse("rank!")),
    implied={"step": "0"},
    systems=(System("msProbe 1.2 and 1.3, level `debug`", "rank1", "pt, `debug.json` with statistics"),),
    evidence=re.compile(r"debug\.json"),
    needs_evidence=True,
    of_place=_describe_msprobe,
)


def _json_files(place: Place, paths: Collection[str]) -> list[str]:
    candidates = (f"{place.path}/{name}" for name in _JSON)
    return [path for path in candidates if path in paths]


@dataclass(slots=True)
class _JsonContent:
    tensors: list[ReportedStatistics] = field(default_factory=list)
    optional: set[str] = field(default_factory=set)
    """The JSON files whose tensor files may be missing."""
    problems: list[Problem] = field(default_factory=list)
    unfinished: str = ""


def _read_json_files(paths: Sequence[str], mode: str, read: ReadSmall) -> _JsonContent:
    content = _JsonContent()
    for path in paths:
        data = read(path)
        if data is None:
            content.problems.append(Problem(path, "names the tensors of its step, but cannot be read"))
            continue
        try:
            tensors, is_optional = read_tensors(path, data, graph=mode, first=len(content.tensors))
        except NotMsProbe as exc:
            hint = "msProbe rewrites it from time to time: the process was still at work, or died."
            content.problems.append(Problem(path, str(exc), hint))
            content.unfinished = content.unfinished or path
            continue
        content.tensors += tensors
        content.optional |= {path} if is_optional else set()
    return content


def _locate(
    content: _JsonContent, directory: str, paths: Collection[str]
) -> tuple[dict[str, TensorFile], list[ReportedStatistics], list[str]]:
    """Find the files of tensors.

    Args:
        content: the tensors.
        directory: where their files are.
        paths: all files of the place.

    Returns:
        The files that exist, by path; the statistics of all tensors; the names of files that do not exist.
    """
    named: dict[str, TensorFile] = {}
    reported: list[ReportedStatistics] = []
    missing: list[str] = []
    for tensor in content.tensors:
        path = f"{directory}{tensor.tensor}" if tensor.tensor else ""
        if path and path not in paths:
            if tensor.source not in content.optional:
                missing.append(tensor.tensor)
            path = ""
        elif container := _CONTAINERS.get(_extension(path)):
            named.setdefault(path, TensorFile(tensor.name, container))
        reported.append(dataclasses.replace(tensor, tensor=path))
    return named, reported, missing


def _check_complete(
    json_files: Sequence[str], missing: Sequence[str], unlisted: Sequence[str], content: _JsonContent
) -> None:
    """Add to `content` what shows that the JSON files and the tensor files do not belong together yet."""
    if not json_files:
        return
    json_file, is_readable = json_files[0], not content.problems
    if missing:
        content.problems.append(
            Problem(
                json_file,
                f"names {counted(len(missing), 'file')} not to be found; the first is {missing[0]:.200}",
                "msProbe writes no file for a tensor in the NZ format, or if its path is too long.",
            )
        )
    if unlisted and is_readable:
        content.problems.append(
            Problem(
                json_file,
                f"has no entry for {len(unlisted)} tensor files; the first is {unlisted[0]}",
                "msProbe writes entries late: the process was still running, or died. The names of the files "
                "are used.",
            )
        )
        content.unfinished = content.unfinished or json_file


def _named_by_path(path: str, mode: str) -> TensorFile:
    extension = _extension(path)
    stem = path.rpartition("/")[2].removesuffix(extension)
    return TensorFile(parse_tensor_name(stem, graph=mode), _CONTAINERS[extension])


def _extension(path: str) -> str:
    name = path.rpartition("/")[2]
    return f".{name.rpartition('.')[2]}" if "." in name else ""


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


def _describe_msprobe_native(_: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
    names = LongNames(read)
    named: dict[str, TensorFile] = {}
    reports: list[Description] = []
    for file in files:
        file_name = file.path.rpartition("/")[2]
        if file_name == STATISTIC_CSV:
            reports.append(read_reports(file.path, read, TensorName()))
        elif (tensor := _named(file.path, file_name, names)) is not None:
            named[file.path] = tensor
    return Description.joined([Description(named), *reports])


#: The tree of msProbe's native dumps.
MSPROBE_NATIVE = Layout(
    name="msprobe_native",
    patterns=(parse("rank_{rank}/{time}!/step_{step}"),),
    systems=(
        System(
            "msProbe, native (MindSpore O2)",
            "rank_1/20260101000000/step_8",
            "npy, raw elements, `statistic.csv`, `mapping.csv`, overflow records (JSON)",
        ),
    ),
    of_place=_describe_msprobe_native,
)


def parse_native_name(file_name: str) -> TensorFile | None:
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
    if (tensor := parse_native_name(file_name)) is not None:
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
    named = parse_native_name(real) if real else None
    best = named if named and named.container is numbered.container else numbered
    return replace(best, settled=settled)
