"""The logs of torchtitan's numerics debugging: statistics and hashes of what each operator wrote.

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

import math
import re
from collections.abc import Iterator, Mapping

from ingest.layouts.logged_statistics import (
    MAX_TEXT,
    LoggedTensor,
    Precision,
    known,
    parse_shape,
    reported,
    writes_later,
)
from workers.dump.model import ReportedStatistics, TensorName

#: What the log begins with.
HEADER = re.compile(rb"\ATotal captured activations: \d+\n")
_PRECISION = Precision(digits=7)
_KEY = re.compile(r"(?P<module>.*)/op_(?P<number>\d+)_(?P<op>.+)", re.DOTALL)
_SHAPE = re.compile(r"torch\.Size\(\[(?P<shape>[\d, ]*)\]\)(?:, Dtype: (?P<dtype>torch\.\w+))?")
_LOCATION = re.compile(r"(?P<file>.+):(?P<line>\d{1,9})")
_WHOLE = re.compile(r"-?\d+")
_NUMBERS = {"L1 norm": "l1_norm", "L2 norm": "l2_norm", "Min": "min", "Max": "max", "Mean": "mean"}


def read_log(source: str, text: str) -> Iterator[ReportedStatistics]:
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
    match = _SHAPE.match(fields.get("Shape", ""))
    shape = parse_shape(match["shape"]) if match else None
    dtype = (match["dtype"] or "") if match else ""
    return LoggedTensor(name, numbers, norms, dtype, shape, attributes)


def _blocks(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the key and the fields of each operator."""
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
