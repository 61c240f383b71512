"""Live: how far the run is, what steps wait for, what each rank has committed last, what was found last."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ingest.findings.stored import read_series
from ingest.page.asking import AnswerLine, Asked, Screen, lines
from ingest.page.library import FiredRule, rules_fired_in
from ingest.page.moment import Moment
from ingest.page.views.incidents import layout_check
from ingest.page.watchers import Watched
from ingest.reader.rows import summary_row
from ingest.reader.step import Step
from ingest.service.live_watcher import DumpDisk, LiveWatcher
from workers.store.model import SEVERITIES

_NEWEST, _FINDINGS, _WAITING = 24, 20, 100
#: The kind of rules that compare ranks which must hold the same.
_OF_REPLICAS = "divergence"


def show(asked: Asked) -> dict[str, Any]:
    """Return the progress of each rank, the newest commits and the newest findings."""
    moment = asked.moment
    steps = [opened for opened in moment.steps if opened.key.step is not None]
    newest = [
        {**summary_row(opened.commit.summary), "committed_at": _committed_at(opened)}
        for opened in sorted(steps, key=_committed_at, reverse=True)[:_NEWEST]
    ]
    last_step = moment.numbers[-1] if steps else None
    ranks = _ranks(moment, steps)
    return {
        **_watched(asked),
        "replicas": _replicas(moment),
        "check": layout_check(asked, None),
        "last_step": last_step,
        "ranks": ranks,
        "behind": [row for row in ranks if row["behind"]],
        "newest": newest,
        "findings": _findings(asked),
        "damages": moment.damages,
        "totals": _totals(steps),
        "commits": len(steps),
        "since": newest[0]["committed_at"] if newest else None,
    }


def _watched(asked: Asked) -> dict[str, Any]:
    """Return the state of the watchers, and the commands that print the same."""
    watched = asked.watched
    answering = [] if watched is None else [watcher for watcher in watched.watchers if not watcher.problem]
    addresses = ",".join(watcher.url for watcher in watched.watchers) if watched is not None else ""
    asking = (
        [AnswerLine.of(("ls", asked.url, "--watchers", addresses), f"ingest.watchers(store, {addresses!r})")]
        if addresses
        else []
    )
    return {
        "watched": watched,
        "live": None if watched is None or not answering else _live(watched),
        "lines": lines(asked, AnswerLine.of(("ls", asked.url), "store.select()"), *asking),
    }


def _ranks(moment: Moment, steps: Sequence[Step]) -> list[dict[str, Any]]:
    latest = {opened.key.rank: opened for opened in steps}  # they are in order: the last one of a rank stays
    commits = Counter(opened.key.rank for opened in steps)
    return [_rank_row(latest[rank], commits[rank], moment.numbers) for rank in moment.ranks]


def _findings(asked: Asked) -> list[dict[str, Any]]:
    """Return what rules found in the newest steps: a row for each step and rule, with all of its ranks."""
    newest = set(asked.moment.numbers[-_NEWEST:])
    by_rule: dict[tuple[int, int, str], list[FiredRule]] = {}
    for opened in asked.moment.steps:
        if opened.key.step in newest:
            for fired in rules_fired_in(opened):
                by_rule.setdefault((fired.step, fired.severity, fired.rule), []).append(fired)
    worst_first = sorted(
        by_rule.values(),
        key=lambda together: (-together[0].step, -together[0].severity, -_count(together)),
    )
    return [_fired_row(asked, together) for together in worst_first[:_FINDINGS]]


def _count(together: Sequence[FiredRule]) -> int:
    return sum(fired.findings for fired in together)


def _fired_row(asked: Asked, together: Sequence[FiredRule]) -> dict[str, Any]:
    """Return the row of a rule in a step, given what it found on each rank."""
    first = together[0]
    where = asked.links.view("incidents", step=first.step)
    if len(together) == 1:
        where = asked.links.view("cell", rank=first.rank, step=first.step)
    return {
        "step": first.step,
        "rule": first.rule,
        "severity": SEVERITIES[first.severity],
        "ranks": [fired.rank for fired in together],
        "count": _count(together),
        "url": where,
    }


def _totals(steps: Sequence[Step]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for opened in steps:
        summary = opened.commit.summary
        totals["tensors"] += summary.tensors + summary.statistics_only
        totals.update({name: getattr(summary, name) for name in ("raw_bytes", "stored_bytes")})
    return totals


def _fullest_disk(watchers: Iterable[LiveWatcher]) -> DumpDisk | None:
    disks = [watcher.disk for watcher in watchers if watcher.disk is not None]
    return min(disks, key=lambda disk: disk.free_bytes / max(disk.size_bytes, 1), default=None)


def _live(watched: Watched) -> dict[str, Any]:
    """Return the state that only watchers know: lag, backlog, disk, and what each step waits for."""
    watchers = watched.watchers
    ranks = [rank for watcher in watchers for rank in watcher.ranks]
    steps = [row for watcher in watchers for row in watcher.steps if row.step is not None]
    return {
        "lag_s": max((rank.lag_s for rank in ranks), default=0.0),
        "pending_steps": sum(rank.pending_steps for rank in ranks),
        "pending_bytes": sum(rank.pending_bytes for rank in ranks),
        "disk": _fullest_disk(watchers),
        "phases": Counter(row.phase for row in steps).most_common(),
        "steps": sorted(steps, key=lambda row: (row.step, row.rank))[:_WAITING],
        "left_out": max(len(steps) - _WAITING, 0),
    }


def _replicas(moment: Moment) -> dict[str, Any]:
    """Return in how many of the newest steps rules compared replicas, and those in which they differ.

    Takes one listing and one request, whatever the number of ranks.
    """
    newest = moment.numbers[-_NEWEST:] if len(moment.ranks) > 1 else []
    damages: list[str] = []
    documents = {
        step: document
        for step, document in read_series(moment.store.objects, newest, damages).items()
        if not document.failed
    }
    differing = [
        step
        for step, document in sorted(documents.items())
        if any(document.kinds.get(rule) == _OF_REPLICAS for rule, count in document.totals.items() if count)
    ]
    return {"newest": len(newest), "evaluated": len(documents), "differing": differing}


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


def _committed_at(step: Step) -> str:
    return step.commit.record.committed_at


SCREEN = Screen("live", "Live", "live.html.j2", (), show, shows_watchers=True)
