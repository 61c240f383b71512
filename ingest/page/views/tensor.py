"""One tensor: its values, pictures and histograms, its neighbours, and the same elsewhere and as a whole."""

from __future__ import annotations

import glob
import math
from collections.abc import Sequence
from typing import Any

from ingest.page.asking import (
    STAT,
    THE_TENSOR,
    AnswerLine,
    Asked,
    Endpoint,
    UrlParameter,
    around,
    lines,
    page_question,
    tensor_of,
)
from ingest.page.charts import ExponentCounts, Series, histogram_picture, overlay
from ingest.page.library import Moment
from ingest.page.rendering import command
from ingest.page.sheet import SHOWN_COLUMNS, SHOWN_ROWS, Sheet, as_float, image_of
from ingest.questions.choosing import statistic_named
from ingest.questions.trend import trend_of
from ingest.reader.context import context_of
from ingest.reader.snapshot import ask_of_undamaged
from ingest.reader.tensor import SMALL_NBYTES, Tensor
from workers.arrays.histogram import Histogram
from workers.errors import DamagedStore, UsageError
from workers.store.sketches import marginal_arrays_of as arrays_of

#: A line over the steps is drawn at once if this many indexes have to be read for it; else on demand.
_AT_ONCE = 200
_LINES = 8
#: Ranks to which the view of a tensor links one by one; of more, to the next one below and above.
_RANK_LINKS = 8
#: How ranks may hold a tensor, for a command that says so.
_EXAMPLE = "shard 0"
_SHOWN = (
    "count",
    "nan_count",
    "pos_inf_count",
    "neg_inf_count",
    "zero_count",
    "negative_count",
    "min",
    "max",
    "mean",
    "std",
    "l2_norm",
)


def show(asked: Asked) -> dict[str, Any]:
    """Return all that is known of one tensor."""
    moment, arguments = asked.moment, asked.arguments
    tensor = tensor_of(moment, arguments)
    stat = statistic_named(arguments.text("stat", "l2_norm"))
    content, problem = _content(tensor)
    sheet, whole = Sheet.of(tensor.shape), _whole(asked, tensor)
    sketches, of_sketches = _sketches(asked, tensor)
    over, of_over = _over(asked, tensor, stat)
    same = [_line(asked, tensor), *[_line(asked, tensor, sheet)] * (content is not None), *of_sketches]
    same += [whole["line"]] if whole is not None and whole["tensor"] is not None else []
    return {
        "tensor": tensor,
        "statistics": [(field, getattr(tensor.statistics, field)) for field in _SHOWN],
        "source": context_of(moment.store, tensor.rank).source_line(tensor),
        "content": content,
        "problem": problem,
        "sheet": sheet if content is not None and sheet.rows and sheet.columns else None,
        "elsewhere": _elsewhere(moment, tensor),
        "over": over,
        "stat": stat,
        "whole": whole,
        **sketches,
        "exponents": sketches["exponents"] or (content and content["exponents"]),
        "lines": lines(asked, *same, *of_over),
    }


def _sketches(asked: Asked, tensor: Tensor) -> tuple[dict[str, Any], list[AnswerLine]]:
    histogram = _histogram(tensor)
    counts = None if histogram is None else ExponentCounts.of_histogram(histogram)
    given: dict[str, Any] = {"rank": tensor.rank, "step": tensor.step, "include_partial": True}
    given |= {"name": glob.escape(tensor.name)} | ({"graph": tensor.graph} if tensor.graph else {})
    # Each of them reads the index and the names of all tensors, so neither is asked for nothing.
    losses = _answered(asked, "precision", given) if histogram is not None else None
    outliers = _outliers(asked, tensor, given)
    told = {"precision": losses and losses.rows, "outliers": outliers}
    sketches = {
        "exponents": counts and counts.picture(f"Signs and binary exponents of {tensor.name}"),
        "zeros": 0 if counts is None else counts.zeros,
        "losses": losses,
        "outliers": outliers,
    }
    return sketches, [page_question(name).line(asked.url, given) for name, rows in told.items() if rows]


