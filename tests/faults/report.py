"""What a campaign came to, as a table for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.faults.campaign import Result
from tests.faults.plan import KINDS, Fault
from tests.faults.recovery import Recovery

#: How many of what is wrong are shown.
_SHOWN = 20


def as_json(result: Result) -> dict[str, Any]:
    """Return all there is to know."""
    return {**asdict(result), "good": result.is_good}


def plan_table(faults: Sequence[Fault]) -> str:
    """Return the schedule, one fault in a line."""
    return "\n".join(
        f"{fault.at_s:7.1f} s to {fault.until_s:7.1f} s  {fault.name:20}  victim {fault.victim:2}  "
        f"severity {fault.severity:.3f}"
        for fault in faults
    )


def table(result: Result) -> str:
    """Return the tables in Markdown."""
    verdict = result.verdict
    injected = Counter(fault.name for fault in result.faults)
    lines = [
        f"seed {result.seed}, {result.seconds / 60:g} minutes, {len(result.faults)} faults",
        "",
        "| Fault | Times | Component well after (mean, longest) | Next commit after (mean, longest) |",
        "|---|---:|---:|---:|",
    ]
    for kind in KINDS:
        if injected[kind.name]:
            of = [one for one in result.recoveries if one.fault.name == kind.name]
            lines.append(f"| {kind.name} | {injected[kind.name]} | {_well(of)} | {_commit(of)} |")
    lines += ["", "| Component | Faults | Mean time to recover | Longest |", "|---|---:|---:|---:|"]
    for component in dict.fromkeys(kind.component for kind in KINDS):
        of = [one for one in result.recoveries if one.fault.component == component]
        times = [one.well_s for one in of if one.well_s is not None]
        if of:
            mean, most = (f"{sum(times) / len(times):.1f} s", f"{max(times):.1f} s") if times else ("-", "-")
            lines.append(f"| {component} | {len(of)} | {mean} | {most} |")
    drained = "not in time" if result.drained_s is None else f"{result.drained_s:.1f} s"
    restarts = ", ".join(f"{name} {count}" for name, count in sorted(result.restarts.items())) or "none"
    lines += [
        "",
        "| What | |",
        "|---|---:|",
        f"| Steps (of one rank) compared | {verdict.steps} |",
        f"| Generations of them | {verdict.generations} |",
        f"| Tensors compared, byte for byte | {verdict.tensors} |",
        f"| Files quarantined, each named | {verdict.quarantined} |",
        f"| Files gone from the dump and kept | {verdict.kept} |",
        f"| Files deleted from the dump, all in the store | {verdict.deleted} |",
        f"| Files that came after the others were deleted, still in the dump | {verdict.left} |",
        f"| Commits read while faults were going on | {result.commits_seen} |",
        f"| Tensors read in them | {result.tensors_seen} |",
        f"| Backlog drained after | {drained} |",
        f"| Services started again | {restarts} |",
        f"| **Lost** | **{len(verdict.lost)}** |",
        f"| **Wrong** | **{len(verdict.wrong)}** |",
        f"| **Half visible** | **{len(result.half_visible)}** |",
        f"| **Quarantined without a name or a reason** | **{len(verdict.unnamed)}** |",
        f"| **Disagreements of the consolidated view** | **{len(verdict.view)}** |",
    ]
    named = {
        "lost": verdict.lost,
        "wrong": verdict.wrong,
        "half visible": result.half_visible,
        "quarantined": verdict.unnamed,
        "view": verdict.view,
    }
    for what, found in named.items():
        lines += ["", *(f"{what}: {one}" for one in found[:_SHOWN])] if found else []
        if len(found) > _SHOWN:
            lines.append(f"{what}: and {len(found) - _SHOWN} more")
    return "\n".join(lines)


def _well(of: Sequence[Recovery]) -> str:
    return _times([one.well_s for one in of])


def _commit(of: Sequence[Recovery]) -> str:
    return _times([one.commit_s for one in of])


def _times(found: Sequence[float | None]) -> str:
    known = [one for one in found if one is not None]
    if not known:
        return "-"
    return f"{sum(known) / len(known):.1f} s, {max(known):.1f} s"
