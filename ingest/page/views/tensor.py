"""One tensor: its values, pictures and histograms, its neighbours, and the same elsewhere and as a whole."""

from __future__ import annotations

import base64
import glob
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from ingest.page.answers import STAT, THE_RANK, THE_TENSOR
from ingest.page.asking import AnswerLine, Asked, Screen, UrlParameter, around, lines, tensor_of
from ingest.page.charts import ExponentCounts, bars, exponents_picture, series_by_rank, series_picture
from ingest.page.rendering import number
from ingest.page.sheet import SHOWN_COLUMNS, SHOWN_ROWS, Sheet
from ingest.page.views.compare import trend_line
from ingest.questions.choosing import statistic_named
from ingest.questions.outliers import OddPositions, OutliersAnswer, outliers
from ingest.questions.precision import FormatLosses, PrecisionAnswer, precision
from ingest.questions.trend import trend_of
from ingest.reader.context import context_of
from ingest.reader.parallel.unsharded import UnshardedTensor
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import ask_of_undamaged
from ingest.reader.tensor import SMALL_NBYTES, Tensor
from workers.arrays.sketches.histogram import Histogram
from workers.arrays.statistics import is_complex, widened_complex
from workers.errors import DamagedStore, UsageError
from workers.store.sketches.marginals import arrays_of

#: Odd positions that are listed.
_ODD_LISTED = 12
_Answer = TypeVar("_Answer", PrecisionAnswer, OutliersAnswer)


@dataclass(frozen=True, slots=True)
class ShownSketches:
    """What the sketches of one tensor tell."""

    exponents: Markup | None = None
    """Of its histogram."""
    zeros: int = 0
    losses: tuple[FormatLosses, ...] = ()
    """What other formats would lose; empty without a histogram."""
    odd: tuple[OddPositions, ...] = ()
    """Channels that stand out, are dead or saturated; the worst first."""
    has_marginals: bool = False
    more_odd: int = 0
    """How many of these are not listed."""
    lines: tuple[AnswerLine, ...] = ()
    """Those that give the same answers."""

    @staticmethod
    def positions(odd: OddPositions) -> str:
        """Return the places along the axis as people write them."""
        return format_ranges(odd.positions)


def sketches_of(asked: Asked, tensor: Tensor) -> ShownSketches:
    """Return the contents of a tensor's sketches; empty if its step was committed without them."""
    if tensor.step is None:
        return ShownSketches()
    histogram = _histogram(tensor)
    exponents, zeros = _exponents(tensor, histogram)
    # Each of them reads the index and the names of all tensors, so neither is asked for nothing.
    losses = None if histogram is None else _answered(precision, asked, tensor)
    nodes = asked.moment.store.step(tensor.rank, tensor.step).commit.nodes
    odd = _answered(outliers, asked, tensor) if arrays_of(nodes) else None
    positions = () if odd is None else odd.positions
    has_marginals = odd is not None and odd.looked_at > 0
    asked_too = [*["precision"] * bool(losses and losses.rows), *["outliers"] * has_marginals]
    return ShownSketches(
        exponents,
        zeros,
        () if losses is None else losses.rows,
        positions[:_ODD_LISTED],
        has_marginals,
        max(len(positions) - _ODD_LISTED, 0),
        tuple(_sketch_line(asked, tensor, question) for question in asked_too),
    )


def _answered(ask: Callable[..., _Answer], asked: Asked, tensor: Tensor) -> _Answer | None:
    """Return the answer of a question over sketches for one tensor; None if it has no such sketch."""
    try:
        return ask(
            asked.moment.store,
            glob.escape(tensor.name),
            rank=tensor.rank,
            step=tensor.step,
            include_partial=True,
            **({"graph": tensor.graph} if tensor.graph else {}),
        )
    except (UsageError, DamagedStore):
        return None