def _over(asked: Asked, tensor: Tensor, stat: str) -> tuple[dict[str, Any] | None, list[AnswerLine]]:
    moment, pattern = asked.moment, glob.escape(tensor.name)
    ranks = sorted([tensor.rank, *[rank for rank in moment.ranks if rank != tensor.rank][: _LINES - 1]])
    if len(ranks) * len(moment.numbers) > _AT_ONCE and not asked.arguments.flag("over"):
        return None, []
    series = series_over_steps(moment, pattern, stat, ranks, graph=tensor.graph)
    if all(math.isnan(value) for line in series for value in line.statistics):
        series = []
    label = f"{stat} of {tensor.name} over the steps, by rank"
    given = {"name": pattern, "stat": stat, "rank": ranks, "include_partial": True}
    same = [page_question("trend").line(asked.url, given)] * bool(series)
    return overlay(stat, series, label, [] if tensor.step is None else [tensor.step]), same


def _outliers(asked: Asked, tensor: Tensor, given: dict[str, Any]) -> Any:
    """Return the channels that stand out; None if the tensor has no marginals, or is too small for that."""
    step = tensor.step
    nodes = () if step is None else asked.moment.opened(tensor.rank, step).commit.nodes
    answer = _answered(asked, "outliers", given) if arrays_of(nodes) else None
    return answer if answer is not None and answer.looked_at else None


def _answered(asked: Asked, question: str, given: dict[str, Any]) -> Any:
    try:
        return page_question(question).ask(asked, **given)
    except (UsageError, DamagedStore):
        return None


def _histogram(tensor: Tensor) -> Histogram | None:
    try:
        return None if tensor.step is None else tensor.histogram
    except DamagedStore:
        return None  # `verify` names the damage


def _content(tensor: Tensor) -> tuple[dict[str, Any] | None, str]:
    """Return the values, as the page shows them, none of a large tensor; or None, and why."""
    if not tensor.is_dumped:
        return None, "Only statistics of this tensor were dumped."
    if tensor.removed:
        return None, tensor.removed
    if math.prod(tensor.shape) == 0:
        return None, "It has no elements."
    if tensor.nbytes > SMALL_NBYTES:
        return dict.fromkeys(("image", "anatomy", "histogram", "exponents")), ""
    try:
        values = as_float(tensor.read())
        anatomy = tensor.examine(bins=32)
    except DamagedStore as exc:
        return None, f"{exc.message}. {exc.hint}".rstrip(" .") + "."
    histogram = None
    if anatomy.counts:
        histogram = histogram_picture(anatomy.edges, anatomy.counts, f"Histogram of {tensor.name}")
    counts = ExponentCounts.of_values(values)
    exponents = counts and counts.picture(f"Signs and binary exponents of {tensor.name}")
    content = {"image": image_of(values), "anatomy": anatomy, "histogram": histogram, "exponents": exponents}
    return content, ""


def _line(
    asked: Asked, tensor: Tensor, sheet: Sheet | None = None, placement: str | None = None
) -> AnswerLine:
    words: list[object] = ["show", asked.url, tensor.name, "--rank", tensor.rank]
    words += [] if tensor.step is None else ["--step", tensor.step]
    words += ["--graph", tensor.graph] if tensor.graph else []
    graph = f", graph={tensor.graph!r}" if tensor.graph else ""
    name = glob.escape(tensor.name)
    python = f"store.tensors(rank={tensor.rank}, step={tensor.step}, name={name!r}{graph})[0]"
    if sheet is not None:
        rows, columns = min(sheet.rows, SHOWN_ROWS), min(sheet.columns, SHOWN_COLUMNS)
        words += ["--window", f":{rows},:{columns}"]
        python = f"ingest.window({python}, rows={rows}, columns={columns})"
    if placement is not None:
        words += ["--placement", placement] if placement else ["--unsharded"]
        python = f"{python}.unsharded({placement!r})"
    return AnswerLine(command(*words), python)


