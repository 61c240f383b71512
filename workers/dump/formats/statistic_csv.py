"""Tables of statistics that dump systems write, beside tensors or in place of them.

Three kinds, told apart by the names in their headers:

- MindSpore's `statistic.csv` (tensor_stat_dump.cc): one row per tensor, the columns as configured. From 2.3
  on data rows end with a comma that the header lacks.
- CANN's `{bin file}.csv` (runtime, dump_task.cpp and adx_dump_record.cpp): one file per operator.
- msProbe native's `statistic.csv` (AclDumpDataProcessor.cpp): as MindSpore's, with a format; in its MD5 mode
  the shape is written as `(2,3)` without quotes.

Rows are appended while a step runs, so the last line counts only with its line feed. The writers may begin a
table anew in the same file, with another header.

Numbers are C++ output with 6 significant digits. What they mean differs:

- Counts of elements below and above zero are called "Negative Zero Count" and "Positive Zero Count". Where
  they leave out infinities, as MindSpore up to 2.2 does, all counts together are short by just these.
- Maximum, minimum and mean leave out NaN and Inf up to MindSpore 2.2; later, and in CANN, these propagate. A
  finite number is the same by both rules; another one is taken for unknown. (Also a maximum of `nan` sets no
  NaN count: how many there are, it does not tell.)
- The device statistics of the 2.3 pre-releases have a fixed set of columns and a 0 for what was not asked
  for: there, a 0 is taken for unknown.
- MindSpore 2.3 and later split tensors of 20,000 elements and more, and some releases then report the mean of
  the first part, and lose NaN of the others from maximum and minimum (tensor_summary.cc). Nothing in the
  table tells, so it is taken as it stands.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from workers.arrays.statistics import COUNT_FIELDS, Statistics

#: Significant decimal digits of every number.
DIGITS = 6
#: Rows that are used of one file; a step has some ten thousand tensors.
MAX_ROWS = 1_000_000
#: Problems that are told of one file.
_MAX_PROBLEMS = 20
#: A shape is shorter, in characters.
_MAX_SHAPE_LENGTH = 1024
#: And so are the names of types and formats.
_MAX_WORD_LENGTH = 64

_PLACE = {
    "op type": "op_type",
    "op name": "op_name",
    "task id": "task",
    "stream id": "stream",
    "timestamp": "timestamp",
    "io": "io",
    "input/output": "io",
    "slot": "slot",
    "index": "slot",
    "data size": "nbytes",
    "data type": "dtype",
    "format": "format",
    "shape": "shape",
}
_NEEDED = ("io", "slot", "dtype", "shape")
_NUMBERS = {
    "max value": "max",
    "min value": "min",
    "avg value": "mean",
    "count": "count",
    "negative zero count": "negative_count",
    "positive zero count": "positive_count",
    "nan count": "nan_count",
    "negative inf count": "neg_inf_count",
    "positive inf count": "pos_inf_count",
    "zero count": "zero_count",
    "l2 value": "l2_norm",
    "l2norm value": "l2_norm",
    "l2norm": "l2_norm",
}
_DIGESTS = {"md5": "md5", "md5 value": "md5", "sha1": "sha1", "sha1 value": "sha1"}
_DIGEST_LENGTH = {"md5": 32, "sha1": 40}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
#: What stands for a number that there is not.
_NO_NUMBER = frozenset(["", "-", "na", "null"])
_DEVICE_COLUMNS = ("max value", "min value", "avg value", "l2norm value", "count")
_UNKNOWN_ID = 65535


class Row(NamedTuple):
    """What a table says of one tensor. -1 and "" where it does not.

    A tuple, for a file may have a hundred thousand of them.
    """

    line: int
    """Number of the line in the file, from 1."""
    io: str
    """`input` or `output`."""
    slot: int
    dtype: str
    """As the table spells it: `float32`, `DT_FLOAT`."""
    shape: tuple[int, ...]
    columns: Mapping[str, str]
    """The statistics, as text, by the names in the header."""
    op_type: str = ""
    op_name: str = ""
    task: int = -1
    stream: int = -1
    timestamp: int = -1
    """Microseconds since the epoch."""
    format: str = ""
    nbytes: int = -1


@dataclass(frozen=True, slots=True)
class Table:
    """What one file says."""

    rows: tuple[Row, ...] = ()
    problems: tuple[str, ...] = ()
    """What is wrong with lines that are left out, with their numbers."""
    unfinished: bool = False
    """Whether the file ends within a line, which is left out: its writer is at work, or died."""


class _Malformed(ValueError):
    """One line is no row of its table."""


@dataclass(frozen=True, slots=True)
class _Header:
    """Which column is what."""

    length: int
    place: Mapping[str, int]
    """Indices of the columns that tell which tensor a row is of, by the fields of `Row`."""
    names: tuple[str, ...]
    """The names of the other columns."""
    texts: Callable[[list[str]], tuple[str, ...]]
    """Takes the fields of those out of a row."""
    numbers: Callable[[list[str]], tuple[str, ...]]
    """Takes those that are numbers out of a row."""


def parse(data: bytes) -> Table:
    """Return the rows of a table of any of the three kinds.

    Takes time and memory in proportion to the size of `data`. Raises nothing.
    """
    rows: list[Row] = []
    problems: list[str] = []
    left_out = 0
    header: _Header | None = None
    for number, line in _lines(data):
        try:
            fields = _split(line)
            if header is None or fields[0].casefold() in ("op type", "input/output"):
                header = _header(fields)
            elif len(rows) == MAX_ROWS:
                problems.append(f"line {number}: more than {MAX_ROWS} rows; the rest is not used")
                break
            else:
                rows.append(_row(number, fields, header))
        except _Malformed as exc:
            left_out += 1
            if left_out <= _MAX_PROBLEMS:
                problems.append(f"line {number}: {exc}")
            if header is None:
                break
    if left_out > _MAX_PROBLEMS:
        problems.append(f"{left_out - _MAX_PROBLEMS} more lines are malformed")
    return Table(tuple(rows), tuple(problems), unfinished=not data.endswith(b"\n"))


def statistics(row: Row) -> Statistics:
    """Return the statistics of a row by the definitions of `Statistics`, NaN where it tells nothing."""
    values = {}
    names = tuple(row.columns)
    for name, field in _number_columns(names):
        value = _number(row.columns[name])
        if math.isfinite(value) and not (value < 0 and field in COUNT_FIELDS):
            values[field] = value
    if 0.0 in values.values() and tuple(map(str.casefold, names)) == _DEVICE_COLUMNS:
        values = {field: value for field, value in values.items() if value}
    if values.get("count") == 0 and 0 not in row.shape:
        del values["count"]
    if values.get("min", -math.inf) > values.get("max", math.inf):
        # Where they began to look for the least and the greatest, and found no number.
        del values["min"], values["max"]
    return Statistics(**_with_infinities(values))


def checksum(row: Row) -> str:
    """Return the digest of the tensor's bytes with its kind, `md5:...`; "" if there is none."""
    for name, text in row.columns.items():
        kind = _DIGESTS.get(name.casefold())
        if kind and len(text) == _DIGEST_LENGTH[kind] and set(text) <= _HEXADECIMAL:
            return f"{kind}:{text.lower()}"
    return ""


