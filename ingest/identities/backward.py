"""Gradients of the parameters of a module, from what it read and the gradient of what it wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ingest.identities.convolutions import kernel_gradient
from ingest.identities.definition import Array, Expectation, wide
from ingest.identities.limits import sum_error, unit_roundoff, working_roundoff
from ingest.identities.norms import EPS, NormalisedRows
from ingest.identities.operators import summed_rows
from ingest.identities.products import as_multiplied

#: Those whose channels are the second axis, and whether they are transposed.
CONVOLUTIONS = {f"conv{kind}{axes}d": bool(kind) for kind in ("", "transpose") for axes in (1, 2, 3)}
#: Modules whose gradients are known, by `plain_name`.
KINDS = frozenset({"linear", "dense", "layernorm", "rmsnorm", "embedding", *CONVOLUTIONS})


def parameter_gradients(
    kind: str, parameter: str, x: Array, gradient: Array, shape: tuple[int, ...], *, way: str = ""
) -> Iterator[Expectation]:
    """Yield what one call of a module adds to the gradient of a parameter.

    Args:
        kind: the module, one of `KINDS`.
        parameter: `weight` or `bias`.
        x: what it read.
        gradient: the gradient of what it wrote; narrow, if autocast made it so.
        shape: the shape of the parameter.
        way: how the kernel of a convolution goes, as its output tells; "" if that is not known.
    """
    if not gradient.size:
        return
    unit = working_roundoff(gradient.dtype)
    if kind in CONVOLUTIONS:
        if gradient.ndim < 3:
            return
        if parameter == "weight" and x.dtype.kind not in "iub":
            x = as_multiplied(x, gradient)
            yield from kernel_gradient(x, gradient, shape, unit, way, is_transposed=CONVOLUTIONS[kind])
            return
        gradient = gradient.swapaxes(1, -1)
    columns = wide(gradient).reshape(-1, gradient.shape[-1] if gradient.ndim else 1)
    if parameter == "bias":
        yield Expectation(columns.sum(0), sum_error(len(columns), unit) * np.abs(columns).sum(0))
    elif kind == "embedding":
        if x.dtype.kind in "iu" and x.size == len(columns) and len(shape) == 2:
            yield from summed_rows(x.reshape(-1), columns, shape, unit)
    elif x.size % len(columns) == 0 and x.dtype.kind not in "iub":
        error_of_sum = sum_error(len(columns), unit) + unit
        if kind in ("linear", "dense"):
            rows = as_multiplied(x, gradient).reshape(len(columns), -1)
            yield Expectation(columns.T @ rows, error_of_sum * (np.abs(columns).T @ np.abs(rows)))
        else:
            normal = NormalisedRows(wide(x).reshape(len(columns), -1), unit, centred=kind == "layernorm")
            yield from _scales_of_norm(normal, columns, error_of_sum)


def _scales_of_norm(normal: NormalisedRows, columns: Array, error_of_sum: float) -> Iterator[Expectation]:
    for eps in EPS:
        value, error = normal.normalised(eps)
        if value.shape != columns.shape:  # of another call
            return
        size = np.abs(columns) * (np.abs(value) * error_of_sum + error)
        yield Expectation((columns * value).sum(0), size.sum(0), f"eps = {eps:.6g}")


def added(parts: Sequence[Expectation], narrowest: float, divisor: int = 1) -> Expectation:
    """Return the sum of what calls, passes or ranks add to a gradient, divided.

    Args:
        parts: what each adds.
        narrowest: the unit roundoff of the type in which each was computed.
        divisor: what the sum is divided by: the number of ranks for their mean.
    """
    value = np.sum([part.value for part in parts], axis=0)
    sizes = np.sum([np.abs(part.value) for part in parts], axis=0)
    error = np.sum([np.asarray(part.error) for part in parts], axis=0)
    error = error + (narrowest + sum_error(len(parts) + 1, 2.0**-24)) * sizes
    return Expectation(value / divisor, error / divisor, parts[0].told)


def scaled(part: Expectation, actual: Array) -> Expectation | None:
    """Return an expectation times the factor that most elements show; None if they show none, or 1."""
    shown = wide(actual)
    is_clear = np.abs(part.value) > 8 * np.asarray(part.error)
    if np.count_nonzero(is_clear) < 4:
        return None
    factor = float(np.median(shown[is_clear] / part.value[is_clear]))
    if not np.isfinite(factor) or factor <= 0 or abs(factor - 1) < 64 * unit_roundoff(actual.dtype):
        return None
    error = np.asarray(part.error) * factor + 8 * 2.0**-24 * np.abs(part.value) * factor
    return Expectation(part.value * factor, error, f"factor = {factor:.4g}")
