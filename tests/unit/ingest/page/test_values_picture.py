"""Pictures of values."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from ingest.page.views.tensor import MAX_SIDE, Image, image_of


def pixels(image: Image) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    data = base64.b64decode(image.url.partition(",")[2])
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    lines = zlib.decompress(data[start + 4 : start + 4 + length])
    return np.frombuffer(lines, np.uint8).reshape(image.height, image.width + 1)[:, 1:]


def test_a_single_nan_is_not_lost_in_a_large_tensor() -> None:
    values = np.zeros((3000, 1000))
    values[1234, 567] = np.nan
    image = image_of(values)
    assert max(image.width, image.height) <= MAX_SIDE
    assert (pixels(image) == 253).sum() == 1