@lru_cache(maxsize=16)
def _number_columns(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, field) for name in names if (field := _NUMBERS.get(name.casefold())))


def _with_infinities(values: dict[str, float]) -> dict[str, float]:
    parts = ("nan_count", "zero_count", "negative_count", "positive_count")
    negative, positive = values.get("neg_inf_count", 0), values.get("pos_inf_count", 0)
    if not (negative or positive) or any(part not in values for part in (*parts, "count")):
        return values
    if values["count"] - sum(values[part] for part in parts) != negative + positive:
        return values
    return values | {
        "negative_count": values["negative_count"] + negative,
        "positive_count": values["positive_count"] + positive,
    }


def _lines(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield each line that ends with a line feed and is not empty, with its number from 1."""
    # As the names of files are decoded, to which some of the fields are compared.
    text = data.decode("utf-8-sig", "surrogateescape")
    start, number = 0, 0
    while (end := text.find("\n", start)) >= 0:
        number += 1
        line = text[start:end].removesuffix("\r")
        if line:
            yield number, line
        start = end + 1


def _split(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    before, _, rest = line.partition('"')
    quoted, _, after = rest.partition('"')
    if before.endswith(",") and after.startswith(",") and '"' not in after:
        return [*before[:-1].split(","), quoted, *after[1:].split(",")]
    try:
        # Line by line, so that a quote without its fellow spoils one line only.
        return next(csv.reader((line,)))
    except csv.Error as exc:
        raise _Malformed(str(exc)) from exc


def _header(fields: list[str]) -> _Header:
    names = [field.strip() for field in fields]
    if names[-1] == "":
        names.pop()
    place: dict[str, int] = {}
    others: dict[str, int] = {}
    for index, name in enumerate(names):
        field = _PLACE.get(name.casefold())
        if field is None:
            others.setdefault(name, index)
        else:
            place.setdefault(field, index)
    if missing := [field for field in _NEEDED if field not in place]:
        raise _Malformed(f"the header of a table of statistics has no column for {', '.join(missing)}")
    numbers = [index for name, index in others.items() if name.casefold() in _NUMBERS]
    return _Header(len(names), place, tuple(others), _picker(list(others.values())), _picker(numbers))


def _picker(indices: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda fields: tuple(fields[index] for index in indices)


def _row(number: int, fields: list[str], header: _Header) -> Row:
    at = header.place
    if len(fields) != header.length or fields[at["shape"]].startswith("("):
        fields = _aligned(fields, header)
    _check_numbers(header.numbers(fields))
    io = fields[at["io"]].lower()
    if io not in ("input", "output"):
        raise _Malformed(f"neither input nor output: {io[:40]!r}")
    return Row(
        number,
        io,
        _integer(fields[at["slot"]]),
        _word(fields[at["dtype"]]),
        _shape(fields[at["shape"]]),
        dict(zip(header.names, header.texts(fields), strict=True)),
        fields[at["op_type"]] if "op_type" in at else "",
        fields[at["op_name"]] if "op_name" in at else "",
        _identifier(fields[at["task"]]) if "task" in at else -1,
        _identifier(fields[at["stream"]]) if "stream" in at else -1,
        _integer(fields[at["timestamp"]]) if "timestamp" in at else -1,
        _word(fields[at["format"]]) if "format" in at else "",
        _integer(fields[at["nbytes"]]) if "nbytes" in at else -1,
    )


def _aligned(fields: list[str], header: _Header) -> list[str]:
    """Return as many fields as the header has, where it is clear how."""
    at = header.place["shape"]
    if len(fields) > at and fields[at].startswith("(") and not fields[at].endswith(")"):
        end = next((n for n in range(at, len(fields)) if fields[n].endswith(")")), at)
        fields = [*fields[:at], ",".join(fields[at : end + 1]), *fields[end + 1 :]]
    if len(fields) == header.length + 1 and fields[-1] == "":
        return fields[:-1]
    if "op_type" not in header.place and set(fields[at + 1 :]) == {"NA"} and len(fields) < header.length:
        # CANN leaves the count out for types of which it has no statistics.
        return fields + [""] * (header.length - len(fields))
    if len(fields) != header.length:
        raise _Malformed(f"{len(fields)} fields where the header has {header.length}")
    return fields


def _integer(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 10**18:
        raise _Malformed(f"no whole number: {text[:40]!r}")
    return number


def _identifier(text: str) -> int:
    number = _integer(text)
    return -1 if number == _UNKNOWN_ID else number


def _word(text: str) -> str:
    # Unlike the names of operators, which are those of files, it never holds arbitrary bytes.
    if not text.isascii() or len(text) > _MAX_WORD_LENGTH:
        raise _Malformed(f"no type or format: {text[:40]!r}")
    return text


def _check_numbers(texts: tuple[str, ...]) -> None:
    try:
        list(map(float, texts))
    except ValueError:
        for text in texts:
            _number(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        if text.strip().casefold() in _NO_NUMBER:
            return math.nan
        raise _Malformed(f"no number: {text[:40]!r}") from None


def _shape(text: str) -> tuple[int, ...]:
    if len(text) > _MAX_SHAPE_LENGTH:
        raise _Malformed(f"no shape: {text[:40]!r}")
    return _short_shape(text)


@lru_cache(maxsize=1024)
def _short_shape(text: str) -> tuple[int, ...]:
    if text == "-":  # CANN's word for a scalar
        return ()
    if text.startswith("(") and text.endswith(")"):
        parts = text[1:-1].replace(" ", "").removesuffix(",").split(",")
        parts = [] if parts == [""] else parts
    else:
        parts = text.split("x")
    if not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise _Malformed(f"no shape: {text[:40]!r}")
    return tuple(map(int, parts))
