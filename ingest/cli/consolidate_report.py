"""What `consolidate` prints of a round."""

from __future__ import annotations

from typing import Any

from ingest.cli.printing import print_json, say
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.reader.ranges import format_ranges
from ingest.reader.text import counted


def say_consolidated(consolidated: StepsConsolidated, consolidator: Consolidator, *, json: bool) -> None:
    """Print what changed in the view, how large the view is, and what the rules found."""
    if json:
        _print_json(consolidated, consolidator)
    else:
        _say_steps(consolidated, consolidator)
    for step in consolidated.findings:
        if total := sum(step.result.totals.values()):
            rules = ", ".join(f"{rule} {count}" for rule, count in step.result.totals.items())
            say(f"step {step.step}: {total} ({rules}); `dump-ingest anomalies`", label="found")
    for reason in consolidated.damaged:
        say(reason, label="damaged", style="bold red")


def _print_json(consolidated: StepsConsolidated, consolidator: Consolidator) -> None:
    state = consolidator.state()
    row: dict[str, Any] = {
        "appended": list(consolidated.appended),
        "rewritten": list(consolidated.rewritten),
        "waiting": list(consolidated.waiting),
        "damaged": list(consolidated.damaged),
        "findings": sum(sum(step.result.totals.values()) for step in consolidated.findings),
    }
    print_json(row | {name: getattr(state, name, 0) for name in ("steps", "ranks", "tensors")})


def _say_steps(consolidated: StepsConsolidated, consolidator: Consolidator) -> None:
    changes = {
        "steps added": consolidated.appended,
        "steps rewritten": consolidated.rewritten,
        "waiting for ranks": consolidated.waiting,
    }
    parts = [f"{change}: {format_ranges(steps)}" for change, steps in changes.items() if steps]
    say("; ".join(parts) or "nothing is new")
    state = consolidator.state()
    if state is not None:
        sizes = ((state.steps, "step"), (state.ranks, "rank"), (state.tensors, "tensor"))
        say(f"the view has {', '.join(counted(count, noun) for count, noun in sizes)}")