def _whole(asked: Asked, tensor: Tensor) -> dict[str, Any] | None:
    """Return a tensor as a whole if it is asked for, else only how; None if one rank has the step.

    It is asked for by `whole`, or by `placement` if the dump does not tell how ranks hold it.
    """
    if len(asked.moment.ranks_with(tensor.step)) < 2 or tensor.step is None:
        return None
    placement = asked.arguments.text("placement")
    line = _line(asked, tensor, placement=placement)
    told: dict[str, Any] = {"line": line, "tensor": None, "image": None, "problem": ""}
    if not asked.arguments.flag("whole") and not placement:
        return told
    try:
        whole = tensor.unsharded(placement)
        is_small = math.prod(whole.shape) <= SMALL_NBYTES // 8
        return told | {"tensor": whole, "image": image_of(as_float(whole.read())) if is_small else None}
    except (UsageError, DamagedStore) as exc:
        by_hand = _line(asked, tensor, placement=placement or _EXAMPLE)
        return told | {"line": by_hand, "problem": exc.message}


def _elsewhere(moment: Moment, tensor: Tensor) -> list[tuple[str, str, dict[str, Any]]]:
    """Return words, key and place of the same name in the steps before and after, and on other ranks.

    To all ranks if they are few, else to the nearest.
    """
    before, after = (None, None)
    if tensor.step is not None:
        before, after = around(tensor.step, moment.steps_of(tensor.rank))
    ranks = moment.ranks_with(tensor.step)
    below, above = around(tensor.rank, ranks)
    keys = {below: "-", above: "+"}
    links: list[tuple[str, str, str, int | None]] = [
        ("← previous step", "[", "step", before),
        ("next step →", "]", "step", after),
    ]
    if len(ranks) > _RANK_LINKS:
        links += [("↑ lower rank", "-", "rank", below), ("higher rank ↓", "+", "rank", above)]
    else:
        links += [(f"rank {rank}", keys.get(rank, ""), "rank", rank) for rank in ranks if rank != tensor.rank]
    return [(words, key, {axis: number}) for words, key, axis, number in links if number is not None]


def series_over_steps(
    moment: Moment, name: str, stat: str, ranks: Sequence[int], *, graph: str | None = None, before: str = ""
) -> list[Series]:
    """Return a line for each rank of the first tensor that matches; none if the run does not have it.

    Args:
        moment: the run.
        name: a glob for the name of the tensor.
        stat: the statistic.
        ranks: the ranks.
        graph: its graph; None for that of the first.
        before: what the names of lines begin with.
    """
    try:
        frame = ask_of_undamaged(
            moment.snapshot().only(ranks=ranks), lambda readable: trend_of(readable, {"name": name}, stat)
        )
    except (UsageError, DamagedStore):
        return []
    first = frame[frame["name"] == frame["name"].iloc[0]]
    wanted = first["graph"].iloc[0] if graph is None else graph
    return [
        Series(
            f"{before}rank {rank}",
            rows["step"].tolist(),
            rows["value"].tolist(),
            (rows["non_finite"] > 0).tolist(),
        )
        for rank, rows in first[first["graph"] == wanted].groupby("rank")
    ]


SCREEN = Endpoint(
    "tensor",
    "Tensor",
    (
        *THE_TENSOR,
        STAT,
        UrlParameter("over", "boolean", "Draw the lines over the steps, however many they are."),
        UrlParameter("whole", "boolean", "Put the tensor together from the pieces of all ranks."),
        UrlParameter("placement", "string", "How ranks hold it, such as `shard 0`; else as the dump tells."),
    ),
    show,
    lambda asked: asked.flag("over") or asked.flag("whole") or bool(asked.text("placement")),
    template="tensor.html.j2",
)
