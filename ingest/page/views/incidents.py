"""Incidents: a card for each NaN, Inf, overflow, divergence or rule; and the layout of a step, on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ingest.findings.incidents import Incident
from ingest.findings.incidents.incident import IncidentKind
from ingest.page.asking import AnswerLine, Asked, Screen, UrlParameter, lines
from ingest.page.cells import timeline_picture
from ingest.page.rendering import counted
from ingest.page.spread import spread_picture
from ingest.questions.divergence import divergence
from ingest.questions.origin import OriginTensor
from ingest.questions.placement.layout_answer import LayoutFinding, RunLayout
from ingest.questions.placement.within import layout
from workers.errors import DamagedStore, UsageError

#: Cards, and links to the tensor on its ranks in each; `layout` prints all.
_MISTAKES, _LINKS = 12, 8


@dataclass(frozen=True, slots=True)
class LayoutCheck:
    """What a screen shows of the layout of a step."""

    url: str
    """Of the screen that shows it."""
    step: int
    line: AnswerLine
    answer: RunLayout | None = None
    """None if it is not asked for, or fails."""
    cards: tuple[dict[str, Any], ...] = ()
    problem: str = ""

    @property
    def looked_at(self) -> str:
        """How many tensors it is about, of how many kinds."""
        kinds = self.answer.kinds if self.answer is not None else ()
        total = sum(kind.tensors for kind in kinds)
        return f"{counted(total, 'tensor')} of {counted(len(kinds), 'kind')}"


def layout_check(asked: Asked, step: int | None) -> LayoutCheck | None:
    """Return the layout of a step, by default the last, if `layout` asks for it, else a link to it.

    Returns None if the run has a single rank, or no step. It costs the indexes of one step of all ranks, and
    the elements of the tensors that differ from rank to rank: of large ones, parts.
    """
    moment = asked.moment
    step = moment.numbers[-1] if step is None and moment.numbers else step
    if step is None or len(moment.ranks) < 2:
        return None
    url = asked.links.view("incidents", step=step, layout=1)
    line = AnswerLine.of(
        ("layout", asked.url, "--step", step, "--include-partial"),
        f"ingest.layout(store, {step}, include_partial=True)",
    )
    if not asked.arguments.flag("layout"):
        return LayoutCheck(url, step, line)
    try:
        answer = layout(moment.store, step, include_partial=True)
    except (UsageError, DamagedStore) as exc:
        return LayoutCheck(url, step, line, problem=exc.message)
    cards = tuple(_mistake_card(asked, finding) for finding in answer.findings[:_MISTAKES])
    return LayoutCheck(url, step, line, answer, cards)


def _mistake_card(asked: Asked, finding: LayoutFinding) -> dict[str, Any]:
    links = [
        (rank, asked.links.view("tensor", rank=rank, step=finding.step, name=finding.name))
        for rank in finding.ranks[:_LINKS]
    ]
    return {"finding": finding, "links": links}


#: Cards on the page; the rest are named in a table.
_CARDS = 12
_ELEMENTS = 6


def show(asked: Asked) -> dict[str, Any]:
    """Return the incidents, the worst first, or a single one."""
    wanted = asked.arguments.text("id")
    rank, step = asked.arguments.integer("rank"), asked.arguments.integer("step")
    answer = asked.moment.incidents(rank, step, incident=wanted)
    check = layout_check(asked, step)
    place = {name: number for name, number in (("rank", rank), ("step", step)) if number is not None}
    listed = answer.incidents
    return {
        "wanted": wanted,
        "seen": ", ".join(f"{name} {number}" for name, number in place.items()),
        "cards": [
            card(asked, incident) | {"misplaced": _misplaced(asked, incident) if wanted else ()}
            for incident in listed[:_CARDS]
        ],
        "rest": listed[_CARDS:],
        "total": len(answer.incidents),
        "by_severity": answer.by_severity,
        "left_out": answer.left_out,
        "damaged": answer.damaged,
        "not_evaluated": answer.not_evaluated,
        "check": check,
        "steps": asked.moment.numbers,
        "ranks": asked.moment.ranks,
        "lines": lines(
            asked,
            *_answer_lines(asked, place, listed if wanted else []),
            *((check.line,) if check is not None and check.answer is not None else ()),
        ),
    }


def _answer_lines(asked: Asked, place: dict[str, int], wanted: Sequence[Incident]) -> Iterator[AnswerLine]:
    """Yield the line for the incidents of a rank and step, or of all; for one by its id, its origin, too."""
    yield _line(asked, place, "".join(incident.id for incident in wanted))
    for incident in wanted:
        if incident.origin is not None and incident.rank is not None:
            where = ("--rank", incident.rank, "--step", incident.first_step, "--include-partial")
            given = f"rank={incident.rank}, step={incident.first_step}, include_partial=True"
            yield AnswerLine.of(("origin", asked.url, *where), f"ingest.origin(store, {given})")


def _line(asked: Asked, place: dict[str, int], wanted: str) -> AnswerLine:
    options = [word for name, number in place.items() for word in (f"--{name}", number)]
    given = "".join(f", {name}={number}" for name, number in place.items())
    if wanted:
        options += ["--id", wanted]
        given += f", incident={wanted!r}"
    return AnswerLine.of(("anomalies", asked.url, *options), f"ingest.incidents(store{given}).incidents")


def card(asked: Asked, incident: Incident) -> dict[str, Any]:
    """Return the contents of a card."""
    answer = incident.origin
    spread = answer.spread if answer is not None and answer.found else None
    steps = asked.moment.numbers
    return {
        "incident": incident,
        "misplaced": (),
        "origin": answer,
        "before": _tensors(asked, incident, answer.inputs if answer else ()),
        "after": _tensors(asked, incident, answer.outputs if answer else ()),
        "why": answer.why if answer else None,
        "elements": answer.why.elements[:_ELEMENTS] if answer and answer.why else (),
        "picture": spread_picture(spread.graph) if spread is not None else None,
        "spread": spread,
        "timeline": timeline_picture(
            steps,
            _affected(incident, steps),
            f"{incident.kind}: first in step {incident.first_step}, last in step {incident.last_step}",
        ),
        "url": asked.links.view("incidents", id=incident.id),
        **_where_to_look(asked, incident),
    }


def _where_to_look(asked: Asked, incident: Incident) -> dict[str, str]:
    """Return a link to the operators of the first step; to the matrix if no rank, or not this one, has it."""
    rank, step = incident.rank, incident.first_step
    if rank is not None and step in asked.moment.steps_of(rank):
        return {
            "look_url": asked.links.view("cell", rank=rank, step=step),
            "look_words": "operators in order of execution",
        }
    steps = f"{step}-{incident.last_step}"
    return {"look_url": asked.links.view("matrix", steps=steps), "look_words": "matrix of these steps"}


def _misplaced(asked: Asked, incident: Incident) -> tuple[LayoutFinding, ...]:
    """Return the misplaced tensors in the first step of a divergence, as `layout` finds them."""
    if incident.kind is not IncidentKind.DIVERGENCE:
        return ()
    try:
        answer = divergence(asked.moment.store, step=incident.first_step, include_partial=True)
    except (UsageError, DamagedStore):  # a single rank of it is left; the card tells the rest
        return ()
    return answer.misplaced


def _tensors(asked: Asked, incident: Incident, tensors: Sequence[OriginTensor]) -> list[dict[str, Any]]:
    view, rank, step, graph = asked.links.view, incident.rank, incident.first_step, incident.graph
    return [
        {
            "tensor": tensor,
            "statistics": tensor.statistics,
            "url": view("tensor", rank=rank, step=step, name=tensor.name, graph=graph),
        }
        for tensor in tensors
    ]


def _affected(incident: Incident, steps: Sequence[int]) -> set[int]:
    """Return the steps in which an incident was seen, as far as it tells."""
    spread = incident.origin.spread if incident.origin is not None else None
    if spread is not None and spread.steps:
        return {incident.first_step, *(later.step for later in spread.steps)}
    return {step for step in steps if incident.first_step <= step <= incident.last_step}


SCREEN = Screen(
    "incidents",
    "Incidents",
    "incidents.html.j2",
    (
        UrlParameter("id", "string", "Only the incident with this id."),
        UrlParameter("rank", "integer", "Only incidents that were seen on this rank."),
        UrlParameter("step", "integer", "Only incidents that were seen in this step."),
        UrlParameter(
            "layout", "boolean", "Also say what ranks hold and should not, in this or the last step."
        ),
    ),
    show,
    lambda asked: asked.flag("layout"),
)
