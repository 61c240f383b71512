"""Tables of statistics that dump systems write, in addition to tensors or instead of them.

There are three kinds, which differ by the names in their headers:

- MindSpore's `statistic.csv` (tensor_stat_dump.cc): one row per tensor, with the columns that the user
  configured. From 2.3 on, data rows end with a comma that the header lacks.
- CANN's `{bin file}.csv` (runtime, dump_task.cpp and adx_dump_record.cpp): one file per operator.
- msProbe native's `statistic.csv` (AclDumpDataProcessor.cpp): like MindSpore's, with a format. In its MD5
  mode the shape is written as `(2,3)` without quotes.

Rows are appended while a step runs, so the last line counts only if it ends with a line feed. A writer may
start another table in the same file, with a new header.

Numbers are C++ output with 6 significant digits. Their meaning differs:

- Counts of elements below and above zero are called "Negative Zero Count" and "Positive Zero Count". If they
  leave out infinities, as MindSpore up to 2.2 does, all counts together are short by exactly these.
- Maximum, minimum and mean leave out NaN and Inf up to MindSpore 2.2; later, and in CANN, these propagate. A
  finite number is the same by both rules; any other is taken for unknown. (A maximum of `nan` does not set a
  NaN count either, because it does not tell how many there are.)
- The device statistics of the 2.3 pre-releases have a fixed set of columns, with 0 for statistics that were
  not requested. There, a 0 is taken for unknown.
- MindSpore 2.3 and later split tensors of 20,000 elements and more. Some releases then report the mean of
  the first part, and lose NaN of the others from maximum and minimum (tensor_summary.cc). The table does not
  show it, so such rows are taken as they are.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from workers.arrays.statistics import COUNT_FIELDS, Statistics

#: Significant decimal digits of every number.
DIGITS = 6
#: At most this many rows of a file are used, of which a step has some ten thousand; and at most this many
#: problems are reported one by one.
MAX_ROWS, _MAX_PROBLEMS = 1_000_000, 20
#: The most columns of a table, of which writers have some thirty: an empty field takes more than its byte.
_MAX_COLUMNS = 256
#: The longest text of a shape, and the longest name of a type or a format, in characters.
_MAX_SHAPE_LENGTH, _MAX_WORD_LENGTH = 1024, 64

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
#: What writers put in place of a number that they do not have.
_NO_NUMBER = frozenset(["", "-", "na", "null"])
_DEVICE_COLUMNS = ("max value", "min value", "avg value", "l2norm value", "count")
_UNKNOWN_ID = 65535


class StatisticRow(NamedTuple):
    """The facts in a table about one tensor; -1 and "" for missing facts.

    A tuple, because a file may have a hundred thousand of them.
    """

    line: int
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
class StatisticTable:
    """The content of one file."""

    rows: tuple[StatisticRow, ...] = ()
    problems: tuple[str, ...] = ()
    """What is wrong with lines that are left out, with their numbers."""
    unfinished: bool = False
    """Whether the file ends within a line, which is left out: its writer is still at work, or died."""


class _MalformedLine(ValueError):
    """A line is not a row of its table."""


class _Columns(NamedTuple):
    width: int
    facts: tuple[tuple[str, int, Callable[[str], Any]], ...]
    """Those that tell of which tensor a row is: field of `StatisticRow`, index, and what parses the text."""
    shape: int
    statistics: Mapping[str, int]
    """The others, by their names in the header."""
    numbers: tuple[int, ...]
    """Those of the others that must be numbers."""
    has_op: bool
    """Whether rows tell the operator, which CANN's do not."""


def parse(data: bytes) -> StatisticTable:
    """Return the rows of a table of any of the three kinds.

    Takes time and memory in proportion to the size of `data`. Never raises.
    """
    rows: list[StatisticRow] = []
    problems: list[str] = []
    left_out = 0
    columns: _Columns | None = None
    for number, line in _lines(data):
        try:
            fields = _split(line)
            if columns is None or fields[0].casefold() in ("op type", "input/output"):
                columns = _columns(fields)
            elif len(rows) == MAX_ROWS:
                problems.append(f"line {number}: more than {MAX_ROWS} rows; the rest is ignored")
                break
            else:
                rows.append(_row(number, fields, columns))
        except _MalformedLine as exc:
            left_out += 1
            if left_out <= _MAX_PROBLEMS:
                problems.append(f"line {number}: {exc}")
            if columns is None:
                break
    if left_out > _MAX_PROBLEMS:
        problems.append(f"{left_out - _MAX_PROBLEMS} more lines are malformed")
    return StatisticTable(tuple(rows), tuple(problems), unfinished=not data.endswith(b"\n"))


def _possible_numbers(row: StatisticRow, names: tuple[str, ...]) -> dict[str, float]:
    """Return the statistics of these columns, without what is not finite, and without negative counts."""
    values = {}
    for name, field in _number_columns(names):
        value = _number(row.columns[name])
        if math.isfinite(value) and not (value < 0 and field in COUNT_FIELDS):
            values[field] = value
    return values


