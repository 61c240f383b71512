"""`quantiles`: percentiles of tensors, from their histograms, or exactly from their elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from ingest.questions.question import (
    Answer,
    Option,
    Part,
    Partial,
    Pattern,
    Question,
    Ranks,
    Steps,
    Table,
    without_histogram,
)
from ingest.questions.sketched_tensors import SketchedTensor, SketchedTensors, ask_of_sketches
from ingest.reader.anatomy import percentiles, widened
from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.tensor import SMALL_NBYTES, Tensor
from ingest.reader.tensor_filter import FilterFields, with_pattern
from ingest.reader.text import Plain, number_text, percentile_name, plain
from workers.arrays.histogram import Bounds
from workers.errors import UsageError

DEFAULT_PERCENTS = (0.0, 1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 99.9, 100.0)
#: The limit of tensors in one answer.
MAX_ROWS = 500_000
_COLUMNS = ("rank", "step", "name", "net", "graph", "dtype", "finite", "exactness")


@dataclass(frozen=True, slots=True)
class TensorQuantiles(Plain):
    """Percentiles of the finite elements of one tensor of one step and rank."""

    also: ClassVar = ("exactness",)

    rank: int
    step: int
    name: str
    net: str
    graph: str
    dtype: str
    finite: int
    """How many elements are finite."""
    percentiles: dict[float, Bounds]
    """By percentage: NaN if no element is finite."""

    @property
    def exactness(self) -> str:
        """`exact` if every percentile is, else `bounded`."""
        return "exact" if all(_is_known(bounds) for bounds in self.percentiles.values()) else "bounded"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        listed = [{"percent": percent, **plain(bounds)} for percent, bounds in self.percentiles.items()]
        return {**Plain.to_dict(self), "percentiles": listed}


@dataclass(frozen=True, slots=True, repr=False)
class QuantilesAnswer(Answer):
    """Percentiles of tensors, by step, rank and order of execution."""

    noun: ClassVar = "tensor"

    store: str
    magnitude: bool
    tensors: tuple[TensorQuantiles, ...]
    without: int
    """How many of the chosen tensors, counted in each step and rank, have no histogram."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps that the answer is not about, and why."""

    def table(self) -> Table[TensorQuantiles]:
        """Return a row for each tensor, with a column for each percentile."""
        percents = list(self.tensors[0].percentiles) if self.tensors else []
        columns: dict[str, Callable[[TensorQuantiles], str]] = {
            "rank": lambda tensor: str(tensor.rank),
            "step": lambda tensor: str(tensor.step),
            "name": lambda tensor: tensor.name,
        }
        named: dict[str, Callable[[TensorQuantiles], str]] = {
            percentile_name(percent): partial(_bounds_text, percent) for percent in percents
        }
        # Extremes and the median stay longest.
        last = sorted(percents, key=lambda percent: -min(percent, abs(percent - 50), 100 - percent))
        return Table(
            columns | named,
            self.tensors,
            self.noun,
            right=("rank", "step", *named),
            spare=list(map(percentile_name, last)),
        )

    def report(self) -> Iterable[Part]:
        """Return what people read."""
        yield self.table()
        yield from without_histogram(self.without)

    def rows_of_table(self) -> list[dict[str, Any]]:
        """Return a row for each tensor, with the lower and upper bound of each percentile."""
        return [
            {
                **{name: getattr(tensor, name) for name in _COLUMNS},
                **{
                    f"{percentile_name(percent)}_{side}": getattr(bounds, side)
                    for percent, bounds in tensor.percentiles.items()
                    for side in ("low", "high")
                },
            }
            for tensor in self.tensors
        ]


