"""Write tensors as npy files that numpy alone can read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.reader.parallel.unsharded import UnshardedTensor
from ingest.reader.tensor import Tensor
from workers.errors import UsageError

#: What `dtype.isbuiltin` is for types such as those of `ml_dtypes`; for those of numpy it is 0 or 1.
_OF_ANOTHER_PACKAGE = 2


def save_npy(values: Tensor | UnshardedTensor | Any, path: str | Path) -> str:
    """Write a tensor, or an array, to an npy file, and replace an older one.

    A tensor is written piece by piece in its own order, whatever its size. Types that numpy does not have are
    widened without loss: bfloat16 and smaller floating-point types to float32, packed integers to int8 or
    uint8.

    Returns:
        The type to which the elements were widened; "" if they were not.

    Raises:
        UsageError: the file cannot be written; or only statistics of the tensor were dumped.
        DamagedStore: chunks are missing or damaged.
    """
    try:
        if isinstance(values, Tensor) and values.is_in_pieces and all(values.shape) and values.shape:
            return _save_pieces(values.pieces(), values.shape, Path(path), fortran=values.is_fortran_order)
        if isinstance(values, UnshardedTensor) and all(values.shape) and values.shape:
            return _save_pieces(values.parts(), values.shape, Path(path))
        array = np.asarray(values)
        target = file_type(array.dtype)
        with Path(path).open("wb") as file:
            np.save(file, array.astype(target, copy=False), allow_pickle=False)
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be written: {exc.strerror}", hint="Name a file in a directory that you may write."
        ) from exc
    return "" if target == array.dtype else str(target)


def _save_pieces(
    pieces: Iterable[npt.NDArray[Any]], shape: tuple[int, ...], path: Path, *, fortran: bool = False
) -> str:
    written: np.memmap[Any, Any] | None = None
    done, is_widened = 0, False
    for piece in pieces:
        target = file_type(piece.dtype)
        if written is None:
            is_widened = target != piece.dtype
            written = np.lib.format.open_memmap(path, "w+", target, shape, fortran_order=fortran)
            flat = written.reshape(-1, order="A")
        flat[done : done + len(piece)] = piece.astype(target, copy=False)
        done += len(piece)
    if written is not None:
        written.flush()
        return str(written.dtype) if is_widened else ""
    return ""


def file_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which numpy alone can read elements of a type: the type itself, or a wider one."""
    if dtype.isbuiltin != _OF_ANOTHER_PACKAGE:
        return dtype
    if "float" in dtype.name:
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if "uint" in dtype.name else np.int8)
