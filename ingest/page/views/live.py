"""Live: how far the run is, what steps wait for, what each rank has committed last, what was found last."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from ingest.findings.stored import read_series
from ingest.page.asking import AnswerLine, Asked, Endpoint, lines
from ingest.page.library import FiredRule, Moment, rules_fired_in
from ingest.page.rendering import command
from ingest.page.watchers import Watched
from ingest.reader.step import Step, summary_row
from ingest.service.live_watcher import DumpDisk, LiveWatcher
from workers.store.model import SEVERITIES

_NEWEST, _FINDINGS, _WAITING = 24, 20, 100
#: The kind of rules that compare ranks which must hold the same.
_OF_REPLICAS = "divergence"


def show(asked: Asked) -> dict[str, Any]:
    """Return the progress of each rank, the newest commits and the newest findings."""
    moment, watched = asked.moment, asked.watched
    steps = [opened for opened in moment.steps if opened.key.step is not None]
    newest = sorted(steps, key=_committed_at, reverse=True)[:_NEWEST]
    return {
        "watched": watched,
        "live": None if watched is None else _live(watched),
        "replicas": _replicas(moment),
        "last_step": moment.numbers[-1] if steps else None,
        "ranks": _rank_rows(moment, steps),
        "newest": [
            {**summary_row(opened.commit.summary), "committed_at": _committed_at(opened)} for opened in newest
        ],
        "findings": _findings(moment),
        "damages": moment.damages,
        "summaries": [opened.commit.summary for opened in steps],
        "held": sorted({one.key.step for one in steps if one.has_tensors and one.commit.summary.tensors}),
        "steps": len(moment.numbers),
        "commits": len(steps),
        "since": _committed_at(newest[0]) if newest else None,
        "lines": lines(asked, AnswerLine(command("ls", asked.url), "store.select()"), *_asking(asked)),
    }


def _asking(asked: Asked) -> Iterator[AnswerLine]:
    """Yield the line that asks the watchers, if there are any."""
    addresses = ",".join(watcher.url for watcher in asked.watched.watchers) if asked.watched else ""
    if addresses:
        shell = command("ls", asked.url, "--watchers", addresses)
        yield AnswerLine(shell, f"ingest.watchers(store, {addresses!r})")


def _committed_at(step: Step) -> str:
    return step.commit.record.committed_at


def _findings(moment: Moment) -> list[dict[str, Any]]:
    """Return what rules found in the newest steps: a row for each step and rule, with all of its ranks."""
    newest = set(moment.numbers[-_NEWEST:])
    by_rule: dict[tuple[int, int, str], list[FiredRule]] = {}
    for opened in moment.steps:
        for fired in rules_fired_in(opened) if opened.key.step in newest else ():
            by_rule.setdefault((-fired.step, -fired.severity, fired.rule), []).append(fired)
    rows: list[dict[str, Any]] = [
        {
            "step": -step,
            "rule": rule,
            "severity": SEVERITIES[-severity],
            "ranks": [fired.rank for fired in together],
            "count": sum(fired.findings for fired in together),
        }
        for (step, severity, rule), together in by_rule.items()
    ]
    worst_first = sorted(
        rows, key=lambda row: (-row["step"], -SEVERITIES.index(row["severity"]), -row["count"])
    )
    return worst_first[:_FINDINGS]


def _live(watched: Watched) -> dict[str, Any] | None:
    """Return the state that only watchers know: lag, backlog, disk, and what each step waits for."""
    watchers = [watcher for watcher in watched.watchers if not watcher.problem]
    if not watchers:
        return None
    ranks = [rank for watcher in watchers for rank in watcher.ranks]
    steps = [row for watcher in watchers for row in watcher.steps if row.step is not None]
    return {
        "ranks": ranks,
        "disk": _fullest(watchers),
        "phases": Counter(row.phase for row in steps).most_common(),
        "steps": sorted(steps, key=attrgetter("step", "rank"))[:_WAITING],
        "left_out": max(len(steps) - _WAITING, 0),
    }


def _fullest(watchers: Sequence[LiveWatcher]) -> DumpDisk | None:
    disks = [watcher.disk for watcher in watchers if watcher.disk is not None]
    return min(disks, key=lambda disk: disk.free_bytes / max(disk.size_bytes, 1), default=None)


def _replicas(moment: Moment) -> dict[str, Any]:
    """Return in how many of the newest steps rules compared replicas, and those in which they differ.

    Takes one listing and one request, whatever the number of ranks.
    """
    newest = moment.numbers[-_NEWEST:] if len(moment.ranks) > 1 else []
    read = read_series(moment.store.objects, newest, [])
    documents = {step: document for step, document in sorted(read.items()) if not document.failed}
    differing = [
        step
        for step, document in documents.items()
        if any(count and document.kinds.get(rule) == _OF_REPLICAS for rule, count in document.totals.items())
    ]
    return {"evaluated": len(documents), "differing": differing}


def _rank_rows(moment: Moment, steps: Sequence[Step]) -> list[dict[str, Any]]:
    latest = {opened.key.rank: opened for opened in steps}  # they are in order: the last one of a rank stays
    commits = Counter(opened.key.rank for opened in steps)
    return [_rank_row(latest[rank], commits[rank], moment.numbers) for rank in moment.ranks]


def _rank_row(latest: Step, commits: int, numbers: Sequence[int]) -> dict[str, Any]:
    """Return the row of a rank, given its last step and those of all ranks, in order."""
    step = latest.key.step or 0
    return {
        "rank": latest.key.rank,
        "step": step,
        "steps": commits,
        "behind": len(numbers) - bisect_right(numbers, step),
        "host": latest.commit.record.source.host,
        "status": latest.commit.summary.status,
        "since": _committed_at(latest),
        "share": round(100 * (step + 1) / (numbers[-1] + 1)),
    }


SCREEN = Endpoint("live", "Live", (), show, template="live.html.j2", shows_watchers=True)
