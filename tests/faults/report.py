"""Format the result of a campaign as tables for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tests.faults.campaign import Result
from tests.faults.plan import KINDS, Fault
from tests.faults.recovery import Recovery

#: The largest number of messages that are shown of each kind of failure.
_SHOWN = 20


def as_json(result: Result) -> dict[str, Any]:
    """Return the complete result as a JSON object."""
    return {**asdict(result), "good": result.is_good}


def plan_table(faults: Sequence[Fault]) -> str:
    """Return the schedule with one fault per line."""
    return "\n".join(
        f"{fault.at_s:7.1f} s to {fault.until_s:7.1f} s  {fault.name:20}  victim {fault.victim:2}  "
        f"severity {fault.severity:.3f}"
        for fault in faults
    )


def table(result: Result) -> str:
    """Return the result as tables in Markdown."""
    return "\n".join(
        [
            f"seed {result.seed}, {result.seconds / 60:g} minutes, {len(result.faults)} faults",
            "",
            *_rows_by_kind(result),
            "",
            *_rows_by_component(result.recoveries),
            "",
            *_rows_of_totals(result),
            *_failures(result),
        ]
    )


def _rows_by_kind(result: Result) -> Iterator[str]:
    """Yield a row for each kind of fault that was injected."""
    yield "| Fault | Times | Component back after (mean, longest) | Next commit after (mean, longest) |"
    yield "|---|---:|---:|---:|"
    injected = Counter(fault.name for fault in result.faults)
    for kind in KINDS:
        if injected[kind.name]:
            recoveries = [recovery for recovery in result.recoveries if recovery.fault.name == kind.name]
            well = ", ".join(_mean_and_longest([recovery.well_s for recovery in recoveries]) or "-")
            commit = ", ".join(_mean_and_longest([recovery.commit_s for recovery in recoveries]) or "-")
            yield f"| {kind.name} | {injected[kind.name]} | {well} | {commit} |"


def _rows_by_component(recoveries: Sequence[Recovery]) -> Iterator[str]:
    """Yield a row for each component that had faults."""
    yield "| Component | Faults | Mean time to recover | Longest |"
    yield "|---|---:|---:|---:|"
    for component in dict.fromkeys(kind.component for kind in KINDS):
        times = [recovery.well_s for recovery in recoveries if recovery.fault.component == component]
        if times:
            mean, longest = _mean_and_longest(times) or ("-", "-")
            yield f"| {component} | {len(times)} | {mean} | {longest} |"


def _rows_of_totals(result: Result) -> list[str]:
    verdict = result.verdict
    drained = "not in time" if result.drained_s is None else f"{result.drained_s:.1f} s"
    restarts = ", ".join(f"{name} {count}" for name, count in sorted(result.restarts.items())) or "none"
    return [
        "| What | |",
        "|---|---:|",
        f"| Steps (of one rank) compared | {verdict.steps} |",
        f"| Of them, sharing tensors in the pool | {verdict.pooled} |",
        f"| Files of a hostile rank | {verdict.forged} |",
        f"| Generations of them | {verdict.generations} |",
        f"| Tensors compared, byte for byte | {verdict.tensors} |",
        f"| Files quarantined, each named | {verdict.quarantined} |",
        f"| Files gone from the dump and kept | {verdict.kept} |",
        f"| Files deleted from the dump, all in the store | {verdict.deleted} |",
        f"| Files that arrived after the others were deleted, still in the dump | {verdict.left} |",
        f"| Commits read during faults | {result.commits_seen} |",
        f"| Tensors read in them | {result.tensors_seen} |",
        f"| Backlog drained after | {drained} |",
        f"| Services restarted | {restarts} |",
        f"| **Lost** | **{len(verdict.lost)}** |",
        f"| **Late**, not stored after {result.within_s:g} s | **{len(verdict.late)}** |",
        f"| **Wrong** | **{len(verdict.wrong)}** |",
        f"| **Half visible** | **{len(result.half_visible)}** |",
        f"| **Quarantined without a name or a reason** | **{len(verdict.unnamed)}** |",
        f"| **Disagreements of the consolidated view** | **{len(verdict.view)}** |",
    ]


def _failures(result: Result) -> Iterator[str]:
    """Yield the messages about everything that is wrong, at most `_SHOWN` of each kind."""
    verdict = result.verdict
    messages = {
        "lost": verdict.lost,
        "late": verdict.late,
        "wrong": verdict.wrong,
        "half visible": result.half_visible,
        "quarantined": verdict.unnamed,
        "view": verdict.view,
    }
    for failure, texts in messages.items():
        if texts:
            yield ""
        for text in texts[:_SHOWN]:
            yield f"{failure}: {text}"
        if len(texts) > _SHOWN:
            yield f"{failure}: and {len(texts) - _SHOWN} more"


def _mean_and_longest(times: Sequence[float | None]) -> tuple[str, str] | None:
    """Return mean and maximum of the times that are known, or None if none is."""
    known = [time_s for time_s in times if time_s is not None]
    return (f"{sum(known) / len(known):.1f} s", f"{max(known):.1f} s") if known else None
