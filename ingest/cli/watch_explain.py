"""`dump-ingest watch --explain`: what each step waits for, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ingest.cli.printing import print_rows, say, step_text
from ingest.reader.ranges import format_ranges

if TYPE_CHECKING:
    from ingest.steps.explain import StepRow


_COLUMNS: dict[str, Callable[[StepRow], str]] = {
    "rank": lambda row: str(row.rank),
    "step": lambda row: step_text(row.step),
    "phase": lambda row: row.phase,
    "files": lambda row: str(row.files),
    "why": lambda row: row.reason,
}


_SOURCE: dict[str, Callable[[StepRow], str]] = {
    "dump files": lambda row: f"{row.source}: {row.source_reason}" if row.source else "-"
}


def _contents(rows: Sequence[StepRow]) -> str:
    if not rows:
        return ""
    ranks = format_ranges({row.rank for row in rows})
    steps = format_ranges({row.step for row in rows if row.step is not None})
    return f", which has ranks {ranks} and steps {steps}"


def print_steps(
    rows: Sequence[StepRow], ranks: Sequence[int] | None, steps: Sequence[int] | None, *, json: bool
) -> None:
    """Print these ranks and steps, or all if none is named, and on stderr how many are in each phase.

    Args:
        rows: the steps of a dump.
        ranks: the ranks to print.
        steps: the steps to print.
        json: whether as JSON.
    """
    chosen = [row for row in rows if (not ranks or row.rank in ranks) and (not steps or row.step in steps)]
    columns = _COLUMNS | (_SOURCE if any(row.source for row in chosen) else {})
    none = f"no such step in the dump{_contents(rows)}"
    print_rows(chosen, columns, as_json=json, none=none, right=("files",))
    if chosen and not json:
        phases = Counter(row.phase for row in chosen)
        say(", ".join(f"{count} {phase}" for phase, count in phases.most_common()))