def quantiles(
    store: Catalog,
    pattern: Pattern = None,
    percents: Annotated[
        Sequence[float] | None,
        Option(
            "A percentile, 0 to 100; may be repeated. Default: 0, 1, 5, 25, 50, 75, 95, 99, 99.9, 100.",
            "P",
            "--percent",
            "-p",
            float,
            is_several=True,
        ),
    ] = None,
    *,
    magnitude: Annotated[bool, Option("Of the magnitudes, without the sign.")] = False,
    exact: Annotated[bool, Option("Read the elements of tensors that the store still has.")] = False,
    rank: Ranks = None,
    step: Steps = None,
    include_partial: Partial = False,
    **conditions: Unpack[FilterFields],
) -> QuantilesAnswer:
    """Show percentiles of the finite elements of tensors, also after their elements are gone.

    As `numpy.percentile` defines them, from histograms: `a..b` says that a percentile lies between these,
    which differ by at most a factor of two unless numpy interpolates between elements of different bins. The
    smallest and largest element are exact; `--exact` reads the others.

    Raises:
        UsageError: a percentage is out of range, no tensor matches, or none has a histogram.
        DamagedStore: no step can be read, or with `exact`, a tensor is damaged.
    """
    wanted = percents or DEFAULT_PERCENTS
    if bad := [percent for percent in wanted if not 0 <= percent <= 100]:
        raise UsageError(f"{bad[0]} is not a percentage", hint="Percentiles are 0 to 100.")
    chosen = with_pattern(pattern, conditions)

    def ask(tensors: SketchedTensors) -> QuantilesAnswer:
        snapshot = tensors.snapshot
        answers = [
            _of_tensor(tensor, wanted, snapshot if exact else None, magnitude=magnitude)
            for tensor in _limited(tensors)
        ]
        return QuantilesAnswer(store.url, magnitude, tuple(answers), tensors.without, snapshot.left_out)

    return ask_of_sketches(store, chosen, ask, rank=rank, step=step, include_partial=include_partial)


def _limited(tensors: SketchedTensors) -> Iterator[SketchedTensor]:
    for number, tensor in enumerate(tensors):
        if number == MAX_ROWS:
            raise UsageError(
                f"more than {MAX_ROWS} tensors match", hint="Narrow the pattern, or choose ranks and steps."
            )
        yield tensor


def _of_tensor(
    tensor: SketchedTensor, percents: Sequence[float], snapshot: Snapshot | None, *, magnitude: bool
) -> TensorQuantiles:
    """Return the percentiles of a tensor, from its elements if a snapshot is given that has them."""
    histogram = tensor.histogram
    known = {percent: histogram.quantile(percent / 100, magnitude=magnitude) for percent in percents}
    step = snapshot.step(tensor.rank, tensor.step) if snapshot is not None else None
    if step is not None and step.has_payload(tensor.row) and histogram.finite:
        values = _from_elements(Tensor(step, tensor.row), histogram.finite, percents, magnitude=magnitude)
        known = {percent: Bounds(value, value) for percent, value in values.items()}
    return TensorQuantiles(
        rank=tensor.rank,
        step=tensor.step,
        name=tensor.key.name,
        net=tensor.key.net,
        graph=tensor.key.graph,
        dtype=tensor.dtype,
        finite=histogram.finite,
        percentiles=known,
    )


def _from_elements(
    tensor: Tensor, finite: int, percents: Sequence[float], *, magnitude: bool
) -> dict[float, float]:
    kept = (
        [_finite(piece, magnitude=magnitude) for piece in tensor.pieces()]
        if tensor.nbytes <= SMALL_NBYTES
        else None
    )

    def read() -> Iterator[npt.NDArray[Any]]:
        yield from kept or (_finite(piece, magnitude=magnitude) for piece in tensor.pieces())

    dtype = next(read()).dtype
    return percentiles(read, finite, dtype, percents)


def _finite(piece: npt.NDArray[Any], *, magnitude: bool) -> npt.NDArray[Any]:
    wide = widened(piece)
    if wide.dtype.kind == "f":
        wide = wide[np.isfinite(wide)]
    elif magnitude:
        wide = wide.astype(np.float64)  # the magnitude of the smallest integer is not one of its type
    return np.abs(wide) if magnitude else wide


def _is_known(bounds: Bounds) -> bool:
    return bounds.is_exact or math.isnan(bounds.low)


def _bounds_text(percent: float, tensor: TensorQuantiles) -> str:
    bounds = tensor.percentiles[percent]
    low = number_text(bounds.low)
    return low if _is_known(bounds) else f"{low}..{number_text(bounds.high)}"


QUESTION = Question(
    quantiles, ("quantiles run.zarr 'MatMul.*' --step 40 -p 50 -p 99.9 --magnitude",), noun="tensor"
)
