"""Files that hold only elements: their type and shape are in their names."""

from __future__ import annotations

import math

from workers.arrays.dtypes import from_name
from workers.dump.formats.header import MAX_NDIM, TensorHeader, Truncated, is_addressable
from workers.errors import UnreadableTensor


def header(dtype: str, shape: tuple[int, ...] | None, file_size: int) -> TensorHeader:
    """Return the one tensor of a file of raw elements.

    Args:
        dtype: name of the element type.
        shape: lengths of the axes; None puts all elements on one axis.
        file_size: the size of the file in bytes, which must agree.

    Raises:
        Truncated: the file is shorter than its type and shape require.
        UnreadableTensor: it is longer, the type is not known, or no array has such a shape.
    """
    try:
        element = from_name(dtype)
    except ValueError as exc:
        raise UnreadableTensor(str(exc)) from exc
    if shape is None:
        size = file_size * 8 // element.bits
        if element.nbytes(size) != file_size:
            raise Truncated(f"has {file_size} bytes, which is not a whole number of {dtype} elements")
        shape = (size,)
    elif len(shape) > MAX_NDIM or not is_addressable(shape, element.itemsize):
        raise UnreadableTensor(f"its name announces {len(shape)} axes, of which no array can be made")
    wanted = element.nbytes(math.prod(shape))
    if wanted != file_size:
        error = Truncated if file_size < wanted else UnreadableTensor
        raise error(f"has {file_size} bytes, but its name announces {wanted} ({dtype}, shape {shape})")
    return TensorHeader(element=element, shape=shape, offset=0, nbytes=file_size)
