"""`dump-ingest watch --explain`: what each step waits for, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ingest.questions.question import Rows
from ingest.reader.choice import format_ranges

if TYPE_CHECKING:
    from ingest.steps.explain import StepRow


_COLUMNS: Mapping[str, Callable[[Any], object]] = {
    "rank": attrgetter("rank"),
    "step": lambda row: "run" if row.step is None else row.step,
    "phase": attrgetter("phase"),
    "files": attrgetter("files"),
    "why": attrgetter("reason"),
}
_SOURCE: Mapping[str, Callable[[Any], object]] = {
    "dump files": lambda row: f"{row.source}: {row.source_reason}" if row.source else "-"
}


def _contents(rows: Sequence[StepRow]) -> str:
    if not rows:
        return ""
    ranks = format_ranges({row.rank for row in rows})
    steps = format_ranges({row.step for row in rows if row.step is not None})
    return f", which has ranks {ranks} and steps {steps}"


def explained(
    rows: Sequence[StepRow], ranks: Sequence[int] | None = None, steps: Sequence[int] | None = None
) -> Rows:
    """Return these ranks and steps, or all if none is named, and how many are in each phase.

    Args:
        rows: the steps of a dump.
        ranks: the ranks to show.
        steps: the steps to show.
    """
    chosen = [row for row in rows if (not ranks or row.rank in ranks) and (not steps or row.step in steps)]
    phases = Counter(row.phase for row in chosen)
    return Rows(
        "",
        chosen,
        {**_COLUMNS, **(_SOURCE if any(row.source for row in chosen) else {})},
        right=("files",),
        none=f"no such step in the dump{_contents(rows)}",
        headline=", ".join(f"{count} {phase}" for phase, count in phases.most_common()),
    )
