"""`dump-ingest watch --explain`: what each step waits for, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.cli.printing import print_json, print_table, say, step_text
from ingest.reader.ranges import format_ranges

if TYPE_CHECKING:
    from ingest.settings import Settings
    from ingest.steps.explain import StepRow


def rows_of_dump(dump: Path, settings: Settings) -> list[StepRow]:
    """Scan a dump once, and return a row for each of its steps."""
    from ingest.wiring.services import explain_steps  # deferred: 0.8 s

    return explain_steps(dump, settings)


def rows_of_watcher(url: str) -> list[StepRow]:
    """Return the rows of a running watcher, from the address at which it serves its metrics."""
    from ingest.service.live_watcher import fetch_steps  # deferred: 0.5 s with the service

    return fetch_steps(url)


def chosen(
    rows: Sequence[StepRow], ranks: Sequence[int] | None, steps: Sequence[int] | None
) -> list[StepRow]:
    """Return the rows of these ranks and steps, or all if none is named."""
    return [row for row in rows if (not ranks or row.rank in ranks) and (not steps or row.step in steps)]


def print_rows(rows: Sequence[StepRow], *, among: Sequence[StepRow] = (), json: bool) -> None:
    """Print rows as a table, with the number of steps in each phase on stderr; or as JSON.

    Args:
        rows: the chosen rows.
        among: all rows, which are named if none is chosen.
        json: whether as JSON.
    """
    if json:
        print_json([asdict(row) for row in rows])
        return
    if not rows:
        say(f"no such step in the dump{_contents(among)}")
        return
    columns = ["rank", "step", "phase", "files", "why"]
    with_source = any(row.source for row in rows)
    print_table(
        [*columns, "dump files"] if with_source else columns,
        [[*_cells(row), *([_source_cell(row)] if with_source else [])] for row in rows],
        right=("files",),
    )
    phases = Counter(row.phase for row in rows)
    say(", ".join(f"{count} {phase}" for phase, count in phases.most_common()))


def _contents(rows: Sequence[StepRow]) -> str:
    if not rows:
        return ""
    ranks = format_ranges({row.rank for row in rows})
    steps = format_ranges({row.step for row in rows if row.step is not None})
    return f", which has ranks {ranks} and steps {steps}"


def _cells(row: StepRow) -> list[str]:
    return [str(row.rank), step_text(row.step), row.phase, str(row.files), row.reason]


def _source_cell(row: StepRow) -> str:
    return f"{row.source}: {row.source_reason}" if row.source else "-"
