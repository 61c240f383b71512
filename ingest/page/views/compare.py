"""Two runs: what differs, where first, and over the steps: the error of all tensors, a statistic of one."""

from __future__ import annotations

import glob
from typing import Any

from ingest.page.answers import BESIDE, RANK, STAT, STEP, sides_of
from ingest.page.arguments import Parameter
from ingest.page.drawing.charts import Series, series_by_rank, series_picture
from ingest.page.moment import Moment
from ingest.page.screen import Asked, Screen, lines
from ingest.page.views.growth import growth_of
from ingest.questions.compare import Comparison, compare
from ingest.questions.compare.result import GOOD, ComparedTensor, Verdict
from ingest.questions.trend import statistic_named, trend
from workers.errors import DamagedStore, UsageError

#: Tensors that are listed.
_LISTED = 40
_LINES = 3
#: Runs with more ranks than this in common are compared rank by rank, unless all are asked for: each takes a
#: tenth of a second or more.
_RANKS_AT_ONCE = 4
#: What is shown over the steps is made at once if the runs have at most this many in common; else on demand.
_STEPS_AT_ONCE = 8
#: What is shown of the metrics of a pair.
_METRICS = ("max_abs", "relative_euclidean", "cosine")


def show(asked: Asked) -> dict[str, Any]:
    """Return the other runs to choose from; with one of them, the comparison of a step."""
    arguments = asked.arguments
    other, rank = arguments.text(BESIDE), arguments.integer("rank")
    stat = statistic_named(arguments.text("stat", "l2_norm"))
    names = [name for name in asked.runs() if name != asked.links.run]
    shown: dict[str, Any] = {"names": names, "other": other, "rank": rank, "stat": stat, "answer": None}
    shown |= {"over_url": "", "all_url": ""}
    if not other:
        return {**shown, "lines": None, "step": None, "common": []}
    mine, its = asked.moment, asked.moment_of(other)
    common = sorted(set(mine.numbers) & set(its.numbers))
    if not common:
        raise UsageError(f"{asked.links.run} and {other} have no step in common")
    wanted = arguments.integer("step")
    step = wanted if wanted is not None else common[-1]
    ranks = sorted(set(mine.ranks) & set(its.ranks))
    is_one_of_many = rank is None and not arguments.flag("all") and len(ranks) > _RANKS_AT_ONCE
    if is_one_of_many:
        rank = ranks[0]
    sides = sides_of(asked, other, rank, step)
    # Steps of the moments, of which nothing is read again; all ranks at once only by their URLs.
    opened = sides if rank is None else (mine.store.step(rank, step), its.store.step(rank, step))
    answer = compare(*opened, storage_options=asked.storage_options(), include_partial=True)
    first = answer.first
    is_over = arguments.flag("over") or len(common) <= _STEPS_AT_ONCE
    state = {name: arguments.text(name) for name in (BESIDE, "step", "rank", "all", "stat", "name")}
    return {
        **shown,
        "rank": rank,
        "all_url": asked.links.view("compare", **{**state, "all": 1}) if is_one_of_many else "",
        "ranks": ranks,
        "over_url": "" if is_over else asked.links.view("compare", **state, over=1),
        "growth": growth_of(asked, its, ranks[0] if rank is None else rank, stat)
        if is_over and ranks
        else None,
        "answer": answer,
        "step": step,
        "common": common,
        "counts": [
            (verdict, answer.counts[verdict], verdict in GOOD)
            for verdict in Verdict
            if answer.counts[verdict]
        ],
        "first": first,
        "first_url": _url(asked, first.tensor) if first is not None else "",
        "rows": [_row(asked, tensor) for tensor in answer.worst(_LISTED) if tensor.verdict not in GOOD],
        "metrics": _METRICS,
        "overlay": _overlay(asked, its, answer, stat, rank) if is_over else None,
        "lines": lines(asked, ("compare", *sides), f"ingest.compare({sides[0]!r}, {sides[1]!r})"),
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


def _overlay(asked: Asked, its: Moment, answer: Comparison, stat: str, rank: int | None) -> Any:
    """Return one tensor of both runs over the steps: the one asked for, else the first that differs."""
    name = asked.arguments.text("name")
    if not name and answer.first is None:
        return None
    # The other run may have another name for it.
    names = (name, name) if name else _names_of(answer.first.tensor)
    series = [
        *_series(asked.moment, asked.links.run, names[0], stat, rank),
        *_series(its, asked.arguments.text(BESIDE), names[1], stat, rank),
    ]
    if not series:
        return None
    shown = " and ".join(dict.fromkeys(names))
    return {
        "name": shown,
        "picture": series_picture(series, f"{stat} of {shown} in both runs"),
        "names": [line.name for line in series],
        "has_bad": any(any(line.bad) for line in series),
    }


def _names_of(tensor: ComparedTensor) -> tuple[str, str]:
    """Return globs for the names of a tensor in both runs; the same if only one of them has it."""
    return glob.escape(tensor.name_a or tensor.name_b), glob.escape(tensor.name_b or tensor.name_a)


def _series(moment: Moment, run: str, name: str, stat: str, rank: int | None) -> list[Series]:
    """Return a line for each of the first ranks; none if the run does not have the tensor."""
    ranks = moment.ranks[:_LINES] if rank is None else [rank]
    try:
        frame = trend(moment.store, name, stat, rank=ranks, include_partial=True)
    except (UsageError, DamagedStore):
        return []
    first = frame[(frame["name"] == frame["name"].iloc[0]) & (frame["graph"] == frame["graph"].iloc[0])]
    return series_by_rank(first, f"{run}, ")


SCREEN = Screen(
    "compare",
    "Two runs",
    "compare.html.j2",
    (
        Parameter(BESIDE, "string", "The other run."),
        STEP,
        RANK,
        Parameter("all", "boolean", "Compare all ranks, however many they are."),
        Parameter("over", "boolean", "Show the error over the steps, however many they are."),
        STAT,
        Parameter("name", "string", "The tensor whose statistic is drawn for both runs, or a glob."),
    ),
    show,
    is_slow=lambda asked: asked.flag("all") or asked.flag("over"),
)