def _sketch_line(asked: Asked, tensor: Tensor, question: str) -> AnswerLine:
    """Return the line that asks a question over sketches of one tensor; see `_answered`."""
    pattern, graph = glob.escape(tensor.name), ("--graph", tensor.graph) if tensor.graph else ()
    place = ("--rank", tensor.rank, "--step", tensor.step, "--include-partial")
    given = f"rank={tensor.rank}, step={tensor.step}, include_partial=True"
    given += f", graph={tensor.graph!r}" if tensor.graph else ""
    return AnswerLine.of(
        (question, asked.url, pattern, *place, *graph), f"ingest.{question}(store, {pattern!r}, {given})"
    )


def _histogram(tensor: Tensor) -> Histogram | None:
    try:
        return tensor.histogram
    except DamagedStore:
        return None  # `verify` names the damage


def _exponents(tensor: Tensor, histogram: Histogram | None) -> tuple[Markup | None, int]:
    counts = None if histogram is None else ExponentCounts.of_histogram(histogram)
    if counts is None:
        return None, 0
    return exponents_picture(counts, f"Signs and binary exponents of {tensor.name}"), counts.zeros


#: How ranks may hold a tensor, for a command that says so.
_EXAMPLE = "shard 0"


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """What the screen of a tensor shows of it as a whole."""

    url: str
    """Of the screen that shows it."""
    line: AnswerLine
    """That gives the same; with a problem, one that says how ranks hold the tensor."""
    tensor: UnshardedTensor | None = None
    """None if it is not asked for, or cannot be put together."""
    image: Image | None = None
    """None if it is large, or a single number."""
    problem: str = ""


def whole_of(asked: Asked, tensor: Tensor, state: dict[str, Any]) -> WholeTensor | None:
    """Return a tensor as a whole if it is asked for, or a link to it; None if one rank has the step.

    Args:
        asked: what is asked for: `whole`, and `placement` if the dump does not tell.
        tensor: the piece of a rank.
        state: the arguments of its screen.
    """
    ranks = {opened.key.rank for opened in asked.moment.steps if opened.key.step == tensor.step}
    if len(ranks) < 2 or tensor.step is None:
        return None
    placement = asked.arguments.text("placement")
    link = WholeTensor(asked.links.view("tensor", **state, whole=1), _whole_line(asked, tensor, placement))
    if not asked.arguments.flag("whole") and not placement:
        return link
    try:
        whole = tensor.unsharded(placement)
        size = math.prod(whole.shape)
        image = image_of(as_matrix(as_float(whole.read()))) if 1 < size <= SMALL_NBYTES // 8 else None
    except (UsageError, DamagedStore) as exc:
        return WholeTensor(link.url, _whole_line(asked, tensor, placement or _EXAMPLE), problem=exc.message)
    return WholeTensor(link.url, link.line, whole, image)


def _whole_line(asked: Asked, tensor: Tensor, placement: str) -> AnswerLine:
    """Return the line that puts a tensor together."""
    graph = ("--graph", tensor.graph) if tensor.graph else ()
    given = f", graph={tensor.graph!r}" if tensor.graph else ""
    words = ("--placement", placement) if placement else ("--unsharded",)
    name = glob.escape(tensor.name)
    piece = f"store.tensors(rank={tensor.rank}, step={tensor.step}, name={name!r}{given})[0]"
    return AnswerLine.of(
        ("show", asked.url, tensor.name, "--rank", tensor.rank, "--step", tensor.step, *graph, *words),
        f"{piece}.unsharded({placement!r})",
    )


