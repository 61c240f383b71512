"""Logs that hold statistics or hashes of tensors, and no tensors.

    nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-{rank}.log   TransformerEngine's statistics
    nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-{rank}.log              its messages, kept as files
    numerics/rank_{rank}_activations.log                                  torchtitan's numerics debugging
    {name}.json                                                           torch's DebugMode

For the other formats, see `logged_statistics`.

torch's DebugMode saves logs as JSON: each operator with hashes of what it read and wrote.

    {"format": "torch.utils._debug_mode.DebugMode.logs", "version": 1, "logs": [
        {"type": "annotate", "call_depth": 2, "header": "nn.Mod", "tag": "Net.fc", ...},
        {"type": "op", "call_depth": 3, "op_name": "aten::mm", "args_str": "t: f32[4, 10], t: f32[10, 20]",
         "kwargs_str": "", "output_str": "  ->  t: f32[4, 20]",
         "stack_trace": "  File ...", "fwd_stack_trace": null,
         "log": {"type": "dict", "items": [["input_hash", ...],
                                           ["hash", {"type": "scalar", "value": 1.5}]]}}]}

(torch 2.14 and 2.15, `torch/utils/_debug_mode`, `DebugMode.save_logs`.) `log` is a tree of types, with a
number in the place of each tensor: the sum of absolute values in float64 or, as a whole number,
`torch.hash_tensor`. It is null if no hashes were asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ingest.layouts.base import Description, Layout, Place, Problem, ReadSmall, System, parse
from ingest.layouts.logged_statistics import (
    MAX_TEXT,
    TE_LINE,
    TITAN_HEADER,
    LoggedTensor,
    Precision,
    parse_shape,
    read_te_lines,
    read_titan_log,
    reported,
    writes_later,
)
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile

_Hash: TypeAlias = int | float | None  # int on its own: it is a hash, and a float is a norm
#: What the file begins with.
HEADER = re.compile(rb'\A\s*\{\s*"format"\s*:\s*"torch\.utils\._debug_mode\.DebugMode\.logs"')
_PRECISION = Precision(digits=15)
#: How deep a tree of hashes is nested at most.
_MAX_DEPTH = 64
_TENSOR = re.compile(r"(?:\bd|\bf|\b)t(?P<id>\$\d{1,18})?: (?P<dtype>[a-z]+\d\w*)\[(?P<shape>[\d, ]*)\]")
_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>[^\n]+)\n(?P<code>[^\n]*)'
)
_FRAMEWORK = re.compile(r"(?:site-packages|dist-packages)/torch/|/lib(?:64)?/python3\.\d+/(?!site-|dist-)")
#: Torch's short names of types (`torch/utils/_dtype_abbrs.py`).
_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "b8": "bool",
}
#: Operators whose first argument is only written.
_ALLOCATES = re.compile(r"\w+\.(?:new_)?empty")
_OVERWRITES_FIRST = frozenset(["copy_", "fill_", "zero_"])


class NotDebugMode(ValueError):
    """The file is not JSON, or does not have this form."""


class _PrintedTensor(NamedTuple):
    """A tensor as the text of a call describes it."""

    id: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(slots=True)
class _Calls:
    """What is to be remembered of the calls so far."""

    modules: list[tuple[int, str]] = field(default_factory=list)
    """The modules that the call is in, each with its depth."""
    count: dict[str, int] = field(default_factory=dict)
    """The number of operators so far, by module."""
    written_by: dict[str, str] = field(default_factory=dict)
    """The name of the operator that wrote each tensor, by the number that DebugMode gives to tensors."""
    sequence: int = 0

    def name(self, op: str) -> TensorName:
        path = self.modules[-1][1] if self.modules else ""
        module = path.partition(".")[2]  # the first part is the class of the network
        number = self.count[module] = self.count.get(module, -1) + 1
        plain = op.rpartition("::")[2].partition(".")[0]
        op_name = f"{module}.op_{number}_{plain}" if module else f"op_{number}_{plain}"
        return TensorName(op_type=f"{op.partition('::')[0] or 'aten'}.{plain}", op_name=op_name)

    def next(self) -> int:
        self.sequence += 1
        return self.sequence - 1


def read_log(source: str, data: bytes, net: str) -> Iterator[ReportedStatistics]:
    """Yield the rows of a log: for each operator its inputs, then its outputs.

    Args:
        source: path of the log.
        data: its content.
        net: what the names of its tensors begin with: several logs may be of one step.

    Raises:
        NotDebugMode: it is cut off, or another kind of file.
    """
    calls = _Calls()
    for entry in _entries(data):
        kind, depth = entry.get("type"), entry.get("call_depth")
        if isinstance(depth, int):
            while calls.modules and calls.modules[-1][0] >= depth:
                calls.modules.pop()
            if kind == "annotate" and entry.get("header") == "nn.Mod":
                calls.modules.append((depth, _text(entry.get("tag"))[:MAX_TEXT]))
        if kind == "op":
            yield from _rows(source, entry, calls, net)


def _entries(data: bytes) -> list[dict[str, Any]]:
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise NotDebugMode(f"is not JSON: {exc}"[:200]) from exc
    entries = whole.get("logs") if isinstance(whole, dict) else None
    if not isinstance(entries, list):
        raise NotDebugMode("lacks the list `logs` that DebugMode writes")
    return [entry for entry in entries if isinstance(entry, dict)]


def _rows(source: str, entry: Mapping[str, Any], calls: _Calls, net: str) -> Iterator[ReportedStatistics]:
    op = _text(entry.get("op_name"))[:MAX_TEXT]
    name = calls.name(op)._replace(net=net)
    hashes = _items(entry.get("log"))
    common = _common(entry)
    arguments = _described_tensors(entry.get("args_str"))
    outputs = _described_tensors(entry.get("output_str"))
    read = _input_hashes(hashes.get("input_hash"))
    overwrites = name.op_type.rpartition(".")[2] in _OVERWRITES_FIRST
    for slot, (described, value) in enumerate(_paired(arguments, read)):
        attributes = dict(common)
        if described is not None and described.id in calls.written_by:
            attributes["produced_by"] = calls.written_by[described.id]
        # What an operator only overwrites is not an input: its memory may hold anything.
        io = "before" if overwrites and slot == 0 else "input"
        operand = name._replace(io=io, slot=slot, sequence=calls.next())
        yield from reported(source, _told(operand, described, value, attributes), _PRECISION)
    # What is only allocated holds anything, too.
    io = "before" if _ALLOCATES.match(name.op_type) else "output"
    for slot, (described, value) in enumerate(_paired(outputs, _leaves(hashes.get("hash")))):
        operand = name._replace(io=io, slot=slot, sequence=calls.next())
        yield from reported(source, _told(operand, described, value, common), _PRECISION)
        if described is not None and described.id:
            calls.written_by[described.id] = name.op_name


def _told(
    name: TensorName, described: _PrintedTensor | None, value: _Hash, common: Mapping[str, Any]
) -> LoggedTensor:
    attributes = dict(common)
    numbers: dict[str, float] = {}
    norms: list[float] = []
    if isinstance(value, int):
        attributes["hash"] = f"xor:{value}"
    elif value is not None:
        attributes["hash"] = f"l1:{value!r}"
        if not (name.io == "output" and writes_later(name.op_type)) and name.io != "before":
            norms = [value]
        if name.io == "output" and norms:
            numbers["l1_norm"] = value
    dtype, shape = (described.dtype, described.shape) if described else ("", None)
    return LoggedTensor(name, numbers, norms, dtype, shape, attributes)


def _paired(
    described: Sequence[_PrintedTensor], values: Sequence[_Hash]
) -> list[tuple[_PrintedTensor | None, _Hash]]:
    """Return tensors with their hashes; those of which one is not known if there are more of the others."""
    if not values:
        return [(tensor, None) for tensor in described]
    if len(values) != len(described):
        return [(None, value) for value in values]
    return list(zip(described, values, strict=True))


def _input_hashes(tree: Any) -> list[_Hash]:
    """Return the hashes of arguments; `out=` is not an input, and holds anything."""
    match tree:
        case {"type": "tuple", "items": [arguments, keywords]}:
            rest = (value for key, value in _items(keywords).items() if key != "out")
            return [*_leaves(arguments), *(leaf for value in rest for leaf in _leaves(value))]
        case _:
            return _leaves(tree)


def _leaves(tree: Any, depth: int = 0) -> list[_Hash]:
    """Return the numbers of a tree in order; what stands for no tensor has none."""
    if not isinstance(tree, dict) or depth > _MAX_DEPTH:
        return []
    if tree.get("type") in ("tuple", "list", "dict"):
        return [leaf for item in _members(tree) for leaf in _leaves(item, depth + 1)]
    return _numbers(tree.get("value"))


def _members(tree: Mapping[str, Any]) -> Iterable[Any]:
    if tree.get("type") == "dict":
        return _items(tree).values()
    items = tree.get("items")
    return items if isinstance(items, list) else ()


def _numbers(value: Any) -> list[_Hash]:
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return [float(value)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def _items(tree: Any) -> dict[str, Any]:
    """Return a dictionary of a tree; {} if it is none."""
    if not isinstance(tree, dict) or tree.get("type") != "dict" or not isinstance(tree.get("items"), list):
        return {}
    pairs = (item for item in tree["items"] if isinstance(item, list) and len(item) == 2)
    return {key: value for key, value in pairs if isinstance(key, str)}


def _described_tensors(text: Any) -> list[_PrintedTensor]:
    matches = _TENSOR.finditer(text) if isinstance(text, str) else ()
    return [
        _PrintedTensor(m["id"] or "", _DTYPES.get(m["dtype"], m["dtype"][:64]), parse_shape(m["shape"]))
        for m in matches
    ]


def _common(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line that called an operator; of one that runs backward, that of the forward call."""
    forward = entry.get("fwd_stack_trace")
    common: dict[str, Any] = {}
    frames = list(_FRAME.finditer(forward if isinstance(forward, str) else _text(entry.get("stack_trace"))))
    own = [frame for frame in frames if not _FRAMEWORK.search(frame["file"])]
    if frames:
        frame = (own or frames)[-1]
        common["location"] = {
            "file": frame["file"][:MAX_TEXT],
            "line": int(frame["line"]),
            "code": frame["code"].strip()[:400],
            "function": frame["function"][:200],
        }
    return common


