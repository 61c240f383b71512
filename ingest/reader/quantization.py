"""By how much quantisation changed a tensor: from a dump that has it before and after.

Which tensors are a pair is known of two kinds of dumps:

- a reference in the vendor's comparison format: the same output of an operator as `.pb` or `.npy`, and as
  `.quant` (graph `quantized`);
- an operator that quantises (`AscendQuant`, `QuantizeV2`, ...): its first input, and the integers that it
  writes. One that writes other numbers, such as `QuantBatchMatmulV3`, calculates with quantised ones.

Integers q stand for scale * q + offset. Neither is in the dump: both are fitted, by least squares over the
elements that are not saturated. Of a pair of floating-point numbers, the scale is the least difference
between two values after quantisation.

    SQNR = 10 log10(sum x^2 / sum (x - y)^2) dB

where x is the tensor before and y the numbers that it stands for after. Rounding to the nearest step has an
error of at most 0.5 steps; more means saturation, or an error. (B. Widrow, I. Kollár, "Quantization Noise",
2008, chapter 1; `torch.ao.ns.fx.utils.compute_sqnr` has the same definition.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.flow.operator_kinds import is_input, is_output
from workers.store.strict_json import finite_or_none

if TYPE_CHECKING:
    from ingest.reader.tensor import Tensor
    from workers.store.tables import Tables

_REFERENCE, _QUANTIZED = "Reference", "quantized"
_QUANTIZES = re.compile(r"(?i)(?!.*dequant).*quant.*")
#: More values than integers of 16 bits have: it is not quantised.
_MAX_VALUES = 1 << 16

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QuantizationError:
    """By how much quantisation changed a tensor."""

    before: str
    """The name of the tensor before."""
    before_graph: str
    after: str
    after_graph: str
    sqnr_db: float
    """The ratio of signal to quantisation noise, in decibels; infinite if nothing changed; NaN if it is not
    known: of equal integers, nobody can tell what they stand for."""
    largest_error: float
    """Of an element, in units of the scale; NaN if that is not known."""
    scale: float
    """The distance of two neighbouring numbers after quantisation; NaN if it is not known."""
    offset: float
    """What the integer 0 stands for; 0 for floating-point numbers."""
    saturated: int
    """Elements at the least or greatest integer; 0 for floating-point numbers."""
    elements: int
    """Elements that are finite before quantisation."""

    def __str__(self) -> str:
        """Return one sentence."""
        largest = "" if math.isnan(self.largest_error) else f", largest error {self.largest_error:.3g} scales"
        scale = "" if math.isnan(self.scale) else f", scale {self.scale:.6g}"
        saturated = f", {self.saturated} of {self.elements} elements saturated" if self.saturated else ""
        sqnr = "unknown" if math.isnan(self.sqnr_db) else f"{self.sqnr_db:.1f} dB"
        return f"{self.before} -> {self.after}: SQNR {sqnr}{largest}{scale}{saturated}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; None for what is not known or infinite."""
        row: dict[str, Any] = finite_or_none(asdict(self))
        return row


def _before_and_after(tensor: Tensor, tables: Tables) -> tuple[Tensor | None, Tensor | None]:
    if tensor.op_type == _REFERENCE:
        return _references(tensor, tables)
    if _QUANTIZES.fullmatch(tensor.op_type):
        return _first_operand(tensor, is_input), _first_operand(tensor, is_output)
    return None, None


def _is_float_of_reference(tensor: Tensor) -> bool:
    return tensor.op_type == _REFERENCE and _is_float(tensor)


def quantized_pair(tensor: Tensor, tables: Tables) -> tuple[Tensor, Tensor] | None:
    """Return a tensor before and after quantisation, one of which is `tensor`; None if it is not part of one.

    Args:
        tensor: one of the two.
        tables: the index of its step.
    """
    before, after = _before_and_after(tensor, tables)
    if before is None or after is None or tensor.row not in (before.row, after.row):
        return None
    is_quantised = _is_float(before) and (_is_integer(after) or _is_float_of_reference(after))
    is_readable = _has_elements(before) and _has_elements(after)
    return (before, after) if is_quantised and is_readable and before.shape == after.shape else None


def _has_elements(tensor: Tensor) -> bool:
    return tensor.is_dumped and not tensor.removed


def _is_float(tensor: Tensor) -> bool:
    return "float" in tensor.dtype


def _is_integer(tensor: Tensor) -> bool:
    return "int" in tensor.dtype


def _first_operand(tensor: Tensor, is_side: Callable[[str], bool]) -> Tensor | None:
    """Return input or output 0 of the operator of a tensor."""
    return next((other for other in tensor.operands if is_side(other.io) and other.slot == 0), None)


def _references(tensor: Tensor, tables: Tables) -> tuple[Tensor | None, Tensor | None]:
    """Return an output of a reference before and after quantisation."""
    label = tables.label
    is_same = (label("op_name") == tensor.op_name) & (tables.number("slot") == tensor.slot)
    rows = np.flatnonzero(is_same & (label("op_type") == _REFERENCE) & (label("io") == tensor.io))
    same = [tensor.of_row(int(row)) for row in rows]
    before = next((other for other in same if other.graph != _QUANTIZED), None)
    return before, next((other for other in same if other.graph == _QUANTIZED), None)


def quantization_error(before: Tensor, after: Tensor) -> QuantizationError:
    """Measure how much quantisation changed a tensor. Reads both tensors.

    Raises:
        DamagedStore: chunks are missing or damaged.
    """
    x = before.read().astype(np.float64).ravel()
    stored = after.read()
    is_finite = np.isfinite(x)
    x, q = x[is_finite], stored.astype(np.float64).ravel()[is_finite]
    saturated, offset = 0, 0.0
    if _is_integer(after):
        inner = (q > q.min(initial=math.inf)) & (q < q.max(initial=-math.inf))
        lowest, highest = _limits(after.dtype)
        saturated = int(np.count_nonzero((q <= lowest) | (q >= highest)))
        scale, offset = _fitted(x[inner], q[inner]) if saturated and inner.any() else _fitted(x, q)
        y = scale * q + offset
    else:
        scale, y = _least_step(q), q
    noise = float(np.square(x - y).sum())
    signal = float(np.square(x).sum())
    largest = float(np.abs(x - y).max(initial=0.0))
    return QuantizationError(
        before=before.name,
        before_graph=before.graph,
        after=after.name,
        after_graph=after.graph,
        sqnr_db=_decibels(signal, noise),
        largest_error=largest / scale if scale > 0 else math.nan,
        scale=scale,
        offset=offset,
        saturated=saturated,
        elements=len(x),
    )


def _decibels(signal: float, noise: float) -> float:
    if math.isnan(noise):
        return math.nan
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


def _limits(dtype: str) -> tuple[int, int]:
    bits = int(re.sub(r"\D", "", dtype) or 8)
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _fitted(x: _Floats, q: _Floats) -> tuple[float, float]:
    """Return scale and offset of the line through the elements, by least squares."""
    if not len(q):
        return math.nan, 0.0
    deviation = q - q.mean()
    spread = float(np.square(deviation).sum())
    if not spread:
        return math.nan, float(x.mean())
    scale = float((deviation * (x - x.mean())).sum()) / spread
    return abs(scale), float(x.mean() - abs(scale) * q.mean())


def _least_step(values: _Floats) -> float:
    """Return the least difference between two values; NaN if there are more than quantised ones have."""
    distinct = np.unique(values)
    if not 1 < len(distinct) <= _MAX_VALUES:
        return math.nan
    return float(np.diff(distinct).min())
