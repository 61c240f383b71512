"""Incidents: a card for each NaN, Inf, overflow, divergence or rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from markupsafe import Markup

from ingest.findings.incident import Incident, IncidentKind
from ingest.page.asking import AnswerLine, Asked, Endpoint, UrlParameter, lines, page_question
from ingest.page.charts import SpreadPicture, spread_picture, timeline_picture
from ingest.page.rendering import command
from ingest.questions.divergence import divergence
from ingest.questions.origin import OriginSpread
from ingest.questions.placement.layout_answer import LayoutFinding
from workers.errors import DamagedStore, UsageError

#: Cards on the page; the rest are named in a table.
_CARDS = 12


class Card(NamedTuple):
    """What is shown of an incident besides what it holds."""

    incident: Incident
    spread: OriginSpread | None
    picture: SpreadPicture | None
    timeline: Markup
    is_in_first_step: bool
    """Whether its rank has committed the first step."""
    misplaced: tuple[LayoutFinding, ...]
    """Of a divergence that is looked at alone: the misplaced tensors in its first step."""


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
    """Yield the line for the incidents of a rank and step, or of all; for one by its id, its origin, too."""
    given: dict[str, Any] = place | ({"id": alone[0].id} if alone else {})
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    python = "".join(f", {'incident' if name == 'id' else name}={value!r}" for name, value in given.items())
    yield AnswerLine(command("anomalies", asked.url, *options), f"ingest.incidents(store{python}).incidents")
    for incident in alone:
        if incident.origin is not None and incident.rank is not None:
            at = {"rank": incident.rank, "step": incident.first_step, "include_partial": True}
            yield page_question("origin").line(asked.url, at)


def _card(asked: Asked, incident: Incident, *, is_alone: bool) -> Card:
    first, last = incident.first_step, incident.last_step
    spread = _spread_of(incident)
    numbers = asked.moment.numbers
    later = spread.steps if spread is not None else ()
    seen = {first, *(each.step for each in later)} if later else {n for n in numbers if first <= n <= last}
    return Card(
        incident,
        spread,
        spread_picture(spread.graph) if spread is not None else None,
        timeline_picture(numbers, seen, f"{incident.kind}: first in step {first}, last in step {last}"),
        incident.rank is not None and first in asked.moment.steps_of(incident.rank),
        _misplaced(asked, incident) if is_alone else (),
    )


def _spread_of(incident: Incident) -> OriginSpread | None:
    origin = incident.origin
    return origin.spread if origin is not None and origin.found else None


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
