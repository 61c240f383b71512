"""All that is known of one tensor, as plain values: the documented contract of what `show --json` prints."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.reader.anatomy import Anatomy, parse_index
from ingest.reader.context import Context, context_of
from ingest.reader.context.files import sample_of
from ingest.reader.tensor import SMALL_NBYTES, Tensor
from ingest.reader.text import counted, value_text
from workers.arrays.histogram import Histogram
from workers.errors import DamagedStore, UsageError

if TYPE_CHECKING:
    from ingest.reader.catalog import Catalog


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
    )


def anatomy_of(tensor: Tensor, *, scan: bool = False) -> Anatomy | None:
    """Examine a tensor; return None if its values are not stored, or it is large and not to be scanned."""
    is_readable = tensor.is_dumped and not tensor.removed
    return tensor.examine() if is_readable and (scan or tensor.nbytes <= SMALL_NBYTES) else None


def shown_row(
    tensor: Tensor,
    context: Context,
    anatomy: Anatomy | None,
    at: str | None,
    values: Any | None,
    *,
    sample: int,
    has_values: bool = True,
) -> dict[str, Any]:
    """Return all that is known of a tensor, as plain values.

    Args:
        tensor: the tensor.
        context: of its rank.
        anatomy: what is in it, if that is known.
        at: the index that was asked for.
        values: the values at that index.
        sample: how many elements of its beginning and its end were dumped; 0 for all.
        has_values: whether values are part of the answer.
    """
    histogram, damage = _histogram(tensor)
    return {
        **({"sample": sample} if sample else {}),
        **tensor.to_dict(),
        **context_row(context, tensor),
        "producers": [neighbour.to_dict() for neighbour in tensor.producers],
        "consumers": [neighbour.to_dict() for neighbour in tensor.consumers],
        "operands": [operand.name for operand in tensor.operands],
        "anatomy": anatomy.to_dict() if anatomy else None,
        "histogram": histogram.to_dict() if histogram else None,
        **({"damaged": damage} if damage else {}),
        "at": at,
        "values": values_of(tensor, values) if has_values else None,
    }


def _histogram(tensor: Tensor) -> tuple[Histogram | None, str]:
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
