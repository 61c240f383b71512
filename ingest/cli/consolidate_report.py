"""What `consolidate` prints of a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.cli.printing import print_json, say
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.reader.choice import format_ranges
from ingest.reader.text import counted

if TYPE_CHECKING:
    from workers.store.consolidated.cubes import CubeState

_LISTS = ("appended", "rewritten", "waiting", "damaged")


def say_consolidated(consolidated: StepsConsolidated, consolidator: Consolidator, *, json: bool) -> None:
    """Print what changed in the view, how large the view is, and what the rules found."""
    state = consolidator.state()
    if json:
        _print_json(consolidated, state)
    else:
        _say_steps(consolidated, state)
    for step in consolidated.findings:
        if total := sum(step.result.totals.values()):
            rules = ", ".join(f"{rule} {count}" for rule, count in step.result.totals.items())
            say(f"step {step.step}: {total} ({rules}); `dump-ingest anomalies`", label="found")
    for reason in consolidated.damaged:
        say(reason, label="damaged", style="bold red")


def _print_json(consolidated: StepsConsolidated, state: object) -> None:
    findings = sum(sum(step.result.totals.values()) for step in consolidated.findings)
    lists = {name: list(getattr(consolidated, name)) for name in _LISTS}
    sizes = {name: getattr(state, name, 0) for name in ("steps", "ranks", "tensors")}
    print_json({**lists, "findings": findings, **sizes})


def _say_steps(consolidated: StepsConsolidated, state: CubeState | None) -> None:
    changes = {
        "steps added": consolidated.appended,
        "steps rewritten": consolidated.rewritten,
        "waiting for ranks": consolidated.waiting,
    }
    parts = [f"{change}: {format_ranges(steps)}" for change, steps in changes.items() if steps]
    say("; ".join(parts) or "nothing is new")
    if state is not None:
        sizes = ((state.steps, "step"), (state.ranks, "rank"), (state.tensors, "tensor"))
        say(f"the view has {', '.join(counted(count, noun) for count, noun in sizes)}")
