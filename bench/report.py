"""The output of a run: printed tables, JSON, and Markdown for the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.measure import HEADINGS, Measure, Table

Part = tuple[str, list[Measure | Table]]


def text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a terminal."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def measures(parts: Iterable[Part]) -> list[Measure]:
    """Return the measures of all parts."""
    return [figure for _, figures in parts for figure in figures if isinstance(figure, Measure)]


def tables(parts: Iterable[Part]) -> list[Table]:
    """Return the tables of all parts."""
    return [figure for _, figures in parts for figure in figures if isinstance(figure, Table)]


def print_all(parts: Sequence[Part]) -> None:
    """Print every figure, and how many floors are reached."""
    compared = measures(parts)
    if compared:
        print(text(HEADINGS, [measure.row() for measure in compared]))
    for table in tables(parts):
        print(f"\n{table.title}\n{text(table.columns, table.rows)}")
        if table.note:
            print(table.note)
    floors = [measure.reached for measure in compared if measure.reached is not None]
    if floors:
        print(f"\n{sum(floors)} of {len(floors)} floors reached.")


def write_json(path: Path, run: dict[str, Any], machine: dict[str, Any], parts: Sequence[Part]) -> None:
    """Write all figures, with the figures of each round."""
    document = {
        "run": run,
        "machine": machine,
        "parts": {name: [figure.to_json() for figure in figures] for name, figures in parts},
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def write_markdown(path: Path, words: str, parts: Sequence[Part]) -> None:
    """Write the tables of the documentation."""
    blocks = [words]
    if compared := measures(parts):
        blocks.append(markdown(HEADINGS, [measure.row() for measure in compared]))
    for table in tables(parts):
        blocks += [f"**{table.title}**", markdown(table.columns, table.rows)]
        if table.note:
            blocks.append(table.note)
    path.write_text("\n\n".join(blocks) + "\n", "utf-8")
