"""Format the figures of several trees side by side, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tests.structure.measures import FIGURES, LISTS, Figure, Measured
from tests.structure.revisions import WORKING_TREE


def title(revision: str) -> str:
    """Return the heading of the column of a revision."""
    return "working tree" if revision == WORKING_TREE else revision


def as_json(columns: Mapping[str, Measured]) -> dict[str, Any]:
    """Return all figures and lists by column."""
    return {name: asdict(measured) for name, measured in columns.items()}


def markdown(columns: Mapping[str, Measured]) -> str:
    """Return the table, then the lists of each column."""
    return "\n".join([*_table(columns), *_lists(columns)])


def _table(columns: Mapping[str, Measured]) -> list[str]:
    rows = [
        _row([name, *(_cell(measured.figures[name]) for measured in columns.values())]) for name in FIGURES
    ]
    return [_row(["Figure", *columns]), _row(["---", *("---:" for _ in columns)]), *rows]


def _lists(columns: Mapping[str, Measured]) -> list[str]:
    lines = []
    for name in LISTS:
        for column, measured in columns.items():
            members = measured.lists[name] or ["none"]
            lines += ["", f"## {name}: {column}", "", *(f"- {member}" for member in members)]
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(figure: Figure) -> str:
    if isinstance(figure, list):
        sizes = f" ({', '.join(map(str, figure))})" if figure else ""
        return f"{len(figure)}{sizes}"
    if isinstance(figure, dict):
        return ", ".join(f"{name} {count}" for name, count in figure.items())
    return f"{figure:,}"
