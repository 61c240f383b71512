"""Statistics of both runs over the steps, as lines: of one tensor, and of all tensors with one role."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ingest.page.answers import BESIDE
from ingest.page.drawing.charts import Series, series_by_rank, series_picture
from ingest.page.moment import Moment
from ingest.page.screen import AnswerLine, Asked
from ingest.questions.compare.compared_tensor import ComparedTensor
from ingest.questions.heatmap import heatmap
from ingest.questions.trend import trend
from workers.errors import DamagedStore, UsageError

#: Ranks that have a line.
_LINES = 3
#: What is drawn of the tensors with a role: which statistic, and how that of several becomes one number.
_ROLES = (
    ("loss", "mean", "mean"),
    ("gradient", "l2_norm", "max"),
    ("weight", "l2_norm", "max"),
)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Lines of both runs in one picture."""

    title: str
    picture: Markup
    names: list[str]
    has_bad: bool
    """Whether a cross marks NaN or Inf."""
    answers: tuple[AnswerLine, ...]
    """The commands and the Python that give the same values."""

    @classmethod
    def of(cls, title: str, series: Sequence[Series], answers: Sequence[AnswerLine]) -> Overlay:
        """Draw lines."""
        return cls(
            title,
            series_picture(series, f"{title} in both runs"),
            [line.name for line in series],
            any(any(line.bad) for line in series),
            tuple(answers),
        )


def trend_line(asked: Asked, moment: Moment, name: str, stat: str, ranks: Sequence[int]) -> AnswerLine:
    """Return the line that gives a statistic of tensors of a run over the steps.

    Args:
        asked: the view that shows it.
        moment: of the run.
        name: a glob for the names.
        stat: the statistic.
        ranks: those that are shown.
    """
    words = ("trend", moment.store.url, name, "--stat", stat, *_rank_words(ranks), "--include-partial")
    run = _run_in_python(asked, moment)
    return AnswerLine.of(
        words, f"ingest.trend({run}, {name!r}, {stat!r}, rank={ranks}, include_partial=True)"
    )


def _role_line(asked: Asked, moment: Moment, what: tuple[str, str, str], ranks: Sequence[int]) -> AnswerLine:
    role, stat, how = what
    options = ("--role", role, "--stat", stat, "--aggregate", how, *_rank_words(ranks), "--include-partial")
    given = f"stat={stat!r}, aggregate={how!r}, rank={ranks}, include_partial=True, role={role!r}"
    return AnswerLine.of(
        ("heatmap", moment.store.url, *options), f"ingest.heatmap({_run_in_python(asked, moment)}, {given})"
    )


def _rank_words(ranks: Sequence[int]) -> list[object]:
    return [word for rank in ranks for word in ("--rank", rank)]


def _run_in_python(asked: Asked, moment: Moment) -> str:
    """Return the expression for a run in lines, in which `store` is the run that is looked at."""
    return "store" if moment is asked.moment else f"ingest.open_store({moment.store.url!r})"


def overlay_of_tensor(
    asked: Asked, its: Moment, first: ComparedTensor | None, stat: str, rank: int | None
) -> Overlay | None:
    """Return one tensor of both runs over the steps: the one asked for, else the first that differs."""
    name = asked.arguments.text("name")
    if name:
        names = name, name
    elif first is not None:
        names = _names_of(first)  # the other run may have another name for it
    else:
        return None
    series = [
        *_of_tensor(asked.moment, asked.links.run, names[0], stat, rank),
        *_of_tensor(its, asked.arguments.text(BESIDE), names[1], stat, rank),
    ]
    answers = [
        trend_line(asked, moment, name, stat, _ranks(moment, rank))
        for moment, name in zip((asked.moment, its), names, strict=True)
    ]
    return Overlay.of(f"{stat} of {' and '.join(dict.fromkeys(names))}", series, answers) if series else None


def overlays_of_roles(asked: Asked, its: Moment, rank: int | None) -> list[Overlay]:
    """Return loss, gradients and weights of both runs over the steps, as far as both have them."""
    runs = ((asked.moment, asked.links.run), (its, asked.arguments.text(BESIDE)))
    overlays = []
    for role, stat, how in _ROLES:
        of_runs = [list(_of_role(moment, run, (role, stat, how), rank)) for moment, run in runs]
        if all(of_runs):
            words = "mean of the loss" if role == "loss" else f"greatest {stat} of a {role}"
            answers = [
                _role_line(asked, moment, (role, stat, how), _ranks(moment, rank)) for moment, _ in runs
            ]
            overlays.append(Overlay.of(words, [line for series in of_runs for line in series], answers))
    return overlays


def _names_of(tensor: ComparedTensor) -> tuple[str, str]:
    """Return globs for the names of a tensor in both runs; the same if only one of them has it."""
    return glob.escape(tensor.name_a or tensor.name_b), glob.escape(tensor.name_b or tensor.name_a)


def _ranks(moment: Moment, rank: int | None) -> list[int]:
    return moment.ranks[:_LINES] if rank is None else [rank]


def _of_tensor(moment: Moment, run: str, name: str, stat: str, rank: int | None) -> list[Series]:
    """Return a line for each of the first ranks; none if the run does not have the tensor."""
    try:
        frame = trend(moment.store, name, stat, rank=_ranks(moment, rank), include_partial=True)
    except (UsageError, DamagedStore):
        return []
    first = frame[(frame["name"] == frame["name"].iloc[0]) & (frame["graph"] == frame["graph"].iloc[0])]
    return series_by_rank(first, f"{run}, ")


def _of_role(moment: Moment, run: str, what: tuple[str, str, str], rank: int | None) -> Iterator[Series]:
    """Yield a line for each of the first ranks; none if no tensor of the run has the role."""
    role, stat, how = what
    try:
        field = heatmap(
            moment.store,
            stat=stat,
            aggregate=how,
            rank=_ranks(moment, rank),
            include_partial=True,
            role=role,
        )
    except (UsageError, DamagedStore):
        return
    steps = field["step"].values.tolist()
    for row, of_rank in enumerate(field["rank"].values.tolist()):
        is_bad = (field["non_finite"].values[row] > 0).tolist()
        yield Series(f"{run}, rank {of_rank}", steps, field.values[row].tolist(), is_bad)
