"""Write tensors as npy files that numpy alone can read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from ingest.reader.files.output_file import output_file
from ingest.reader.parallel.unsharded import UnshardedTensor
from ingest.reader.tensor import Tensor

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
        DumpIngestError: the disk is full, or reports an error.
        DamagedStore: chunks are missing or damaged.
    """
    if isinstance(values, Tensor) and values.is_in_pieces and all(values.shape) and values.shape:
        return _save_pieces(values.pieces(), values.shape, Path(path), fortran=values.is_fortran_order)
    if isinstance(values, UnshardedTensor) and all(values.shape) and values.shape:
        return _save_pieces(values.parts(), values.shape, Path(path))
    array = np.asarray(values)
    target = file_type(array.dtype)
    with output_file(Path(path)) as file:
        np.save(cast(BinaryIO, file), array.astype(target, copy=False), allow_pickle=False)
    return "" if target == array.dtype else str(target)


def _save_pieces(
    pieces: Iterator[npt.NDArray[Any]], shape: tuple[int, ...], path: Path, *, fortran: bool = False
) -> str:
    """Write the elements one after the other, without a memory map: a full disk would kill the process."""
    first = next(pieces)
    target = file_type(first.dtype)
    header = {"descr": dtype_to_descr(target), "fortran_order": fortran, "shape": shape}
    with output_file(path) as file:
        write_array_header_1_0(cast(BinaryIO, file), header)
        for piece in chain([first], pieces):
            file.write(piece.astype(target, copy=False).tobytes())
    return "" if target == first.dtype else str(target)


def file_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which numpy alone can read elements of a type: the type itself, or a wider one."""
    if dtype.isbuiltin != _OF_ANOTHER_PACKAGE:
        return dtype
    if "float" in dtype.name:
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if "uint" in dtype.name else np.int8)