def _text(value: Any) -> str:
    # JSON may contain half a surrogate pair, which a text column cannot.
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


_UNREADABLE = "has statistics, but cannot be read, or more than 64 MiB of them belong to one step"


class TransformerEngineStatistics(Layout):
    """The statistics of TransformerEngine: one log for each rank, with the lines of all iterations."""

    name = "transformer_engine_statistics"
    patterns = ()
    file_patterns = (
        parse(
            r"nvdlfw_inspect_statistics_logs/nvdlfw_inspect_{started:(?:\d{8}_\d{6}_)?}globalrank-{rank}.log",
            of_files=True,
        ),
    )
    step_of_line = TE_LINE
    systems = (
        System(
            "TransformerEngine, statistics (nvdlfw-inspect)",
            "nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-1.log",
            "lines of statistics",
        ),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Return the statistics of one iteration; see `Layout.describe`."""
        above = place.directory.rpartition("/")[0]
        rank, step = int(place.fields["rank"]), int(place.fields["step"])
        tensors = f"{above}/tensor_dumps/rank_{rank}/iter_{step:06d}".lstrip("/")
        return _described(files, read, lambda file, data: read_te_lines(file.path, data, tensors))


class TransformerEngineLogs(Layout):
    """What nvdlfw-inspect says of its own work: which layers it saw, which features it switched on."""

    name = "transformer_engine_logs"
    patterns = ()
    file_patterns = (
        parse(
            r"nvdlfw_inspect_logs/nvdlfw_inspect_{started:(?:\d{8}_\d{6}_)?}globalrank-{rank}.log",
            of_files=True,
        ),
    )
    systems = (
        System(
            "TransformerEngine, messages (nvdlfw-inspect)",
            "nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-1.log",
            "kept as files",
        ),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Return nothing: it holds no tensors. Reads none."""
        return Description()


class TitanNumerics(Layout):
    """The logs of torchtitan's numerics debugging, which do not name their step: step 0."""

    name = "torchtitan_numerics"
    patterns = ()
    file_patterns = tuple(
        parse(f"{above}rank_{{rank}}_activations.log", of_files=True) for above in ("numerics/", "")
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    content = TITAN_HEADER
    systems = (
        System("torchtitan, numerics debugging", "numerics/rank_1_activations.log", "statistics and hashes"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Return the statistics of the only step; see `Layout.describe`."""
        return _described(
            files, read, lambda file, data: read_titan_log(file.path, data.decode(errors="replace"))
        )


class DebugMode(Layout):
    """The logs of torch's DebugMode, under any name. Those that do not name their step belong to step 0."""

    name = "debug_mode"
    patterns = ()
    # Users choose these names: ranks may have zeros in front.
    file_patterns = tuple(
        parse(f"{above}{name}.json", of_files=True)
        for above in ("", "debug_mode/")
        for name in (
            r"{a:(?:.*[._-])?}rank{b:[._-]?}{rank:[0-9]{1,9}}{c:(?:[._-].*)?}step{d:[._-]?}{step}{e:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}step{b:[._-]?}{step}{c:(?:[._-].*)?}rank{d:[._-]?}{rank:[0-9]{1,9}}{e:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}rank{b:[._-]?}{rank:[0-9]{1,9}}{c:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}step{b:[._-]?}{step}{c:(?:[._-].*)?}",
            r"{log}",
        )
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    content = HEADER
    systems = (
        System("torch, DebugMode", "eager.json", "hashes, calls"),
        System("torch, DebugMode, with numbers in the name", "eager_rank1_step8.json", "the same"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Return the hashes of one step; see `Layout.describe`."""
        return _described(
            files,
            read,
            lambda file, data: read_log(file.path, data, file.path.rpartition("/")[2].removesuffix(".json")),
        )


def _described(
    files: Sequence[SourceFile],
    read: ReadSmall,
    rows_of: Callable[[SourceFile, bytes], Iterable[ReportedStatistics]],
) -> Description:
    reported: list[ReportedStatistics] = []
    problems: list[Problem] = []
    unfinished = ""
    for file in files:
        data = read(file.path)
        if data is None:
            problems.append(Problem(file.path, _UNREADABLE))
            continue
        try:
            reported += rows_of(file, data)
        except NotDebugMode as exc:
            hint = "Its writer was still at work, or died."
            problems.append(Problem(file.path, str(exc), hint))
            unfinished = unfinished or file.path
    return Description(reported=reported, problems=problems, unfinished=unfinished)