def statistics(row: StatisticRow) -> Statistics:
    """Return the statistics of a row by the definitions of `Statistics`; NaN for those that it lacks."""
    names = tuple(row.columns)
    values = _possible_numbers(row, names)
    if 0.0 in values.values() and tuple(map(str.casefold, names)) == _DEVICE_COLUMNS:
        values = {field: value for field, value in values.items() if value}
    if values.get("count") == 0 and 0 not in row.shape:
        del values["count"]
    if values.get("min", -math.inf) > values.get("max", math.inf):
        # The values from which the writer started its search, in a tensor without any number.
        del values["min"], values["max"]
    return Statistics(**_with_infinities(values))


def checksum(row: StatisticRow) -> str:
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
    # Decoded like the names of files, because some of the fields are compared with these.
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
    try:
        # Line by line, so that an unpaired quote spoils only one line.
        return next(csv.reader((line,)))
    except csv.Error as exc:
        raise _MalformedLine(str(exc)) from exc


def _columns(fields: list[str]) -> _Columns:
    names = [field.strip() for field in fields]
    names = names[:-1] if names[-1] == "" else names
    if len(names) > _MAX_COLUMNS:
        raise _MalformedLine(f"{len(names)} columns; a table of statistics has at most {_MAX_COLUMNS}")
    place: dict[str, int] = {}
    statistics: dict[str, int] = {}
    for index, name in enumerate(names):
        field = _PLACE.get(name.casefold())
        (place if field else statistics).setdefault(field or name, index)
    if missing := [field for field in _NEEDED if field not in place]:
        raise _MalformedLine(f"the header of a table of statistics has no column for {', '.join(missing)}")
    return _Columns(
        len(names),
        tuple((field, place[field], parse_text) for field, parse_text in _FACTS.items() if field in place),
        place["shape"],
        statistics,
        tuple(index for name, index in statistics.items() if name.casefold() in _NUMBERS),
        "op_type" in place,
    )


def _row(number: int, fields: list[str], columns: _Columns) -> StatisticRow:
    if len(fields) != columns.width or fields[columns.shape].startswith("("):
        fields = _aligned(fields, columns)
    for index in columns.numbers:
        _number(fields[index])
    facts = {field: parse_text(fields[index]) for field, index, parse_text in columns.facts}
    return StatisticRow(
        number, columns={name: fields[index] for name, index in columns.statistics.items()}, **facts
    )


def _io(text: str) -> str:
    io = text.lower()
    if io not in ("input", "output"):
        raise _MalformedLine(f"neither input nor output: {io[:40]!r}")
    return io


def _with_whole_shape(fields: list[str], at: int) -> list[str]:
    """Return the fields with the one at `at` as it was before a shape `(2,3)` was split at its commas."""
    if len(fields) <= at or not fields[at].startswith("(") or fields[at].endswith(")"):
        return fields
    end = next((index for index in range(at, len(fields)) if fields[index].endswith(")")), at)
    return [*fields[:at], ",".join(fields[at : end + 1]), *fields[end + 1 :]]


def _aligned(fields: list[str], columns: _Columns) -> list[str]:
    at = columns.shape
    fields = _with_whole_shape(fields, at)
    if len(fields) == columns.width + 1 and fields[-1] == "":
        return fields[:-1]
    if not columns.has_op and set(fields[at + 1 :]) == {"NA"} and len(fields) < columns.width:
        # CANN leaves the count out for types for which it has no statistics.
        return fields + [""] * (columns.width - len(fields))
    if len(fields) != columns.width:
        raise _MalformedLine(f"{len(fields)} fields where the header has {columns.width}")
    return fields


def _integer(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 10**18:
        raise _MalformedLine(f"not a whole number: {text[:40]!r}")
    return number


def _identifier(text: str) -> int:
    number = _integer(text)
    return -1 if number == _UNKNOWN_ID else number


def _word(text: str) -> str:
    # Unlike the name of an operator, which is taken from a file name, it never holds arbitrary bytes.
    if not text.isascii() or len(text) > _MAX_WORD_LENGTH:
        raise _MalformedLine(f"not a type or format: {text[:40]!r}")
    return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        if text.strip().casefold() in _NO_NUMBER:
            return math.nan
        raise _MalformedLine(f"not a number: {text[:40]!r}") from None


@lru_cache(maxsize=1024)
def _shape(text: str) -> tuple[int, ...]:
    if text == "-":  # CANN's word for a scalar
        return ()
    if text.startswith("(") and text.endswith(")"):
        parts = text[1:-1].replace(" ", "").removesuffix(",").split(",")
        parts = [] if parts == [""] else parts
    else:
        parts = text.split("x")
    if len(text) > _MAX_SHAPE_LENGTH or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise _MalformedLine(f"not a shape: {text[:40]!r}")
    return tuple(map(int, parts))


#: The fields of `StatisticRow` that identify the tensor, and how they are parsed.
_FACTS: Mapping[str, Callable[[str], Any]] = {
    "io": _io,
    "slot": _integer,
    "dtype": _word,
    "shape": _shape,
    "op_type": str,
    "op_name": str,
    "task": _identifier,
    "stream": _identifier,
    "timestamp": _integer,
    "format": _word,
    "nbytes": _integer,
}
