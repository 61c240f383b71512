"""Read the bad elements of an operator's output, and what its inputs held at their places.

Memory: a piece of the output, and the range of each input that it was computed from, both bounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.identities.operators import plain_name
from ingest.questions.why.answer import WhyAnswer, WhyElement, WhyReason, WhyRow
from ingest.questions.why.definitions import (
    ELEMENTWISE,
    SOFTMAX,
    SUMS,
    Numbers,
    beyond,
    reasons_of,
    reasons_of_rows,
)
from ingest.reader.tensor import Tensor
from workers.arrays.comparison import is_real
from workers.arrays.dtypes import from_name
from workers.errors import UsageError
from workers.model import MIB

#: Elements of the output that are read at once.
_PIECE = 1 << 18
#: Elements of an input that are read at once: those from which the bad elements of a piece were computed.
_RANGE = 1 << 21
#: Elements of the output that are looked at; in a larger one, the rest is not.
_EXAMINED = 1 << 24
#: Tensors of which no range can be read, such as those in a device layout, are read whole up to this size.
_WHOLE_NBYTES = 64 * MIB
_ELEMENTS = 10


def explain(
    op_type: str, inputs: Sequence[Tensor], bad: Tensor, *, infinity: bool = False
) -> WhyAnswer | None:
    """Return why an operator produced NaN or Inf; None if the elements are not known.

    Args:
        op_type: its type.
        inputs: its inputs, in order; none for a tensor that was bad already, which has no reason of its own.
        bad: its output with NaN or Inf, or such a tensor.
        infinity: explain infinity alone; otherwise NaN, and infinity in a tensor without NaN.

    Raises:
        DamagedStore: the elements are damaged.
    """
    reader = _Reader(op_type, tuple(inputs), bad, infinity)
    try:
        return reader.why()
    except UsageError:
        return None  # they were removed


@dataclass
class _Reader:
    """Goes through one output."""

    op_type: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    infinity: bool
    """Whether infinity alone is explained."""
    _counts: Counter[str] = field(default_factory=Counter)
    _elements: list[WhyElement] = field(default_factory=list)

    def why(self) -> WhyAnswer | None:
        size = math.prod(self.output.shape)
        if not size or not _is_readable(self.output):
            return None
        examined = min(size, _EXAMINED)
        for start in range(0, examined, _PIECE):
            piece = self.output.elements(start, min(start + _PIECE, examined))
            places = self._bad_places(piece)
            if len(places):
                self._add(places + start, piece[places].astype(np.float64), piece.dtype)
        if not self._elements:
            return None
        return WhyAnswer(
            self.output.name,
            tuple(tensor.name for tensor in self.inputs),
            tuple(WhyReason(reason, count) for reason, count in self._counts.most_common()),
            tuple(self._elements),
            self._counts.total(),
            examined,
            size,
        )

    def _bad_places(self, piece: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if self.infinity:
            return np.flatnonzero(np.isinf(piece))
        has_nan = self.output.statistics.nan_count > 0
        return np.flatnonzero(np.isnan(piece) if has_nan else ~np.isfinite(piece))

    def _add(self, places: npt.NDArray[np.int64], values: Numbers, dtype: np.dtype[Any]) -> None:
        """Add the bad elements of a piece, by their places in the flat output."""
        operands = [self._operand(tensor, places) for tensor in self.inputs]
        reasons = self._reasons(places, values, operands, dtype)
        self._counts.update(reasons)
        for number in range(min(len(places), _ELEMENTS - len(self._elements))):
            index = np.unravel_index(int(places[number]), self.output.shape)
            self._elements.append(
                WhyElement(
                    tuple(map(int, index)),
                    float(values[number]),
                    tuple(None if operand is None else float(operand[number]) for operand in operands),
                    reasons[number],
                    tuple(self._rows(tuple(map(int, index)))),
                )
            )

    def _reasons(
        self,
        places: npt.NDArray[np.int64],
        values: Numbers,
        operands: Sequence[Numbers | None],
        dtype: np.dtype[Any],
    ) -> list[str]:
        name = plain_name(self.op_type)
        if name in SOFTMAX and self.inputs:
            return self._reasons_of_rows(places)
        if name in SUMS and self.inputs and np.isinf(values).all() and all(map(_is_finite, self.inputs)):
            return [beyond(SUMS[name], dtype)] * len(places)
        definition = ELEMENTWISE.get(name)
        if definition is None:
            return [""] * len(places)
        return reasons_of(definition, operands, values, dtype)

    def _reasons_of_rows(self, places: npt.NDArray[np.int64]) -> list[str]:
        """Return the reason of the row of each place: rows along the last axis."""
        source, unknown = self.inputs[0], [""] * len(places)
        length = self.output.shape[-1] if self.output.shape else 1
        rows = places // length
        first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        if source.shape != self.output.shape or not _is_readable(source) or count * length > _RANGE:
            return unknown
        elements = source.elements(first * length, (first + count) * length).astype(np.float64)
        reasons = reasons_of_rows(elements.reshape(count, length))
        return [reasons[row - first] for row in rows.tolist()]

    def _rows(self, index: tuple[int, ...]) -> Iterator[WhyRow]:
        """Yield the row of each input whose trailing axes the output lacks, or has with length 1."""
        for number, tensor in enumerate(self.inputs):
            leading = _reduced_after(self.output.shape, tensor.shape)
            if leading is None or not _is_readable(tensor):
                continue
            length = math.prod(tensor.shape[leading:])
            if length > _RANGE:
                continue
            first = length * int(np.ravel_multi_index(index[:leading], tensor.shape[:leading]))
            elements = tensor.elements(first, first + length).astype(np.float64)
            finite = elements[np.isfinite(elements)]
            low, high = (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
            at = ", ".join([*map(str, index[:leading]), *":" * (len(tensor.shape) - leading)])
            yield WhyRow(number, at, low, high)

    def _operand(self, tensor: Tensor, places: npt.NDArray[np.int64]) -> Numbers | None:
        """Return the elements of an input at these places of the output; None if it is not computed so."""
        if not _is_readable(tensor):
            return None
        sources = _sources(places, self.output.shape, tensor.shape)
        if sources is None:
            return None
        first, last = int(sources.min()), int(sources.max())
        if last - first >= _RANGE:
            return None
        return tensor.elements(first, last + 1)[sources - first].astype(np.float64)


def _sources(
    places: npt.NDArray[np.int64], output: tuple[int, ...], shape: tuple[int, ...]
) -> npt.NDArray[np.int64] | None:
    """Return the flat elements of an input from which these of the output are computed, by broadcasting."""
    if shape == output:
        return places
    if len(shape) > len(output) or 0 in shape:
        return None
    padded = (1,) * (len(output) - len(shape)) + shape
    if any(own not in (1, full) for own, full in zip(padded, output, strict=True)):
        return None
    index = zip(np.unravel_index(places, output), padded, strict=True)
    return (
        np.ravel_multi_index([np.minimum(along, own - 1) for along, own in index], padded)
        if padded
        else places
    )


def _reduced_after(output: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """Return after how many axes an input is reduced to the output; None if it is not, or as a whole."""
    leading = max((axis for axis, length in enumerate(output, 1) if length != 1), default=0)
    is_reduced = (
        0 < leading < len(shape) and shape[:leading] == output[:leading] and len(output) <= len(shape)
    )
    return leading if is_reduced and math.prod(shape[leading:]) > 1 else None


def _is_readable(tensor: Tensor) -> bool:
    """Return whether elements of a tensor can be read, in ranges or at once, and are real numbers."""
    is_in_reach = tensor.is_dumped and (tensor.has_ranges or tensor.nbytes <= _WHOLE_NBYTES)
    return is_in_reach and is_real(from_name(tensor.dtype))


def _is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor is known to have neither NaN nor infinity."""
    statistics = tensor.statistics
    return statistics.nan_count == statistics.pos_inf_count == statistics.neg_inf_count == 0
