"""Logs that hold statistics or hashes of tensors, and no tensors.

    nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-{rank}.log   TransformerEngine's statistics
    nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-{rank}.log              its messages, kept as files
    numerics/rank_{rank}_activations.log                                  torchtitan's numerics debugging
    {name}.json                                                           torch's DebugMode

Statistics by the definitions of torch, as logs have them: what they say about the elements of a tensor.

In torch, one NaN makes maximum, minimum, mean and norms NaN, and one infinity makes some of them infinite.
Ours cover the finite elements, and count the others. So a finite number is taken, and one that is not tells
that there are such elements: then their count is 1, which means at least one (`counts_are_least`).

A statistic that the store has no column for (an L1 norm, the share of underflows) is a row of its own: a
single number, which is its minimum, maximum and mean. So `trend`, `compare` and rules work on it.

The logs of statistics that nvdlfw-inspect writes, mostly for the debug features of TransformerEngine.

    {time} - INFO - decoder.0.fc1_activation_max {tabs} iteration=000008 {tabs} value=2.9572

(nvdlfw-inspect 0.2.2, `logging.py`; TransformerEngine, `debug/features/utils/stats_computation.py`.) A name
is made of layer, tensor and statistic, joined by `_`. A value has four digits behind the point: nothing is
left of 0.00001.

The logs of torchtitan's numerics debugging: statistics and hashes of what each operator wrote.

    [layers.0.attention.wq/op_0_mm]
      Shape: torch.Size([8, 256]), Dtype: torch.float32
      L2 norm: 1.234560e+01
      Min: -1.0e+00        and `Max`, `Mean`
      Output hash: 3.1e+02
      Input hashes: 1.0e+00, 2.0e+00
      Input producers: layers.0.norm/op_0_mul;
      Location: common/attention.py:534
      Phase: backward

(torchtitan, `agent_tooling/numerics_debugging/activation_tracer.py`.) A hash is the sum of absolute values in
float64; an operator that writes several tensors has statistics of the first, and one that works in place has
none. Numbers have seven digits.

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
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from ingest.layouts.base import Description, Layout, Place, Problem, ReadSmall, System, parse
from ingest.layouts.pytorch import te_tensor
from workers.arrays.statistics import NON_FINITE_FIELDS, Statistics
from workers.dump.formats.header import MAX_NDIM
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile

#: The first part of the label of rows that hold a statistic.
STATISTIC_IO = "statistic"
#: Each tensor of an operator keeps what a log says of the operator: this many characters of a text at most.
MAX_TEXT = 1000
#: Collectives that return before their output is written: what is hashed then is what was in its memory.
_WRITES_LATER = re.compile(r"all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast")
_COLUMNS = ("min", "max", "mean", "std", "l2_norm")


@dataclass(frozen=True, slots=True)
class Precision:
    """How the numbers of a log were printed."""

    digits: int = 15
    decimals: int = -1
    std_is_of_sample: bool = False


def reported(
    source: str,
    precision: Precision,
    name: TensorName,
    numbers: Mapping[str, float] = MappingProxyType({}),
    norms: Sequence[float] = (),
    *,
    dtype: str = "",
    shape: tuple[int, ...] | None = None,
    attributes: Mapping[str, Any] = MappingProxyType({}),
    tensor: str = "",
) -> Iterator[ReportedStatistics]:
    """Yield the row of a tensor as a log describes it, and those of its statistics that have no column.

    Args:
        source: path of the log.
        precision: of its numbers.
        name: of the tensor.
        numbers: statistics by name: `min`, `max`, `mean`, `std`, `l2_norm`, and others.
        norms: norms, or sums of absolute values, which tell NaN and infinities but have no row.
        dtype: as the log spells it.
        shape: lengths of the axes; None if they are not known.
        attributes: what else is known.
        tensor: path of the file that holds it, if the dump may have one.
    """
    yield ReportedStatistics(
        source=source,
        name=name,
        dtype=dtype,
        shape=shape or (),
        statistics=statistics_of(numbers, norms, shape),
        tensor=tensor,
        digits=precision.digits,
        decimals=precision.decimals,
        counts_are_least=True,
        std_is_of_sample=precision.std_is_of_sample,
        attributes=_attributes(attributes, numbers, precision),
    )
    for number_name, value in numbers.items():
        if number_name not in _COLUMNS:
            io = f"{STATISTIC_IO}.{name.io}.{number_name}"
            yield number_row(source, name._replace(io=io), value, precision)


def number_row(source: str, name: TensorName, value: float, precision: Precision) -> ReportedStatistics:
    """Return the row of a single number."""
    is_finite = math.isfinite(value)
    attributes: dict[str, Any] = {} if is_finite else {"value": str(value)}
    if precision.decimals >= 0:
        attributes["decimals"] = precision.decimals
    statistics = Statistics(
        count=1, min=value, max=value, mean=value, l2_norm=abs(value), **dict.fromkeys(NON_FINITE_FIELDS, 0.0)
    )
    return ReportedStatistics(
        source=source,
        name=name,
        dtype="",
        shape=(),
        # Whether the tensor has NaN is told by its own row: this one would be one more.
        statistics=statistics if is_finite else Statistics(),
        digits=precision.digits,
        decimals=precision.decimals,
        attributes=json.dumps(attributes) if attributes else "",
    )


def statistics_of(
    numbers: Mapping[str, float], norms: Sequence[float], shape: tuple[int, ...] | None
) -> Statistics:
    """Convert numbers by torch's definitions to ours; NaN for what they do not tell.

    Args:
        numbers: `min`, `max`, `mean`, `std`, `l2_norm`.
        norms: others that are NaN, or infinite, if and only if an element is.
        shape: lengths of the axes; None if they are not known.
    """
    if not numbers and not norms:
        return Statistics()  # with a count alone, it would look as if a NaN had made the rest unknown
    values = _in_columns(numbers)
    if norms and not any(norms) and 0 not in (shape or ()):
        values = dict.fromkeys(_COLUMNS, 0.0)  # each element is zero
    return Statistics(
        count=math.nan if shape is None else float(math.prod(shape)),
        **_non_finite(numbers.get("min"), numbers.get("max"), norms),
        **values,
    )


def _in_columns(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the finite numbers that have a column, without a minimum above the maximum."""
    values = {name: value for name, value in numbers.items() if name in _COLUMNS and math.isfinite(value)}
    if values.get("min", -math.inf) > values.get("max", math.inf):
        del values["min"], values["max"]
    return values


