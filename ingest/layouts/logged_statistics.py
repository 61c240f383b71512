"""Statistics by the definitions of torch, as logs have them: what they say about the elements of a tensor.

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
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ingest.layouts.pytorch import te_tensor
from workers.arrays.statistics import NON_FINITE_FIELDS, Statistics
from workers.dump.formats.header import MAX_NDIM
from workers.dump.model import ReportedStatistics, TensorName

#: The first part of the label of rows that hold a statistic.
STATISTIC_IO = "statistic"
#: Each tensor of an operator keeps what a log says of the operator: this many characters of a text at most.
MAX_TEXT = 1000
#: Collectives that return before their output is written: what is hashed then is what was in its memory.
_WRITES_LATER = re.compile(r"all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast")
_COLUMNS = ("min", "max", "mean", "std", "l2_norm")


@dataclass(frozen=True, slots=True)
class LoggedTensor:
    """One tensor, as a log describes it."""

    name: TensorName
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Statistics by name: `min`, `max`, `mean`, `std`, `l2_norm`, and others."""
    norms: Sequence[float] = ()
    """Norms, or sums of absolute values, which tell NaN and infinities but have no row."""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tensor: str = ""
    """Path of the file that holds it, if the dump may have one."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How the numbers of a log were printed."""

    digits: int = 15
    decimals: int = -1
    std_is_of_sample: bool = False


def reported(source: str, logged: LoggedTensor, precision: Precision) -> Iterator[ReportedStatistics]:
    """Yield the row of a tensor, and those of its statistics that have no column.

    Args:
        source: path of the log.
        logged: what it says.
        precision: of its numbers.
    """
    statistics = statistics_of(logged.numbers, logged.norms, logged.shape)
    yield ReportedStatistics(
        source=source,
        name=logged.name,
        dtype=logged.dtype,
        shape=logged.shape or (),
        statistics=statistics,
        tensor=logged.tensor,
        digits=precision.digits,
        decimals=precision.decimals,
        counts_are_least=True,
        std_is_of_sample=precision.std_is_of_sample,
        attributes=_attributes(logged, precision),
    )
    for number_name, value in logged.numbers.items():
        if number_name not in _COLUMNS:
            io = f"{STATISTIC_IO}.{logged.name.io}.{number_name}"
            yield number_row(source, logged.name._replace(io=io), value, precision)


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


def _attributes(logged: LoggedTensor, precision: Precision) -> str:
    attributes = dict(logged.attributes)
    if precision.decimals >= 0:
        attributes["decimals"] = precision.decimals
    not_finite = {name: str(value) for name, value in logged.numbers.items() if not math.isfinite(value)}
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


def known(*numbers: float | None) -> list[float]:
    """Return the numbers that are known."""
    return [number for number in numbers if number is not None]


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
        logged = LoggedTensor(
            name,
            values,
            [values[norm] for norm in _NORMS if norm in values],
            tensor=f"{tensors}/{_IN_FILE_NAMES.sub('_', layer)}_{tensor}.pt",
        )
        yield from reported(source, logged, TE_PRECISION)
    for sequence, (text, value) in enumerate(single.items(), len(numbers)):
        name = TensorName(op_type="Scalar", op_name=text, io="value", slot=0, sequence=sequence)
        yield number_row(source, name, value, TE_PRECISION)


def _in_order(numbers: dict[_Key, dict[str, float]]) -> list[tuple[_Key, dict[str, float]]]:
    """Return the tensors in order of execution: the log lists layers as they run forward."""
    forward = [item for item in numbers.items() if item[0][1] not in _BACKWARD]
    backward = [item for item in numbers.items() if item[0][1] in _BACKWARD]
    place = {layer: number for number, (layer, _) in enumerate(numbers)}
    return forward + sorted(backward, key=lambda item: -place[item[0][0]])


def _value(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


#: What the log begins with.
TITAN_HEADER = re.compile(rb"\ATotal captured activations: \d+\n")
_PRECISION = Precision(digits=7)
_KEY = re.compile(r"(?P<module>.*)/op_(?P<number>\d+)_(?P<op>.+)", re.DOTALL)
_SHAPE = re.compile(r"torch\.Size\(\[(?P<shape>[\d, ]*)\]\)(?:, Dtype: (?P<dtype>torch\.\w+))?")
_LOCATION = re.compile(r"(?P<file>.+):(?P<line>\d{1,9})")
_WHOLE = re.compile(r"-?\d+")
_NUMBERS = {"L1 norm": "l1_norm", "L2 norm": "l2_norm", "Min": "min", "Max": "max", "Mean": "mean"}


def read_titan_log(source: str, text: str) -> Iterator[ReportedStatistics]:
    """Yield the rows of a log: for each operator its inputs, of which it has only hashes, and its output."""
    sequence = 0
    for key, fields in _blocks(text):
        name = _name(key[:MAX_TEXT])
        producers = fields.get("Input producers", "").split(";")
        hashes = _hashes(fields.get("Input hashes", ""))
        common = _common(fields)
        for slot, (hash_text, norm) in enumerate(hashes):
            producer = producers[slot].strip() if slot < len(producers) else ""
            attributes = {"hash": hash_text, **common}
            if producer:
                attributes["produced_by"] = _name(producer).op_name
            operand = name._replace(io="input", slot=slot, sequence=sequence)
            logged = LoggedTensor(operand, norms=known(norm), attributes=attributes)
            yield from reported(source, logged, _PRECISION)
            sequence += 1
        if "Shape" in fields or "Output hash" in fields:
            yield from reported(source, _output(name._replace(sequence=sequence), fields, common), _PRECISION)
            sequence += 1


def _dtype_and_shape(text: str) -> tuple[str, tuple[int, ...] | None]:
    match = _SHAPE.match(text)
    return (match["dtype"] or "", parse_shape(match["shape"])) if match else ("", None)


def _output(name: TensorName, fields: Mapping[str, str], common: Mapping[str, object]) -> LoggedTensor:
    hashes = _hashes(fields.get("Output hash", ""))
    numbers = {_NUMBERS[field]: _number(fields[field]) for field in _NUMBERS if field in fields}
    attributes = dict(common)
    norms = [] if writes_later(name.op_type) else known(*(norm for _, norm in hashes[:1]))
    if hashes:
        attributes["hash"] = hashes[0][0]
    if norms:
        numbers.setdefault("l1_norm", norms[0])
    if len(hashes) > 1:
        attributes["other_hashes"] = [text for text, _ in hashes[1:]]
    dtype, shape = _dtype_and_shape(fields.get("Shape", ""))
    return LoggedTensor(name, numbers, norms, dtype, shape, attributes)


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


def _common(fields: Mapping[str, str]) -> dict[str, object]:
    attributes: dict[str, object] = {}
    location = _LOCATION.fullmatch(fields.get("Location", ""))
    if location:
        attributes["location"] = {"file": location["file"][:MAX_TEXT], "line": int(location["line"])}
    if "Phase" in fields:
        attributes["phase"] = fields["Phase"][:MAX_TEXT]
    return attributes


def _hashes(text: str) -> list[tuple[str, float | None]]:
    """Return hashes with their kind as text, and the sums among them as numbers."""
    parts = (part.strip()[:64] for part in text.split(","))
    return [
        (f"{'l1' if norm is not None else 'xor'}:{part}", norm)
        for part in parts
        if part
        for norm in [_sum(part)]
    ]


def _sum(text: str) -> float | None:
    """Return a sum of absolute values; None for a hash of another kind, which is a whole number."""
    if _WHOLE.fullmatch(text):
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
