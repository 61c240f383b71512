"""Two runs: what differs, where first, and over the steps: the error of all tensors, a statistic of one."""

from __future__ import annotations

import glob
from dataclasses import dataclass
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
    """Whether the error and the statistic over the steps are shown, too."""


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
        }
        return {**form, **nothing}
    choice = _choose(asked, other)
    sides = sides_of(asked, other, choice.rank, choice.step)
    answer = compare(*sides, storage_options=asked.storage_options(), include_partial=True)
    return {
        **form,
        "rank": choice.rank,
        "ranks": choice.ranks,
        "step": choice.step,
        "common": choice.common,
        **_links_to_more(asked, choice),
        **_over_the_steps(asked, choice, answer, stat),
        **_differences(asked, answer),
        "lines": lines(asked, ("compare", *sides), f"ingest.compare({sides[0]!r}, {sides[1]!r})"),
    }


def _choose(asked: Asked, other: str) -> _RunPair:
    """Return what is compared: what the URL names, else the last common step, of all ranks if they are few.

    Raises:
        UsageError: the runs have no step in common.
    """
    arguments = asked.arguments
    mine, its = asked.moment, asked.moment_of(other)
    common = sorted(set(mine.numbers) & set(its.numbers))
    if not common:
        raise UsageError(f"{asked.links.run} and {other} have no step in common")
    wanted, rank = arguments.integer("step"), arguments.integer("rank")
    ranks = sorted(set(mine.ranks) & set(its.ranks))
    is_first_of_many = rank is None and not arguments.flag("all") and len(ranks) > _RANKS_AT_ONCE
    return _RunPair(
        its,
        common,
        common[-1] if wanted is None else wanted,
        ranks,
        ranks[0] if is_first_of_many else rank,
        is_first_of_many,
        arguments.flag("over") or len(common) <= _STEPS_AT_ONCE,
    )


def _links_to_more(asked: Asked, choice: _RunPair) -> dict[str, str]:
    """Return the URLs that show what was left out to save time; "" for what is shown."""
    state = {name: asked.arguments.text(name) for name in (BESIDE, "step", "rank", "all", "stat", "name")}
    return {
        "all_url": asked.links.view("compare", **{**state, "all": 1}) if choice.is_first_of_many else "",
        "over_url": "" if choice.is_over else asked.links.view("compare", **state, over=1),
    }


def _over_the_steps(asked: Asked, choice: _RunPair, answer: Comparison, stat: str) -> dict[str, Any]:
    """Return the error of all tensors and a statistic of one tensor over the steps; None if left out."""
    growth = overlay = None
    if choice.is_over:
        overlay = _overlay(asked, choice.its, answer, stat, choice.rank)
    if choice.is_over and choice.ranks:
        rank = choice.ranks[0] if choice.rank is None else choice.rank
        growth = growth_of(asked, choice.its, rank, stat)
    return {"growth": growth, "overlay": overlay}


def _differences(asked: Asked, answer: Comparison) -> dict[str, Any]:
    """Return what differs in the step that is compared: how much, where first, and the worst tensors."""
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


def _overlay(asked: Asked, its: Moment, answer: Comparison, stat: str, rank: int | None) -> Any:
    """Return one tensor of both runs over the steps: the one asked for, else the first that differs."""
    name = asked.arguments.text("name")
    if not name and answer.first is not None:
        name = glob.escape(answer.first.tensor.name_a or answer.first.tensor.name_b)
    if not name:
        return None
    series = [
        *_series(asked.moment, asked.links.run, name, stat, rank),
        *_series(its, asked.arguments.text(BESIDE), name, stat, rank),
    ]
    if not series:
        return None
    return {
        "name": name,
        "picture": series_picture(series, f"{stat} of {name} in both runs"),
        "names": [line.name for line in series],
    }


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