def _non_finite(low: float | None, high: float | None, norms: Sequence[float]) -> dict[str, float]:
    """Return the counts of NaN and infinities: 0, 1 for some, or none where nothing is known."""
    if any(math.isnan(value) for value in (low, high) if value is not None):
        return {"nan_count": 1.0}
    if low is not None and high is not None:
        # Neither is NaN, so no element is.
        return {
            "nan_count": 0.0,
            "pos_inf_count": float(high == math.inf),
            "neg_inf_count": float(low == -math.inf),
        }
    if norms and all(map(math.isfinite, norms)):
        return dict.fromkeys(NON_FINITE_FIELDS, 0.0)
    if any(map(math.isnan, norms)):
        return {"nan_count": 1.0}
    # Which sign it has is not known.
    return {"pos_inf_count": 1.0} if norms else {}


def _attributes(given: Mapping[str, Any], numbers: Mapping[str, float], precision: Precision) -> str:
    attributes = dict(given)
    if precision.decimals >= 0:
        attributes["decimals"] = precision.decimals
    not_finite = {name: str(value) for name, value in numbers.items() if not math.isfinite(value)}
    if not_finite:
        attributes["not_finite"] = not_finite
    return json.dumps(attributes) if attributes else ""


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Return the lengths of axes that a log separates by commas; None if no tensor can have them.

    >>> parse_shape("2, 3")
    (2, 3)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MAX_NDIM or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        return None
    shape = tuple(map(int, parts))
    return shape if math.prod(n for n in shape if n) < 2**63 else None


def writes_later(op_type: str) -> bool:
    """Return whether an operator may not have written its outputs yet when it returns."""
    return _WRITES_LATER.search(op_type.lower()) is not None


#: A line, as `Layout.step_of_line` has it. Names are short, because the parts of one are looked for again and
#: again.
TE_LINE = re.compile(
    rb"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - [A-Z]+ - (?P<name>[^\t\n]{1,1000}?) \t{1,8} "
    rb"iteration=(?P<step>\d{1,18}) \t{1,8} value=(?P<value>\S{1,400})$",
    re.MULTILINE,
)
_NAME = re.compile(
    r"(?P<layer>.+)_(?P<tensor>activation|gradient|weight|output|wgrad|dgrad)_(?P<statistic>[^/]+)", re.DOTALL
)
#: The deviation is that of `torch.var`, which has n - 1 in the place of n.
TE_PRECISION = Precision(decimals=4, std_is_of_sample=True)
_IN_FILE_NAMES = re.compile(r'[/\\:*?"<>| .]')
_BACKWARD = frozenset(["gradient", "dgrad", "wgrad"])
#: Layer and tensor.
_Key: TypeAlias = tuple[str, str]
_NORMS = ("l1_norm", "cur_amax")


