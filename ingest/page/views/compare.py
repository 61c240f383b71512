"""Two runs: what differs, where first, and over the steps: the error of all tensors, a statistic of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingest.page.answers import BESIDE, RANK, STAT, STEP, sides_of
from ingest.page.arguments import UrlParameter
from ingest.page.moment import Moment
from ingest.page.screen import AnswerLine, Asked, Screen, lines
from ingest.page.views.growth import growing, growth_of
from ingest.page.views.overlays import overlay_of_tensor, overlays_of_roles
from ingest.page.views.pairing import pairing_of
from ingest.questions.choosing import statistic_named
from ingest.questions.compare import Comparison, compare
from ingest.questions.compare.compared_tensor import GOOD, ComparedTensor, Verdict
from workers.errors import UsageError
from workers.model import MIB

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


def _choose(asked: Asked, other: str) -> _RunPair:
    """Choose what is compared: what the URL names, else the last common step, of all ranks if they are few.

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
    if is_first_of_many:
        rank = ranks[0]
    step = common[-1] if wanted is None else wanted
    compared = {(of_rank, step) for of_rank in (ranks if rank is None else [rank])}
    sizes = [opened.commit.summary for opened in mine.steps if (opened.key.rank, opened.key.step) in compared]
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
