"""MindSpore's execution order: which operators a graph runs, and in which iterations it ran."""

from __future__ import annotations

import re

_HEADER = "NodeExecutionOrder"
_ITERATION = re.compile(rb"\d{1,18}")


def parse_order(data: bytes) -> list[str]:
    """Return the full names of `ms_execution_order_graph_{id}.csv`, in order of execution.

    One name a line, below a header; text that is no UTF-8 comes through with replacement characters.
    """
    lines = (line.strip() for line in data.decode("utf-8", "replace").split("\n"))
    return [line for line in lines if line and not line.startswith(_HEADER)]


def parse_history(data: bytes) -> list[int]:
    """Return the iterations of `ms_global_execution_order_graph_{id}.csv`, in which the graph ran.

    One a line, without a header. On some back ends only dumped ones, and with several ranks once for each: so
    they repeat. It marks no iteration as complete.
    """
    lines = (line.strip() for line in data.split(b"\n"))
    return [int(line) for line in lines if _ITERATION.fullmatch(line)]