def read_te_lines(source: str, lines: bytes, tensors: str) -> Iterator[ReportedStatistics]:
    """Yield the rows of one iteration.

    Args:
        source: path of the log.
        lines: those of the iteration.
        tensors: the directory where DumpTensors would have saved the tensors of this rank and iteration.
    """
    numbers: dict[_Key, dict[str, float]] = {}
    single: dict[str, float] = {}
    for match in TE_LINE.finditer(lines):
        text = match["name"].decode(errors="replace")
        value = _value(match["value"])
        if value is None:
            continue
        parts = _NAME.fullmatch(text)
        if parts is None:
            single[text] = value
        else:
            numbers.setdefault((parts["layer"], parts["tensor"]), {})[parts["statistic"]] = value
    for sequence, ((layer, tensor), values) in enumerate(_in_order(numbers)):
        name = te_tensor(layer, tensor)._replace(sequence=sequence)
        norms = [values[norm] for norm in _NORMS if norm in values]
        path = f"{tensors}/{_IN_FILE_NAMES.sub('_', layer)}_{tensor}.pt"
        yield from reported(source, TE_PRECISION, name, values, norms, tensor=path)
    for sequence, (text, value) in enumerate(single.items(), len(numbers)):
        name = TensorName(op_type="Scalar", op_name=text, io="value", slot=0, sequence=sequence)
        yield number_row(source, name, value, TE_PRECISION)


def _in_order(numbers: dict[_Key, dict[str, float]]) -> list[tuple[_Key, dict[str, float]]]:
    """Return the tensors in order of execution: the log lists layers as they run forward."""
    forward = [item for item in numbers.items() if item[0][1] not in _BACKWARD]
    backward = [item for item in numbers.items() if item[0][1] in _BACKWARD]
    place = {layer: number for number, (layer, _) in enumerate(numbers)}
    return forward + sorted(backward, key=lambda item: -place[item[0][0]])


