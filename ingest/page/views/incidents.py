"""Incidents, a card for each NaN, Inf, overflow, divergence or rule; and the live view of a run."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from ingest.findings.incidents import Incident, IncidentKind
from ingest.findings.stored import read_series
from ingest.page import rendering
from ingest.page.asking import (
    AnswerLine,
    Arguments,
    Asked,
    Endpoint,
    Links,
    UrlParameter,
    lines,
    page_question,
)
from ingest.page.charts import spread_picture, timeline_picture
from ingest.page.library import FiredRule, Moment, rules_fired_in
from ingest.page.rendering import command
from ingest.page.views import cell
from ingest.page.watchers import Watched
from ingest.questions.divergence import divergence
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.reader.dump_store import DumpStore
from ingest.reader.step import Step, summary_row
from workers.errors import DamagedStore, UsageError
from workers.store.model import SEVERITIES

#: Cards on the page; the rest are named in a table.
_CARDS = 12


def show(asked: Asked) -> dict[str, Any]:
    """Return the incidents, the worst first, or a single one."""
    arguments, moment = asked.arguments, asked.moment
    wanted = arguments.text("id")
    place = {name: number for name in ("rank", "step") if (number := arguments.integer(name)) is not None}
    answer = moment.incidents(place.get("rank"), place.get("step"), incident=wanted)
    return {
        "wanted": wanted,
        "seen": ", ".join(f"{name} {number}" for name, number in place.items()),
        "answer": answer,
        "cards": [_card(asked, incident, is_alone=bool(wanted)) for incident in answer.incidents[:_CARDS]],
        "checked_step": place.get("step", moment.numbers[-1] if moment.numbers else None),
        "lines": lines(asked, *_lines(asked, place, answer.incidents if wanted else ())),
    }


def _lines(asked: Asked, place: dict[str, int], alone: Sequence[Incident]) -> Iterator[AnswerLine]:
    given: dict[str, Any] = place | ({"id": alone[0].id} if alone else {})
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    python = "".join(f", {'incident' if name == 'id' else name}={value!r}" for name, value in given.items())
    yield AnswerLine(command("anomalies", asked.url, *options), f"ingest.incidents(store{python}).incidents")
    for incident in alone:
        if incident.origin is not None and incident.rank is not None:
            at = {"rank": incident.rank, "step": incident.first_step, "include_partial": True}
            yield page_question("origin").line(asked.url, at)


def _card(asked: Asked, incident: Incident, *, is_alone: bool) -> dict[str, Any]:
    first, last = incident.first_step, incident.last_step
    origin = incident.origin
    spread = origin.spread if origin is not None and origin.found else None
    numbers = asked.moment.numbers
    later = spread.steps if spread is not None else ()
    seen = {first, *(each.step for each in later)} if later else {n for n in numbers if first <= n <= last}
    label = f"{incident.kind}: first in step {first}, last in step {last}"
    return {
        "incident": incident,
        "spread": spread,
        "picture": spread_picture(spread.graph) if spread is not None else None,
        "timeline": timeline_picture(numbers, seen, label),
        "is_in_first_step": incident.rank is not None and first in asked.moment.steps_of(incident.rank),
        # Of a divergence that is looked at alone: the misplaced tensors in its first step.
        "misplaced": _misplaced(asked, incident) if is_alone else (),
    }


def _misplaced(asked: Asked, incident: Incident) -> tuple[LayoutFinding, ...]:
    if incident.kind is IncidentKind.DIVERGENCE:
        with suppress(UsageError, DamagedStore):  # a single rank of it is left; the card tells the rest
            return divergence(asked.moment.store, step=incident.first_step, include_partial=True).misplaced
    return ()


SCREEN = Endpoint(
    "incidents",
    "Incidents",
    (
        UrlParameter("id", "string", "Only the incident with this id."),
        UrlParameter("rank", "integer", "Only incidents that were seen on this rank."),
        UrlParameter("step", "integer", "Only incidents that were seen in this step."),
    ),
    show,
    template="incidents.html.j2",
)


def report(store: DumpStore, *, incident: str = "") -> str:
    """Return a page with the incidents of a store and the matrix of its ranks and steps.

    Args:
        store: the store, which is read as it is now.
        incident: only the incident with this id; "" for all.

    Raises:
        UsageError: the store has no step, or no such incident.
        StoreError: it cannot be read.
    """
    moment = Moment.of(store)
    links = Links("", store.url.rstrip("/").rpartition("/")[2])
    given = {"id": incident} if incident else {}
    shown = show(Asked(moment, Arguments(given), links))
    overview = cell.show_matrix(Asked(moment, Arguments({}), links)) if moment.numbers else None
    return rendering.render(
        "report.html.j2",
        **shown,
        overview=overview,
        title=f"Incident {incident}" if incident else "Incidents",
        links=links,
        moment=moment,
        url=store.url,
        report=rendering.alone(),
    )


_NEWEST, _FINDINGS, _WAITING = 24, 20, 100
#: The kind of rules that compare ranks which must hold the same.
_OF_REPLICAS = "divergence"


def _show_live(asked: Asked) -> dict[str, Any]:
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
        "since": max(map(_committed_at, steps), default=None),
        "lines": lines(asked, AnswerLine(command("ls", asked.url), "store.select()"), *_asking(asked)),
    }


def _asking(asked: Asked) -> Iterator[AnswerLine]:
    if asked.watched is not None and asked.watched.watchers:
        addresses = ",".join(watcher.url for watcher in asked.watched.watchers)
        shell = command("ls", asked.url, "--watchers", addresses)
        yield AnswerLine(shell, f"ingest.watchers(store, {addresses!r})")


def _committed_at(step: Step) -> str:
    return step.commit.record.committed_at


def _findings(moment: Moment) -> list[dict[str, Any]]:
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
    watchers = [watcher for watcher in watched.watchers if not watcher.problem]
    if not watchers:
        return None
    steps = [row for watcher in watchers for row in watcher.steps if row.step is not None]
    disks = [watcher.disk for watcher in watchers if watcher.disk is not None]
    return {
        "ranks": [rank for watcher in watchers for rank in watcher.ranks],
        "disk": min(disks, key=lambda disk: disk.free_bytes / max(disk.size_bytes, 1), default=None),
        "phases": Counter(row.phase for row in steps).most_common(),
        "steps": sorted(steps, key=attrgetter("step", "rank"))[:_WAITING],
        "left_out": max(len(steps) - _WAITING, 0),
        "rings": [
            {**asdict(ring), "since": datetime.fromtimestamp(ring.at, UTC).isoformat(timespec="seconds")}
            for watcher in watchers
            for ring in watcher.boxes.rings
        ],
        "incidents": sorted({one for watcher in watchers for one in watcher.boxes.incidents}, reverse=True),
    }


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
    last = {rank: opened.key.step or 0 for rank, opened in latest.items()}
    commits, numbers = Counter(opened.key.rank for opened in steps), moment.numbers
    return [
        {
            "rank": rank,
            "step": last[rank],
            "steps": commits[rank],
            "behind": len(numbers) - bisect_right(numbers, last[rank]),
            "host": latest[rank].commit.record.source.host,
            "status": latest[rank].commit.summary.status,
            "since": _committed_at(latest[rank]),
            "share": round(100 * (last[rank] + 1) / (numbers[-1] + 1)),
        }
        for rank in moment.ranks
    ]


LIVE = Endpoint("live", "Live", (), _show_live, template="live.html.j2", shows_watchers=True)
