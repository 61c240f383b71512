"""All that is known of one tensor, as plain values: the documented contract of what `show --json` prints.

Part of it is by how much quantisation changed the tensor, from a dump that has it before and after. Which
tensors are a pair is known of two kinds of dumps:

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
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.anatomy import Anatomy, parse_index
from ingest.reader.context import Context, context_of
from ingest.reader.context.files import sample_of
from ingest.reader.operator_kinds import is_input, is_output
from ingest.reader.tensor import SMALL_NBYTES, Tensor
from ingest.reader.text import counted, value_text
from workers.arrays.histogram import Histogram
from workers.errors import DamagedStore, UsageError
from workers.store.strict_json import finite_or_none

if TYPE_CHECKING:
    from ingest.reader.catalog import Catalog
    from workers.store.tables import Tables


_REFERENCE, _QUANTIZED = "Reference", "quantized"
_QUANTIZES = re.compile(r"(?i)(?!.*dequant).*quant.*")
#: More values than integers of 16 bits have: it is not quantised.
_MAX_QUANTIZED = 1 << 16

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
    if not 1 < len(distinct) <= _MAX_QUANTIZED:
        return math.nan
    return float(np.diff(distinct).min())


#: The most elements whose values are shown without an index, and with one.
_MAX_VALUES, MAX_SLICE_VALUES = 1000, 1_000_000
#: The fields of `source_line`; the stack is a field of its own.
_LINE_FIELDS = ("file", "line", "code", "of", "matched", "op", "source")


def shown_tensor(store: Catalog, tensor: Tensor, *, at: str | None = None) -> dict[str, Any]:
    """Return all that is known of a tensor, as `show --json` prints it.

    Reads the whole tensor if it has at most 64 MiB.

    Args:
        store: the store that has the tensor.
        tensor: the tensor.
        at: an index such as `3:5,:`, whose values are returned; None for all values of a small tensor.

    Raises:
        UsageError: `at` is not an index of the tensor, or chooses too many values.
        DamagedStore: the tensor is damaged.
    """
    values = None if at is None else tensor[parse_index(at, tensor.shape)]
    if at is not None:
        check_slice(values, at)
    return shown_row(
        tensor,
        context_of(store, tensor.rank),
        anatomy_of(tensor),
        at,
        values,
        sample=sample_of(store, tensor.rank),
        quantization=quantization_of(store, tensor),
    )


def anatomy_of(tensor: Tensor, *, scan: bool = False) -> Anatomy | None:
    """Examine a tensor; return None if its values are not stored, or it is large and not to be scanned."""
    is_readable = tensor.is_dumped and not tensor.removed
    return tensor.examine() if is_readable and (scan or tensor.nbytes <= SMALL_NBYTES) else None


def quantization_of(store: Catalog, tensor: Tensor, *, scan: bool = False) -> QuantizationError | None:
    """Return the effect of quantisation on a tensor; None if its step does not have it before and after.

    None also if it is large and not to be scanned.
    """
    if scan or tensor.nbytes <= SMALL_NBYTES:
        pair = quantized_pair(tensor, store.step(tensor.rank, tensor.step).tables)
        return quantization_error(*pair) if pair is not None else None
    return None


def shown_row(
    tensor: Tensor,
    context: Context,
    anatomy: Anatomy | None,
    at: str | None,
    values: Any | None,
    *,
    sample: int,
    quantization: QuantizationError | None = None,
    has_values: bool = True,
) -> dict[str, Any]:
    """Return all that is known of a tensor, as plain values.

    Args:
        tensor: the tensor.
        context: of its rank.
        anatomy: what is in it, if that is known.
        at: the index that was asked for.
        values: the values at that index.
        quantization: what quantisation did to it, if that is known.
        sample: how many elements of its beginning and its end were dumped; 0 for all.
        has_values: whether values are part of the answer.
    """
    histogram, damage = _histogram(tensor)
    return {
        **({"sample": sample} if sample else {}),
        **tensor.to_dict(),
        **context_row(context, tensor),
        **neighbours_row(tensor),
        "quantization": quantization.to_dict() if quantization else None,
        "anatomy": anatomy.to_dict() if anatomy else None,
        "histogram": histogram.to_dict() if histogram else None,
        **({"damaged": damage} if damage else {}),
        "at": at,
        "values": values_of(tensor, values) if has_values else None,
    }


def _histogram(tensor: Tensor) -> tuple[Histogram | None, str]:
    """Return the sketch of a tensor, or None; and what is damaged of it, if that is why there is none."""
    try:
        return tensor.histogram, ""
    except DamagedStore as exc:
        return None, exc.message


def context_row(context: Context, tensor: Tensor) -> dict[str, Any]:
    """Return the context of a tensor's operator."""
    line = context.source_line(tensor)
    match = context.match(tensor)
    return {
        "source_line": {name: getattr(line, name) for name in _LINE_FIELDS} if line else None,
        "stack": [asdict(frame) for frame in line.stack] if line else [],
        "operator": match.name if match else None,
        "candidates": list(match.names) if match and match.name is None else [],
        "position": context.position(tensor),
        "parent": context.parent(tensor),
        "kernel_args": context.kernel_args(tensor),
        "fused_from": list(context.original_names(tensor)),
    }


def neighbours_row(tensor: Tensor) -> dict[str, Any]:
    """Return who wrote what a tensor holds, who read it, and the other tensors of its operator."""
    return {
        "producers": [neighbour.to_dict() for neighbour in tensor.producers],
        "consumers": [neighbour.to_dict() for neighbour in tensor.consumers],
        "operands": [operand.name for operand in tensor.operands],
    }


def check_slice(values: Any, at: str) -> None:
    """Raise an error if a slice has too many values to be printed.

    Raises:
        UsageError: it has.
    """
    size = int(getattr(values, "size", 1))
    if size > MAX_SLICE_VALUES:
        raise UsageError(
            f"{at!r} has {counted(size, 'element')}: too many to print",
            hint=f"Choose at most {MAX_SLICE_VALUES}, or write them to a file: --save FILE.npy",
        )


def values_of(tensor: Tensor, values: Any | None) -> Any:
    """Return values for JSON as nested lists: those of a slice, or of a small tensor; None of a large one.

    NaN and infinities are the texts `NaN`, `Inf` and `-Inf`, because JSON does not have them. Structures are
    lists of their fields, bytes hexadecimal digits, and times texts.
    """
    if values is None:
        if not tensor.is_dumped or tensor.removed or math.prod(tensor.shape) > _MAX_VALUES:
            return None
        values = tensor.read()
    return _nested(values.tolist() if hasattr(values, "tolist") else values)


def _nested(value: Any) -> Any:
    if isinstance(value, list | tuple | np.ndarray):  # a tuple has the fields of a structure
        return [_nested(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | timedelta):
        return str(value)
    if isinstance(value, complex):
        return [_nested(value.real), _nested(value.imag)]
    number = float(value)
    return number if math.isfinite(number) else value_text(number)
