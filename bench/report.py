"""What a run prints and writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.measure import HEADINGS, Measure, Table

Part = tuple[str, list[Measure | Table]]


def text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in columns."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for the docs."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def measures(parts: Iterable[Part]) -> list[Measure]:
    """Return all measures of all parts."""
    return [found for _, items in parts for found in items if isinstance(found, Measure)]


def tables(parts: Iterable[Part]) -> list[Table]:
    """Return all tables of all parts."""
    return [found for _, items in parts for found in items if isinstance(found, Table)]


def print_all(parts: Sequence[Part]) -> None:
    """Print every figure."""
    if found := measures(parts):
        print(text(HEADINGS, [one.row() for one in found]))
    for table in tables(parts):
        print(f"\n{table.title}\n{text(table.columns, table.rows)}")
        if table.note:
            print(table.note)
    floors = [one.reached for one in measures(parts) if one.reached is not None]
    if floors:
        print(f"\n{sum(floors)} of {len(floors)} floors reached.")


def write_json(path: Path, run: dict[str, Any], machine: dict[str, Any], parts: Sequence[Part]) -> None:
    """Write every round of everything."""
    document = {
        "run": run,
        "machine": machine,
        "parts": {name: [found.to_json() for found in items] for name, items in parts},
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def write_markdown(path: Path, words: str, parts: Sequence[Part]) -> None:
    """Write the tables as they go into the docs."""
    blocks = [words]
    if found := measures(parts):
        blocks.append(markdown(HEADINGS, [one.row() for one in found]))
    for table in tables(parts):
        blocks += [f"**{table.title}**", markdown(table.columns, table.rows)]
        if table.note:
            blocks.append(table.note)
    path.write_text("\n\n".join(blocks) + "\n", "utf-8")
