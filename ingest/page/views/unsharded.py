"""An unsharded tensor: put together from the pieces of all ranks."""

from __future__ import annotations

import glob
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.page.drawing.png import Image, as_matrix, image_of
from ingest.page.screen import AnswerLine, Asked
from ingest.reader.parallel.unsharded import UnshardedTensor
from ingest.reader.tensor import SMALL_NBYTES, Tensor
from workers.arrays.statistics import is_complex, widened_complex
from workers.errors import DamagedStore, UsageError

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
    link = WholeTensor(asked.links.view("tensor", **state, whole=1), _line(asked, tensor, placement))
    if not asked.arguments.flag("whole") and not placement:
        return link
    try:
        whole = tensor.unsharded(placement)
        size = math.prod(whole.shape)
        image = image_of(as_matrix(as_float(whole.read()))) if 1 < size <= SMALL_NBYTES // 8 else None
    except (UsageError, DamagedStore) as exc:
        return WholeTensor(link.url, _line(asked, tensor, placement or _EXAMPLE), problem=exc.message)
    return WholeTensor(link.url, link.line, whole, image)


def _line(asked: Asked, tensor: Tensor, placement: str) -> AnswerLine:
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