def as_float(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values as float64; of complex numbers, their absolute values."""
    if is_complex(values.dtype):
        values = np.abs(widened_complex(values))
    converted: npt.NDArray[np.float64] = np.asarray(values).astype(np.float64)
    return converted


#: A line over the steps is drawn at once if this many indexes have to be read for it; else on demand.
_AT_ONCE = 200
_LINES = 8
#: Ranks to which the view of a tensor links one by one; of more, to the next one below and above.
_RANK_LINKS = 8


@dataclass(frozen=True, slots=True)
class _Content:
    """The values, as the page shows them."""

    image: Image | None
    anatomy: Any
    histogram: Any
    exponents: Markup | None


def show(asked: Asked) -> dict[str, Any]:
    """Return all that is known of one tensor."""
    tensor = tensor_of(asked.moment, asked.arguments)
    context = context_of(asked.moment.store, tensor.rank)
    stat = statistic_named(asked.arguments.text("stat", "l2_norm"))
    content, problem = _content(tensor)
    statistics, sketches = tensor.statistics, sketches_of(asked, tensor)
    sheet = Sheet.of(tensor.shape)
    state = {"rank": tensor.rank, "step": tensor.step, "name": tensor.name, "graph": tensor.graph}
    whole = whole_of(asked, tensor, state)
    over = _over(asked, tensor, stat)
    return {
        "tensor": tensor,
        "statistics": [(field, getattr(statistics, field)) for field in _SHOWN],
        "sketches": sketches,
        "source": context.source_line(tensor),
        "content": content,
        "problem": problem,
        "sheet": sheet if content is not None and sheet.rows and sheet.columns else None,
        "values_url": asked.links.api("values", **state),
        "producers": [_neighbour(asked, neighbour) for neighbour in tensor.producers],
        "consumers": [_neighbour(asked, neighbour) for neighbour in tensor.consumers][:40],
        "operands": [_link(asked, operand) for operand in tensor.operands],
        "elsewhere": _elsewhere(asked, tensor),
        "over": over,
        "over_url": asked.links.view("tensor", **state, stat=asked.arguments.text("stat"), over=1),
        "stat": stat,
        "state": state,
        "whole": whole,
        "lines": lines(
            asked,
            _line(asked, tensor),
            *([_line(asked, tensor, Sheet.of(tensor.shape))] if content is not None else ()),
            *sketches.lines,
            *_line_of_whole(whole),
            *((over["answer"],) if over is not None else ()),
        ),
    }


def _line_of_whole(whole: WholeTensor | None) -> tuple[AnswerLine, ...]:
    return () if whole is None or whole.tensor is None else (whole.line,)


def _line(asked: Asked, tensor: Tensor, sheet: Sheet | None = None) -> AnswerLine:
    """Return the line that shows the same tensor, or the first of its values as a table."""
    step = () if tensor.step is None else ("--step", tensor.step)
    graph = ("--graph", tensor.graph) if tensor.graph else ()
    given = f", graph={tensor.graph!r}" if tensor.graph else ""
    name = glob.escape(tensor.name)
    words = ("show", asked.url, tensor.name, "--rank", tensor.rank, *step, *graph)
    python = f"store.tensors(rank={tensor.rank}, step={tensor.step}, name={name!r}{given})[0]"
    if sheet is None:
        return AnswerLine.of(words, python)
    rows, columns = min(sheet.rows, SHOWN_ROWS), min(sheet.columns, SHOWN_COLUMNS)
    return AnswerLine.of(
        (*words, "--window", f":{rows},:{columns}"),
        f"ingest.window({python}, rows={rows}, columns={columns})",
    )


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


def _content(tensor: Tensor) -> tuple[_Content | None, str]:
    """Return the part of the page about values; None, and the reason, if there are none to read."""
    if not tensor.is_dumped:
        return None, "Only statistics of this tensor were dumped."
    if tensor.removed:
        return None, tensor.removed
    if math.prod(tensor.shape) == 0:
        return None, "It has no elements."
    if tensor.nbytes > SMALL_NBYTES:
        return _Content(None, None, None, None), ""
    try:
        values = as_float(tensor.read())
        anatomy = tensor.examine(bins=32)
    except DamagedStore as exc:
        return None, f"{exc.message}. {exc.hint}".rstrip(" .") + "."
    edges = anatomy.edges
    labels = [f"{number(low)} to {number(high)}" for low, high in pairwise(edges)]
    histogram = None
    if anatomy.counts:
        ends = number(edges[0]), number(edges[-1])
        histogram = bars(labels, anatomy.counts, f"Histogram of {tensor.name}", ticks=ends)
    counts = ExponentCounts.of_values(values)
    title = f"Signs and binary exponents of {tensor.name}"
    exponents = None if counts is None else exponents_picture(counts, title)
    image = image_of(as_matrix(values)) if values.size > 1 else None
    return _Content(image, anatomy, histogram, exponents), ""


def _neighbour(asked: Asked, neighbour: Any) -> dict[str, Any]:
    doubt = "" if neighbour.is_certain else "equal constants: may be by chance"
    if neighbour.by == "graph":
        doubt = "by the graph; it holds other bytes"
    return {**_link(asked, neighbour.tensor), "doubt": doubt}


def _link(asked: Asked, tensor: Tensor) -> dict[str, Any]:
    statistics = tensor.statistics
    bad = statistics.nan_count + statistics.pos_inf_count + statistics.neg_inf_count
    return {
        "name": tensor.name,
        "op_type": tensor.op_type,
        "io": f"{tensor.io} {tensor.slot}",
        "is_bad": bad > 0,
        "url": asked.links.view(
            "tensor", rank=tensor.rank, step=tensor.step, name=tensor.name, graph=tensor.graph
        ),
    }


def _elsewhere(asked: Asked, tensor: Tensor) -> dict[str, Any]:
    """Return the same name in the steps before and after, and on other ranks."""

    def url(rank: int, step: int | None) -> str:
        return asked.links.view("tensor", rank=rank, step=step, name=tensor.name, graph=tensor.graph)

    shown: dict[str, Any] = {"previous": "", "next": "", "cell": ""}
    if tensor.step is not None:
        previous, following = around(tensor.step, asked.moment.steps_of(tensor.rank))
        shown = {
            "previous": "" if previous is None else url(tensor.rank, previous),
            "next": "" if following is None else url(tensor.rank, following),
            "cell": asked.links.view("cell", rank=tensor.rank, step=tensor.step),
        }
    links = _ranks_beside(asked.moment.ranks_with(tensor.step), tensor.rank)
    return {**shown, "ranks": [(words, url(rank, tensor.step), key) for words, rank, key in links]}


def _ranks_beside(ranks: Sequence[int], rank: int) -> list[tuple[str, int, str]]:
    """Return words, rank and key of each link: to all ranks if they are few, else to the nearest."""
    below, above = around(rank, ranks)
    if len(ranks) > _RANK_LINKS:
        near = (("↑ lower rank", below, "-"), ("higher rank ↓", above, "+"))
        return [(words, other, key) for words, other, key in near if other is not None]
    keys = {below: "-", above: "+"}
    return [(f"rank {other}", other, keys.get(other, "")) for other in ranks if other != rank]


def _over(asked: Asked, tensor: Tensor, stat: str) -> Any:
    """Return lines over the steps, one for each rank; None if that takes long and is not asked for."""
    moment = asked.moment
    ranks = _near(moment.ranks, tensor.rank)
    if len(ranks) * len(moment.numbers) > _AT_ONCE and not asked.arguments.flag("over"):
        return None
    try:
        frame = ask_of_undamaged(
            moment.snapshot().only(ranks=ranks),
            lambda readable: trend_of(readable, {"name": glob.escape(tensor.name)}, stat),
        )
    except UsageError:
        return None
    series = series_by_rank(frame[frame["graph"] == tensor.graph])
    picture = series_picture(series, f"{stat} of {tensor.name} over the steps, by rank", tensor.step)
    return {
        "picture": picture,
        "names": [line.name for line in series],
        "has_bad": any(any(line.bad) for line in series),
        "is_known": bool(frame["value"].notna().any()),
        "answer": trend_line(asked, moment, glob.escape(tensor.name), stat, ranks),
    }


def _near(ranks: Sequence[int], rank: int) -> list[int]:
    """Return the rank and others up to eight."""
    others = [other for other in ranks if other != rank]
    return sorted([rank, *others[: _LINES - 1]])


SCREEN = Screen(
    "tensor",
    "Tensor",
    "tensor.html.j2",
    (
        THE_RANK,
        *THE_TENSOR,
        STAT,
        UrlParameter("over", "boolean", "Draw the lines over the steps, however many they are."),
        UrlParameter("whole", "boolean", "Put the tensor together from the pieces of all ranks."),
        UrlParameter("placement", "string", "How ranks hold it, such as `shard 0`; else as the dump tells."),
    ),
    show,
    is_slow=lambda asked: asked.flag("over") or asked.flag("whole") or bool(asked.text("placement")),
)


#: The most pixels along one side; more values share a pixel.
MAX_SIDE = 320
_NAN, _POS, _NEG = 253, 254, 255
_STEPS = 253
#: From low to high: dark blue over teal to yellow, and blue over white to brown for values of both signs.
_ONE_SIGN = ((38, 24, 87), (49, 72, 158), (41, 120, 160), (42, 161, 137), (122, 200, 92), (247, 229, 90))
_BOTH_SIGNS = ((24, 60, 138), (92, 146, 210), (244, 244, 240), (224, 150, 74), (120, 62, 12))
_SPECIAL = ((225, 0, 84), (255, 106, 0), (130, 0, 200))


@dataclass(frozen=True, slots=True)
class Image:
    """A picture of a matrix."""

    url: str
    """A `data:` URL."""
    width: int
    height: int
    low: float
    high: float
    has_both_signs: bool


def image_of(values: npt.NDArray[np.float64]) -> Image:
    """Return the picture of a matrix, (row, column).

    A pixel of several values is NaN or Inf if any of them is, else their mean.
    """
    pixels = _shrunk(values)
    finite = pixels[np.isfinite(pixels)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    both = low < 0 < high
    begin, end = (-max(-low, high), max(-low, high)) if both else (low, high)
    span = end / 2 - begin / 2 or 1.0
    with np.errstate(invalid="ignore"):
        share = np.where(np.isfinite(pixels), (pixels / 2 - begin / 2) / span, 0)
    index = np.clip(np.round(share * (_STEPS - 1)), 0, _STEPS - 1).astype(np.uint8)
    index[np.isnan(pixels)], index[np.isposinf(pixels)], index[np.isneginf(pixels)] = _NAN, _POS, _NEG
    data = _png(index, _palette(_BOTH_SIGNS if both else _ONE_SIGN))
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return Image(url, index.shape[1], index.shape[0], low, high, both)


def as_matrix(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return values of any shape as a matrix that is not too long: the last axis across; a vector wraps."""
    if values.ndim >= 2 and values.shape[-1] > 1:
        return values.reshape(-1, values.shape[-1])
    flat = values.reshape(-1)
    across = max(math.ceil(math.sqrt(flat.size)), 1)
    if flat.size <= 64:
        return flat.reshape(1, -1)
    padded = np.full(math.ceil(flat.size / across) * across, 0.0)
    padded[: flat.size] = flat
    return padded.reshape(-1, across)


def _shrunk(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a matrix with at most `MAX_SIDE` rows and columns; a pixel is the mean of its values."""
    for axis in range(values.ndim):
        values = _shrunk_along(values, axis)
    return values


def _shrunk_along(values: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    """Return the means of neighbours along an axis; the last of them may be fewer."""
    length = values.shape[axis]
    together = math.ceil(length / MAX_SIDE)
    if together <= 1:
        return values
    starts = np.arange(0, length, together)
    counts = np.expand_dims(np.diff(starts, append=length), 1 - axis).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        # Divided first, or large numbers would become infinite. The mean of NaN is NaN, and that of Inf is
        # Inf: nothing hides behind its neighbours.
        shares = values / np.repeat(counts, counts.astype(np.int64).ravel(), axis=axis)
        means: npt.NDArray[np.float64] = np.add.reduceat(shares, starts, axis=axis)
        return means


def _palette(stops: tuple[tuple[int, int, int], ...]) -> bytes:
    places = np.linspace(0, len(stops) - 1, _STEPS)
    colours = np.stack(
        [np.interp(places, range(len(stops)), [stop[part] for stop in stops]) for part in range(3)], axis=1
    )
    return np.round(colours).astype(np.uint8).tobytes() + bytes(part for stop in _SPECIAL for part in stop)


def _png(index: npt.NDArray[np.uint8], palette: bytes) -> bytes:
    height, width = index.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), index], axis=1).tobytes()
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        + _chunk(b"PLTE", palette)
        + _chunk(b"IDAT", zlib.compress(lines, 6))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
