r"""Names of CANN's dump files: `{op_type}.{op_name}.{task}.{stream}.{timestamp}`, without extension.

The CANN runtime builds them (dump_task.cpp), and replaces `.`, `/`, `\` and space in both names by `_`, so
that a dot always separates two fields. Other forms:

- without the stream: releases of 2021, and exception dumps, whose time may be `YYYYMMDDHHMMSSmmm`;
- `exception_info.{stream}.{task}.{time}`: an exception whose operator is not known;
- `....{task_type}.{context}.{thread}[.{device}]` at the end: FFTS+, where each thread of an operator dumps a
  slice. The thread becomes part of the operator's name, `{op_name}.thread_{thread}`, after a dot that no
  other name contains: so two slices are never taken for two dumps of one tensor.
- `{api}_{sequence}_L2.{api}...` and `{api}_{sequence}_L0.{kernel}...`: single operators (op_dfx), where the
  call comes first and its kind second. Here they are exchanged, so that `op_type` is always the kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from workers.dump.model import TensorName

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
        timestamp=_microseconds(numbers[at]),
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


def _microseconds(text: str) -> int:
    """Return microseconds since the epoch; for a date, which is local time, as if it were UTC."""
    if len(text) == 17:
        try:
            date = datetime.strptime(text[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        except ValueError:
            return int(text)
        return int(date.timestamp()) * 1_000_000 + int(text[14:]) * 1000
    return int(text)
