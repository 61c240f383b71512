"""Two runs: what differs, where first, and over the steps: the error of all tensors, a statistic of one."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from markupsafe import Markup

from ingest.page.asking import (
    BESIDE,
    RANK,
    STAT,
    STEP,
    AnswerLine,
    Asked,
    Endpoint,
    UrlParameter,
    lines,
    page_question,
    sides_of,
    storage_options,
)
from ingest.page.charts import Series, legend, matrix_picture, overlay
from ingest.page.library import Moment
from ingest.page.rendering import command
from ingest.page.views.tensor import series_over_steps
from ingest.questions.choosing import statistic_named
from ingest.questions.compare.result import GOOD, ComparedTensor, Comparison, Verdict
from ingest.questions.compare.run import compare
from ingest.questions.growth import ErrorGrowth, error_growth
from ingest.questions.heatmap import heatmap
from ingest.questions.matrix import KNOWN, Matrix
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, UsageError
from workers.model import MIB

#: What a picture has at most: rows are operators, which need not be told apart one by one.
_ROWS, _COLUMNS = 60, 240
#: What a notch in a cell says.
_NOTCH = "only one of the two has NaN or Inf"
#: Ranks that have a line.
_LINES = 3
#: What is drawn of tensors with a role: a statistic, how that of several becomes one number, and a title.
_ROLES = (
    ("loss", "mean", "mean", "mean of the loss"),
    ("gradient", "l2_norm", "max", "greatest l2_norm of a gradient"),
    ("weight", "l2_norm", "max", "greatest l2_norm of a weight"),
)
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


@dataclass(frozen=True, slots=True)
class _Pair:
    runs: tuple[tuple[str, Moment], tuple[str, Moment]]
    steps: list[int]
    step: int
    ranks: list[int]
    rank: int | None
    """The rank that is compared; None for all of them."""
    left_out: frozenset[str]
    """What is not shown because it would take long: `all` ranks, what is `over` the steps, `elements`."""

    def lined(self, moment: Moment) -> list[int]:
        return moment.ranks[:_LINES] if self.rank is None else [self.rank]


#: Lines over the steps, and the command lines that ask the same.
_Drawn: TypeAlias = tuple[dict[str, Any], list[AnswerLine]]


def show(asked: Asked) -> dict[str, Any]:
    """Return the other runs to choose from; with one of them, the comparison of a step."""
    arguments = asked.arguments
    other, stat = arguments.text(BESIDE), statistic_named(arguments.text("stat", "l2_norm"))
    names = asked.library.names() if asked.library is not None else []
    form = {
        "names": names,
        "other": other,
        "rank": arguments.integer("rank"),
        "answer": None,
        "pair": None,
    }
    if not other:
        return form
    pair = _chosen(asked, other)
    answer, same = _compared(asked, pair, other)
    growth, drawn = None, []
    if "over" not in pair.left_out:
        growth = _growth(pair, stat)
        drawn = [*_drawn_roles(pair), *_drawn_tensor(pair, arguments.text("name"), answer, stat)]
    same += [_growth_line(pair, growth)] if growth is not None else []
    return form | {
        "rank": pair.rank,
        "pair": pair,
        "answer": answer,
        "verdicts": Verdict,
        "good": GOOD,
        "worst": answer.worst(_LISTED),
        "metrics": ("max_abs", "relative_euclidean", "cosine"),
        "growth": growth,
        "growth_picture": growth and _growth_picture(growth),
        "overlays": [lines_of_both for lines_of_both, _ in drawn],
        "escaped": glob.escape,
        "state": arguments.given,
        "lines": lines(asked, *same, *(line for _, asking in drawn for line in asking)),
    }


def _compared(asked: Asked, pair: _Pair, other: str) -> tuple[Comparison, list[AnswerLine]]:
    sides = sides_of(asked, other, pair.rank, pair.step)
    elements = "elements" not in pair.left_out
    compared: Sequence[Any] = sides  # all ranks as their URLs say
    if pair.rank is not None:  # one as it was read, so that nothing is read again
        compared = [moment.store.step(pair.rank, pair.step) for _, moment in pair.runs]
    options = storage_options(asked)
    answer = compare(*compared, storage_options=options, include_partial=True, elements=elements)
    words, python = ([], "") if elements else (["--no-elements"], ", elements=False")
    shell = command("compare", *sides, "--include-partial", *words)
    return answer, [
        AnswerLine(shell, f"ingest.compare({sides[0]!r}, {sides[1]!r}, include_partial=True{python})")
    ]


def _chosen(asked: Asked, other: str) -> _Pair:
    """Choose what is compared: what the URL names, else the last common step, of all ranks if they are few.

    Raises:
        UsageError: the runs have no step in common.
    """
    arguments, mine, its = asked.arguments, asked.moment, asked.moment_of(other)
    steps = sorted(set(mine.numbers) & set(its.numbers))
    if not steps:
        raise UsageError(f"{asked.links.run} and {other} have no step in common")
    ranks, rank = sorted(set(mine.ranks) & set(its.ranks)), arguments.integer("rank")
    wanted = arguments.integer("step")
    step = steps[-1] if wanted is None else wanted
    is_long = {"all": rank is None and len(ranks) > _RANKS_AT_ONCE}
    if is_long["all"] and not arguments.flag("all"):
        rank = ranks[0]
    is_long |= _takes_long(mine, ranks if rank is None else [rank], step, len(steps))
    left_out = frozenset(what for what, long in is_long.items() if long and not arguments.flag(what))
    return _Pair(((asked.links.run, mine), (other, its)), steps, step, ranks, rank, left_out)


def _takes_long(mine: Moment, ranks: Sequence[int], step: int, steps: int) -> dict[str, bool]:
    chosen = (opened for opened in mine.steps if opened.key.step == step and opened.key.rank in ranks)
    summaries = [opened.commit.summary for opened in chosen]
    tensors = max((each.tensors + each.statistics_only for each in summaries), default=0)
    nbytes = sum(each.raw_bytes for each in summaries)
    return {"over": steps * tensors > _CELLS_AT_ONCE, "elements": nbytes > _NBYTES_AT_ONCE}


def _growth(pair: _Pair, stat: str) -> ErrorGrowth | None:
    """Return the error over the steps; None if there is nothing to show. A sum of statistics has none."""
    (_, mine), (_, its) = pair.runs
    known = stat if stat in FIELDS else "l2_norm"
    try:
        rank = pair.ranks[0] if pair.rank is None and pair.ranks else pair.rank
        return None if rank is None else error_growth(mine.store, its.store, rank, known)
    except (UsageError, DamagedStore):
        return None


def _growth_line(pair: _Pair, growth: ErrorGrowth) -> AnswerLine:
    mine, its = (moment.store.url for _, moment in pair.runs)
    rank, stat = growth.rank, growth.statistic
    return AnswerLine(
        command("compare", f"{mine}@{rank}", f"{its}@{rank}", "--over-steps", "--stat", stat),
        f"ingest.error_growth(store, ingest.open_store({its!r}), {rank}, {stat!r}).rows()",
    )


def _growth_picture(growth: ErrorGrowth) -> tuple[Markup, list[tuple[str, str]]]:
    errors = growth.errors
    matrix = Matrix(
        f"relative error of {growth.statistic}",
        tuple((place, place) for place in range(len(growth.tensors))),
        tuple((step, step) for step in growth.steps),
        errors,
        np.full(errors.shape, KNOWN, np.int64),
        np.zeros(errors.shape, np.int64),
        np.isposinf(errors),
        is_count=False,
    ).binned(_ROWS, _COLUMNS)
    label = f"{matrix.title} of rank {growth.rank}, operators in order of execution by steps"
    entries = [(css, _NOTCH if css == "notch" else words) for css, words in legend(matrix)]
    return matrix_picture(matrix, label, rows_are="tensor"), entries


def _drawn_roles(pair: _Pair) -> Iterator[_Drawn]:
    for role, how, aggregate, title in _ROLES if len(pair.steps) > 1 else ():  # a single step makes no line
        given = {"role": role, "stat": how, "aggregate": aggregate, "include_partial": True}
        of_runs = [_of_role(pair, run, moment, given) for run, moment in pair.runs]
        if all(of_runs):
            same = _lines(pair, "heatmap", [given, given])
            series = [line for lines_of_run in of_runs for line in lines_of_run]
            yield overlay(title, series, f"{title} in both runs"), same


def _drawn_tensor(pair: _Pair, wanted: str, answer: Comparison, stat: str) -> Iterator[_Drawn]:
    first = answer.first.tensor if answer.first is not None else None
    if wanted or first is not None:
        names = [wanted, wanted] if wanted else _globs_of(first)
        series = [
            line
            for (run, moment), name in zip(pair.runs, names, strict=True)
            for line in series_over_steps(moment, name, stat, pair.lined(moment), before=f"{run}, ")
        ]
        if series:
            title = f"{stat} of {' and '.join(dict.fromkeys(names))}"
            each = [{"name": name, "stat": stat, "include_partial": True} for name in names]
            yield overlay(title, series, f"{title} in both runs"), _lines(pair, "trend", each)


def _globs_of(tensor: ComparedTensor | None) -> list[str]:
    if tensor is None:
        return []
    return [glob.escape(name or tensor.name) for name in (tensor.name_a, tensor.name_b)]


def _of_role(pair: _Pair, run: str, moment: Moment, given: dict[str, Any]) -> list[Series]:
    try:
        field = heatmap(moment.store, rank=pair.lined(moment), **given)
    except (UsageError, DamagedStore):
        return []
    steps, bad = field["step"].values.tolist(), field["non_finite"].values > 0
    return [
        Series(f"{run}, rank {rank}", steps, field.values[row].tolist(), bad[row].tolist())
        for row, rank in enumerate(field["rank"].values.tolist())
    ]


def _lines(pair: _Pair, question: str, given: Sequence[dict[str, Any]]) -> list[AnswerLine]:
    """Return the lines that ask the same about each run; in Python, `store` is the one that is looked at."""
    (_, mine), (_, its) = pair.runs
    stores = ((mine, "store"), (its, f"ingest.open_store({its.store.url!r})"))
    return [
        page_question(question).line(moment.store.url, each | {"rank": pair.lined(moment)}, store)
        for (moment, store), each in zip(stores, given, strict=True)
    ]


SCREEN = Endpoint(
    "compare",
    "Two runs",
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
    lambda asked: any(map(asked.flag, ("all", "over", "elements"))),
    template="compare.html.j2",
)
