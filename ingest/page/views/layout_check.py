"""The layout of one step, on demand: what ranks hold and should not, though no rule looks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingest.page.screen import AnswerLine, Asked
from ingest.page.words import counted
from ingest.questions.placement.layout_answer import LayoutFinding, RunLayout
from ingest.questions.placement.within import layout
from workers.errors import DamagedStore, UsageError

#: Cards, and links to the tensor on its ranks in each; `layout` prints all.
_CARDS, _LINKS = 12, 8


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
    cards = tuple(_card(asked, finding) for finding in answer.findings[:_CARDS])
    return LayoutCheck(url, step, line, answer, cards)


def _card(asked: Asked, finding: LayoutFinding) -> dict[str, Any]:
    links = [
        (rank, asked.links.view("tensor", rank=rank, step=finding.step, name=finding.name))
        for rank in finding.ranks[:_LINKS]
    ]
    return {"finding": finding, "links": links}
