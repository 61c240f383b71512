"""The execution order of MindSpore: the operators that a graph runs, and the iterations in which it ran."""

from __future__ import annotations

import re

_HEADER = "NodeExecutionOrder"
_ITERATION = re.compile(rb"\d{1,18}")


def parse_order(data: bytes) -> list[str]:
    """Return the full names in `ms_execution_order_graph_{id}.csv`, in order of execution.

    The file has a header, then one name in each line. Bytes that are not valid UTF-8 are replaced.
    """
    lines = (line.strip() for line in data.decode("utf-8", "replace").split("\n"))
    return [line for line in lines if line and not line.startswith(_HEADER)]


def parse_history(data: bytes) -> list[int]:
    """Return the iterations in `ms_global_execution_order_graph_{id}.csv`: those in which the graph ran.

    The file has one iteration in each line, and does not have a header. Some back ends list only dumped
    iterations. With several ranks, each of them adds a line, so iterations repeat. An iteration in the file
    may be incomplete.
    """
    lines = (line.strip() for line in data.split(b"\n"))
    return [int(line) for line in lines if _ITERATION.fullmatch(line)]