def _value(text: str | bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


#: What the log begins with.
TITAN_HEADER = re.compile(rb"\ATotal captured activations: \d+\n")
_TITAN_PRECISION = Precision(digits=7)
_KEY = re.compile(r"(?P<module>.*)/op_(?P<number>\d+)_(?P<op>.+)", re.DOTALL)
_SHAPE = re.compile(r"torch\.Size\(\[(?P<shape>[\d, ]*)\]\)(?:, Dtype: (?P<dtype>torch\.\w+))?")
_LOCATION = re.compile(r"(?P<file>.+):(?P<line>\d{1,9})")
_WHOLE = re.compile(r"-?\d+")
_NUMBERS = {"L1 norm": "l1_norm", "L2 norm": "l2_norm", "Min": "min", "Max": "max", "Mean": "mean"}


def read_titan_log(source: str, data: bytes) -> Iterator[ReportedStatistics]:
    """Yield the rows of a log: for each operator its inputs, of which it has only hashes, and its output."""
    sequence = 0
    for key, fields in _blocks(data.decode(errors="replace")):
        name = _name(key[:MAX_TEXT])
        producers = fields.get("Input producers", "").split(";")
        hashes = _hashes(fields.get("Input hashes", ""))
        common = _titan_common(fields)
        for slot, (hash_text, norm) in enumerate(hashes):
            producer = producers[slot].strip() if slot < len(producers) else ""
            attributes = {"hash": hash_text, **common}
            if producer:
                attributes["produced_by"] = _name(producer).op_name
            operand = name._replace(io="input", slot=slot, sequence=sequence)
            norms = _known([norm])
            yield from reported(source, _TITAN_PRECISION, operand, norms=norms, attributes=attributes)
            sequence += 1
        if "Shape" in fields or "Output hash" in fields:
            yield from _output(source, name._replace(sequence=sequence), fields, common)
            sequence += 1


def _output(
    source: str, name: TensorName, fields: Mapping[str, str], common: Mapping[str, object]
) -> Iterator[ReportedStatistics]:
    hashes = _hashes(fields.get("Output hash", ""))
    numbers = {name: _number(fields[field]) for field, name in _NUMBERS.items() if field in fields}
    attributes = dict(common)
    norms = [] if writes_later(name.op_type) else _known(norm for _, norm in hashes[:1])
    if hashes:
        attributes["hash"] = hashes[0][0]
    if norms:
        numbers.setdefault("l1_norm", norms[0])
    if len(hashes) > 1:
        attributes["other_hashes"] = [text for text, _ in hashes[1:]]
    match = _SHAPE.match(fields.get("Shape", ""))
    told: dict[str, Any] = {"attributes": attributes}
    if match:
        told |= {"dtype": match["dtype"] or "", "shape": parse_shape(match["shape"])}
    yield from reported(source, _TITAN_PRECISION, name, numbers, norms, **told)


def _blocks(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    key, fields = "", dict[str, str]()
    for line in text.splitlines():
        if line.startswith("[") and line.rstrip().endswith("]"):
            if key:
                yield key, fields
            key, fields = line.rstrip()[1:-1], {}
        elif key and line.startswith(" "):
            field, _, value = line.strip().partition(":")
            fields[field] = value.strip()
    if key:
        yield key, fields


def _name(key: str) -> TensorName:
    match = _KEY.fullmatch(key)
    if match is None:
        return TensorName(op_type="aten", op_name=key.replace("/", "."), io="output", slot=0)
    module = "" if match["module"] == "<none>" else f"{match['module']}."
    op_name = f"{module}op_{match['number']}_{match['op']}"
    return TensorName(op_type=f"aten.{match['op']}", op_name=op_name, io="output", slot=0)


def _number(text: str) -> float:
    value = _value(text)
    return math.nan if value is None else value


def _known(numbers: Iterable[float | None]) -> list[float]:
    return [number for number in numbers if number is not None]


def _titan_common(fields: Mapping[str, str]) -> dict[str, object]:
    attributes: dict[str, object] = {}
    location = _LOCATION.fullmatch(fields.get("Location", ""))
    if location:
        attributes["location"] = {"file": location["file"][:MAX_TEXT], "line": int(location["line"])}
    if "Phase" in fields:
        attributes["phase"] = fields["Phase"][:MAX_TEXT]
    return attributes


def _hashes(text: str) -> list[tuple[str, float | None]]:
    """Return hashes with their kind as text, and sums of absolute values as numbers: others are whole."""
    parts = (part.strip()[:64] for part in text.split(","))
    sums = ((part, None if _WHOLE.fullmatch(part) else _value(part)) for part in parts if part)
    return [(f"{'xor' if norm is None else 'l1'}:{part}", norm) for part, norm in sums]


_Hash: TypeAlias = int | float | None  # int on its own: it is a hash, and a float is a norm
#: What the file begins with.
HEADER = re.compile(rb'\A\s*\{\s*"format"\s*:\s*"torch\.utils\._debug_mode\.DebugMode\.logs"')
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
    id: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(slots=True)
class _Calls:
    modules: list[tuple[int, str]] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)
    """How many each module has had so far."""
    written_by: dict[str, str] = field(default_factory=dict)
    """The name of the operator that wrote each tensor, by the number that DebugMode gives to tensors."""
    sequence: Iterator[int] = field(default_factory=count)

    def name(self, op: str) -> TensorName:
        path = self.modules[-1][1] if self.modules else ""
        module = path.partition(".")[2]  # the first part is the class of the network
        number = self.operators[module]
        self.operators[module] += 1
        plain = op.rpartition("::")[2].partition(".")[0]
        op_name = f"{module}.op_{number}_{plain}" if module else f"op_{number}_{plain}"
        return TensorName(op_type=f"{op.partition('::')[0] or 'aten'}.{plain}", op_name=op_name)


def read_log(source: str, data: bytes) -> Iterator[ReportedStatistics]:
    """Yield the rows of a log: for each operator its inputs, then its outputs.

    Args:
        source: path of the log. Names of tensors begin with its name: several logs may be of one step.
        data: its content.

    Raises:
        NotDebugMode: it is cut off, or another kind of file.
    """
    calls, net = _Calls(), source.rpartition("/")[2].removesuffix(".json")
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
        operand = name._replace(io=io, slot=slot, sequence=next(calls.sequence))
        yield from _told(source, operand, described, value, attributes)
    # What is only allocated holds anything, too.
    io = "before" if _ALLOCATES.match(name.op_type) else "output"
    for slot, (described, value) in enumerate(_paired(outputs, _leaves(hashes.get("hash")))):
        operand = name._replace(io=io, slot=slot, sequence=next(calls.sequence))
        yield from _told(source, operand, described, value, common)
        if described is not None and described.id:
            calls.written_by[described.id] = name.op_name


def _told(
    source: str, name: TensorName, described: _PrintedTensor | None, value: _Hash, common: Mapping[str, Any]
) -> Iterator[ReportedStatistics]:
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
    told: dict[str, Any] = {"dtype": dtype, "shape": shape, "attributes": attributes}
    yield from reported(source, Precision(), name, numbers, norms, **told)


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
        return [leaf for member in _members(tree) for leaf in _leaves(member, depth + 1)]
    value = tree.get("value")
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return [float(value)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def _members(tree: Mapping[str, Any]) -> Iterable[Any]:
    if tree.get("type") == "dict":
        return _items(tree).values()
    items = tree.get("items")
    return items if isinstance(items, list) else ()


def _items(tree: Any) -> dict[str, Any]:
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


_RowsOfLog: TypeAlias = Callable[[Place, str, bytes], Iterable[ReportedStatistics]]


def _described_logs(
    rows: _RowsOfLog, place: Place, files: Sequence[SourceFile], read: ReadSmall
) -> Description:
    return Description.joined(_described_log(rows, place, file.path, read(file.path)) for file in files)


def _described_log(rows: _RowsOfLog, place: Place, path: str, data: bytes | None) -> Description:
    if data is None:
        return Description(problems=(Problem(path, _UNREADABLE),))
    try:
        return Description(reported=list(rows(place, path, data)))
    except NotDebugMode as exc:
        problem = Problem(path, str(exc), "Its writer was still at work, or died.")
        return Description(problems=(problem,), unfinished=path)


def _te_rows(place: Place, path: str, data: bytes) -> Iterable[ReportedStatistics]:
    above = place.directory.rpartition("/")[0]
    rank, step = int(place.fields["rank"]), int(place.fields["step"])
    tensors = f"{above}/tensor_dumps/rank_{rank}/iter_{step:06d}".lstrip("/")
    return read_te_lines(path, data, tensors)


#: The statistics of TransformerEngine: one log for each rank, with the lines of all iterations.
TRANSFORMER_ENGINE_STATISTICS = Layout(
    name="transformer_engine_statistics",
    file_patterns=(
        parse(
            r"nvdlfw_inspect_statistics_logs/nvdlfw_inspect_{started:(?:\d{8}_\d{6}_)?}globalrank-{rank}.log",
            of_files=True,
        ),
    ),
    step_of_line=TE_LINE,
    systems=(
        System(
            "TransformerEngine, statistics (nvdlfw-inspect)",
            "nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-1.log",
            "lines of statistics",
        ),
    ),
    of_place=partial(_described_logs, _te_rows),
)


#: What nvdlfw-inspect says of its own work: which layers it saw, which features it switched on.
TRANSFORMER_ENGINE_LOGS = Layout(
    name="transformer_engine_logs",
    file_patterns=(
        parse(
            r"nvdlfw_inspect_logs/nvdlfw_inspect_{started:(?:\d{8}_\d{6}_)?}globalrank-{rank}.log",
            of_files=True,
        ),
    ),
    systems=(
        System(
            "TransformerEngine, messages (nvdlfw-inspect)",
            "nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-1.log",
            "kept as files",
        ),
    ),
)


#: The logs of torchtitan's numerics debugging, which do not name their step: step 0.
TITAN_NUMERICS = Layout(
    name="torchtitan_numerics",
    file_patterns=tuple(
        parse(f"{above}rank_{{rank}}_activations.log", of_files=True) for above in ("numerics/", "")
    ),
    implied={"step": "0"},
    content=TITAN_HEADER,
    systems=(
        System("torchtitan, numerics debugging", "numerics/rank_1_activations.log", "statistics and hashes"),
    ),
    of_place=partial(_described_logs, lambda _, path, data: read_titan_log(path, data)),
)


#: The logs of torch's DebugMode, under any name. Those that do not name their step belong to step 0.
DEBUG_MODE = Layout(
    name="debug_mode",
    # Users choose these names: ranks may have zeros in front.
    file_patterns=tuple(
        parse(f"{above}{name}.json", of_files=True)
        for above in ("", "debug_mode/")
        for name in (
            r"{a:(?:.*[._-])?}rank{b:[._-]?}{rank:[0-9]{1,9}}{c:(?:[._-].*)?}step{d:[._-]?}{step}{e:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}step{b:[._-]?}{step}{c:(?:[._-].*)?}rank{d:[._-]?}{rank:[0-9]{1,9}}{e:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}rank{b:[._-]?}{rank:[0-9]{1,9}}{c:(?:[._-].*)?}",
            r"{a:(?:.*[._-])?}step{b:[._-]?}{step}{c:(?:[._-].*)?}",
            r"{log}",
        )
    ),
    implied={"step": "0"},
    content=HEADER,
    systems=(
        System("torch, DebugMode", "eager.json", "hashes, calls"),
        System("torch, DebugMode, with numbers in the name", "eager_rank1_step8.json", "the same"),
    ),
    of_place=partial(
        _described_logs,
        lambda _, path, data: read_log(path, data),
    ),
)
