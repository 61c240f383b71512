"""Two runs: what differs, where first, and over the steps: the error of all tensors, a statistic of one."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from ingest.page.answers import BESIDE, RANK, STAT, STEP, sides_of
from ingest.page.asking import AnswerLine, Asked, Screen, UrlParameter, lines
from ingest.page.cells import legend, matrix_picture
from ingest.page.charts import Series, series_by_rank, series_picture
from ingest.page.moment import Moment
from ingest.questions.choosing import statistic_named
from ingest.questions.compare import Comparison, compare
from ingest.questions.compare.compared_tensor import GOOD, ComparedTensor, Verdict
from ingest.questions.compare.growth import ErrorGrowth, error_growth
from ingest.questions.compare.programs import OperatorGap
from ingest.questions.heatmap import heatmap
from ingest.questions.matrix import KNOWN, Matrix
from ingest.questions.trend import trend
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, UsageError
from workers.model import MIB
from workers.store.model import CommitSummary

#: What a picture has at most: rows are operators, which need not be told apart one by one.
_ROWS, _COLUMNS = 60, 240
_FIRSTS = 12
#: What a notch in a cell says.
_NOTCH = "only one of the two has NaN or Inf"


def growing(stat: str) -> str:
    """Return the statistic whose error is shown: this one, unless it is a sum of several."""
    return stat if stat in FIELDS else "l2_norm"


def growth_of(asked: Asked, its: Moment, rank: int, stat: str) -> dict[str, Any] | None:
    """Return the picture of the error and what differs first; None if there is nothing to show."""
    try:
        growth = error_growth(asked.moment.store, its.store, rank, growing(stat))
    except (UsageError, DamagedStore):
        return None
    matrix = _matrix_of(growth).binned(_ROWS, _COLUMNS)
    label = f"{matrix.title} of rank {rank}, operators in order of execution by steps"
    return {
        "rank": rank,
        "title": matrix.title,
        "picture": matrix_picture(matrix, label, rows_are="tensor"),
        "legend": [(css, _NOTCH if css == "notch" else words) for css, words in legend(matrix)],
        "tensors": len(growth.tensors),
        "steps": len(growth.steps),
        "firsts": _firsts(asked, growth),
        "left_out": growth.left_out,
    }


def _matrix_of(growth: ErrorGrowth) -> Matrix:
    errors = growth.errors
    return Matrix(
        f"relative error of {growth.statistic}",
        tuple((place, place) for place in range(len(growth.tensors))),
        tuple((step, step) for step in growth.steps),
        errors,
        np.full(errors.shape, KNOWN, np.int64),
        np.zeros(errors.shape, np.int64),
        np.isposinf(errors),
        is_count=False,
    )


def _firsts(asked: Asked, growth: ErrorGrowth) -> list[dict[str, Any]]:
    """Return the tensors that differ first, by step and order of execution, each once."""
    rows = []
    for place, column in growth.by_onset()[:_FIRSTS]:
        key, step = growth.tensors[place], growth.steps[column]
        rows.append(
            {
                "name": key.name,
                "step": step,
                "error": float(growth.errors[place, column]),
                "last": float(growth.errors[place, -1]),
                "url": asked.links.view(
                    "tensor", rank=growth.rank, step=step, name=key.name, graph=key.graph
                ),
            }
        )
    return rows


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
        trend_line(asked, moment, name, stat, _first_ranks(moment, rank))
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
                _role_line(asked, moment, (role, stat, how), _first_ranks(moment, rank)) for moment, _ in runs
            ]
            overlays.append(Overlay.of(words, [line for series in of_runs for line in series], answers))
    return overlays


def _names_of(tensor: ComparedTensor) -> tuple[str, str]:
    """Return globs for the names of a tensor in both runs; the same if only one of them has it."""
    return glob.escape(tensor.name_a or tensor.name_b), glob.escape(tensor.name_b or tensor.name_a)


def _first_ranks(moment: Moment, rank: int | None) -> list[int]:
    return moment.ranks[:_LINES] if rank is None else [rank]


def _of_tensor(moment: Moment, run: str, name: str, stat: str, rank: int | None) -> list[Series]:
    """Return a line for each of the first ranks; none if the run does not have the tensor."""
    try:
        frame = trend(moment.store, name, stat, rank=_first_ranks(moment, rank), include_partial=True)
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
            rank=_first_ranks(moment, rank),
            include_partial=True,
            role=role,
        )
    except (UsageError, DamagedStore):
        return
    steps = field["step"].values.tolist()
    for row, of_rank in enumerate(field["rank"].values.tolist()):
        is_bad = (field["non_finite"].values[row] > 0).tolist()
        yield Series(f"{run}, rank {of_rank}", steps, field.values[row].tolist(), is_bad)


#: Guesses that are listed, and gaps.
_GUESSES, _GAPS = 40, 60


@dataclass(frozen=True, slots=True)
class PairingRow:
    """Two operators or tensors that were taken for the same, or one that only one run has."""

    name_a: str
    """"" if only B has it."""
    name_b: str
    """"" if only A has it."""
    why: str
    """How it was guessed, or what became of it; "" if that is not known."""
    url: str = ""
    """The operator in its run."""

    @property
    def is_guess(self) -> bool:
        """Whether both runs have it, as far as was guessed."""
        return bool(self.name_a and self.name_b)


@dataclass(frozen=True, slots=True)
class Pairing:
    """What the table of pairs shows."""

    summary: str
    """How many operators each run has, and both; "" if names tell all."""
    rows: tuple[PairingRow, ...]
    more: int
    """How many guesses and gaps are not listed."""


def pairing_of(asked: Asked, answer: Comparison, other: str) -> Pairing | None:
    """Return the operators that were paired by guess or that only one run has; None if all names agree.

    Args:
        asked: what is asked for, of A.
        answer: A against B.
        other: the name of B.
    """
    gaps = answer.programs.gaps if answer.programs is not None else ()
    if not gaps and not answer.guesses:
        return None
    guesses = [PairingRow(guess.name_a, guess.name_b, f"by {guess.how}") for guess in answer.guesses]
    return Pairing(
        str(answer.programs or ""),
        (*guesses[:_GUESSES], *(_gap_row(asked, answer, other, gap) for gap in gaps[:_GAPS])),
        max(len(guesses) - _GUESSES, 0) + max(len(gaps) - _GAPS, 0),
    )


def _gap_row(asked: Asked, answer: Comparison, other: str, gap: OperatorGap) -> PairingRow:
    is_a = gap.side == "A"
    step = answer.steps[0]
    key = step.key_a if is_a else step.key_b
    links = asked.links if is_a else asked.links.of_run(other)
    url = links.view("cell", rank=key.rank, step=key.step, name=f"{glob.escape(gap.name)}.*")
    return PairingRow(gap.name if is_a else "", "" if is_a else gap.name, str(gap), url)


#: Tensors that are listed.
_LISTED = 40
#: Runs with more ranks than this in common are compared rank by rank, unless all are asked for: each takes a
#: tenth of a second or more.
_RANKS_AT_ONCE = 4
#: What is shown over the steps is made at once if the runs have at most this many tensors of steps in common;
#: else on demand.
_CELLS_AT_ONCE = 4000
#: Elements are read at once if the tensors of a step take at most this many bytes; else on demand.
_NBYTES_AT_ONCE = 16 * MIB
#: What is shown of the metrics of a pair.
_METRICS = ("max_abs", "relative_euclidean", "cosine")


@dataclass(frozen=True, slots=True)
class _RunPair:
    """What of the two runs is compared."""

    its: Moment
    """The other run."""
    common: list[int]
    """The steps that both runs have."""
    step: int
    ranks: list[int]
    """The ranks that both runs have."""
    rank: int | None
    """The rank that is compared; None for all of them."""
    is_first_of_many: bool
    """Whether it is the first rank only because all of them would take long."""
    is_over: bool
    """Whether the error and the statistics over the steps are shown, too."""
    has_elements: bool
    """Whether elements are read where digests differ; else, statistics decide."""

    @property
    def rank_over_steps(self) -> int:
        """The rank whose error over the steps is shown."""
        return self.ranks[0] if self.rank is None else self.rank


def show(asked: Asked) -> dict[str, Any]:
    """Return the other runs to choose from; with one of them, the comparison of a step."""
    arguments = asked.arguments
    other = arguments.text(BESIDE)
    stat = statistic_named(arguments.text("stat", "l2_norm"))
    names = [name for name in asked.runs() if name != asked.links.run]
    form: dict[str, Any] = {"names": names, "other": other, "rank": arguments.integer("rank"), "stat": stat}
    if not other:
        nothing: dict[str, Any] = {
            "answer": None,
            "lines": None,
            "step": None,
            "common": [],
            "over_url": "",
            "all_url": "",
            "elements_url": "",
        }
        return {**form, **nothing}
    choice = _choose(asked, other)
    sides = sides_of(asked, other, choice.rank, choice.step)
    answer = _compared(asked, choice, sides)
    over_steps = _over_the_steps(asked, choice, answer, stat)
    drawn = [line for overlay in over_steps["overlays"] for line in overlay.answers]
    has_growth = over_steps["growth"] is not None
    return {
        **form,
        "rank": choice.rank,
        "ranks": choice.ranks,
        "step": choice.step,
        "common": choice.common,
        **_links_to_more(asked, choice),
        **over_steps,
        **_differences(asked, answer),
        "pairing": pairing_of(asked, answer, other),
        "lines": lines(asked, *_lines(asked, sides, choice, stat, has_growth=has_growth), *drawn),
    }


def _lines(
    asked: Asked, sides: tuple[str, str], choice: _RunPair, stat: str, *, has_growth: bool
) -> list[AnswerLine]:
    """Return the lines that compare the same."""
    options = ("--include-partial",) if choice.has_elements else ("--include-partial", "--no-elements")
    given = "include_partial=True" if choice.has_elements else "include_partial=True, elements=False"
    same = [
        AnswerLine.of(("compare", *sides, *options), f"ingest.compare({sides[0]!r}, {sides[1]!r}, {given})"),
    ]
    if has_growth:
        rank, its = choice.rank_over_steps, choice.its.store.url
        words = ("compare", f"{asked.url}@{rank}", f"{its}@{rank}", "--over-steps", "--stat", growing(stat))
        python = f"ingest.error_growth(store, ingest.open_store({its!r}), {rank}, {growing(stat)!r}).rows()"
        same.append(AnswerLine.of(words, python))
    return same


def _compared(asked: Asked, choice: _RunPair, sides: tuple[str, str]) -> Comparison:
    """Compare one rank as it was read, so that nothing is read again; all ranks as their URLs say."""
    options, elements = asked.storage_options(), choice.has_elements
    rank, step = choice.rank, choice.step
    if rank is None:
        return compare(*sides, storage_options=options, include_partial=True, elements=elements)
    opened = asked.moment.store.step(rank, step), choice.its.store.step(rank, step)
    return compare(*opened, storage_options=options, include_partial=True, elements=elements)


def _sizes(moment: Moment, ranks: Collection[int], step: int) -> list[CommitSummary]:
    """Return the totals of a step of some ranks."""
    return [
        opened.commit.summary
        for opened in moment.steps
        if opened.key.step == step and opened.key.rank in ranks
    ]


def _common_steps(asked: Asked, mine: Moment, other: str, its: Moment) -> list[int]:
    if not (common := sorted(set(mine.numbers) & set(its.numbers))):
        raise UsageError(f"{asked.links.run} and {other} have no step in common")
    return common


def _choose(asked: Asked, other: str) -> _RunPair:
    """Choose what is compared: what the URL names, else the last common step, of all ranks if they are few.

    Raises:
        UsageError: the runs have no step in common.
    """
    arguments = asked.arguments
    mine, its = asked.moment, asked.moment_of(other)
    common = _common_steps(asked, mine, other, its)
    wanted, rank = arguments.integer("step"), arguments.integer("rank")
    ranks = sorted(set(mine.ranks) & set(its.ranks))
    is_first_of_many = rank is None and not arguments.flag("all") and len(ranks) > _RANKS_AT_ONCE
    if is_first_of_many:
        rank = ranks[0]
    step = common[-1] if wanted is None else wanted
    sizes = _sizes(mine, ranks if rank is None else [rank], step)
    tensors = max((size.tensors + size.statistics_only for size in sizes), default=0)
    return _RunPair(
        its,
        common,
        step,
        ranks,
        rank,
        is_first_of_many,
        is_over=arguments.flag("over") or len(common) * tensors <= _CELLS_AT_ONCE,
        has_elements=arguments.flag("elements") or sum(size.raw_bytes for size in sizes) <= _NBYTES_AT_ONCE,
    )


def _links_to_more(asked: Asked, choice: _RunPair) -> dict[str, str]:
    """Return the URLs that show what was left out to save time; "" for what is shown."""
    state = {
        name: asked.arguments.text(name)
        for name in (BESIDE, "step", "rank", "all", "over", "elements", "stat", "name")
    }
    return {
        "all_url": asked.links.view("compare", **{**state, "all": 1}) if choice.is_first_of_many else "",
        "over_url": "" if choice.is_over else asked.links.view("compare", **{**state, "over": 1}),
        "elements_url": ""
        if choice.has_elements
        else asked.links.view("compare", **{**state, "elements": 1}),
    }


def _over_the_steps(asked: Asked, choice: _RunPair, answer: Comparison, stat: str) -> dict[str, Any]:
    """Return the error of all tensors over the steps, and lines of both runs; nothing if left out."""
    if not choice.is_over:
        return {"growth": None, "overlays": []}
    its, rank = choice.its, choice.rank
    first = answer.first.tensor if answer.first is not None else None
    overlay = overlay_of_tensor(asked, its, first, stat, rank)
    growth = None
    if choice.ranks:
        growth = growth_of(asked, its, choice.rank_over_steps, stat)
    # A single step makes no line.
    of_roles = overlays_of_roles(asked, its, rank) if len(choice.common) > 1 else []
    return {"growth": growth, "overlays": [*of_roles, *([overlay] if overlay is not None else [])]}


def _differences(asked: Asked, answer: Comparison) -> dict[str, Any]:
    """Return the differences in the compared step: how much, where first, and the worst tensors."""
    first = answer.first
    return {
        "answer": answer,
        "counts": [
            (verdict, answer.counts[verdict], verdict in GOOD)
            for verdict in Verdict
            if answer.counts[verdict]
        ],
        "first": first,
        "first_url": _url(asked, first.tensor) if first is not None else "",
        "rows": [_row(asked, tensor) for tensor in answer.worst(_LISTED) if tensor.verdict not in GOOD],
        "metrics": _METRICS,
    }


def _row(asked: Asked, tensor: ComparedTensor) -> dict[str, Any]:
    known = tensor.metrics
    return {
        "tensor": tensor,
        "url": _url(asked, tensor),
        "metrics": [getattr(known, name, None) if known is not None else None for name in _METRICS],
        "is_guess": tensor.guessed or tensor.ambiguous,
    }


def _url(asked: Asked, tensor: ComparedTensor) -> str:
    if not tensor.name_a:
        return ""
    key = tensor.key_a
    return asked.links.view("tensor", rank=key.rank, step=key.step, name=tensor.name_a, graph=tensor.graph)


SCREEN = Screen(
    "compare",
    "Two runs",
    "compare.html.j2",
    (
        UrlParameter(BESIDE, "string", "The other run."),
        STEP,
        RANK,
        UrlParameter("all", "boolean", "Compare all ranks, however many they are."),
        UrlParameter("elements", "boolean", "Read elements where digests differ, however many they are."),
        UrlParameter("over", "boolean", "Show the error over the steps, however many they are."),
        STAT,
        UrlParameter("name", "string", "The tensor whose statistic is drawn for both runs, or a glob."),
    ),
    show,
    is_slow=lambda asked: any(map(asked.flag, ("all", "over", "elements"))),
)
