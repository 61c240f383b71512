"""Lay out host arrays as an Ascend device does, by the formulas of each format, element by element.

Written independently of the decoder in `workers.arrays.device_format`, and the other way round: it computes
the place of the element at (n, c, h, w) in device memory. The formulas come from the sources listed there.
"""

import math
from typing import Any

import numpy as np

from workers.arrays.device_format import DeviceLayout

Array = np.ndarray[Any, Any]
FORMATS_2D = ("NC1HWC0", "NC1HWC0_C04", "FRACTAL_Z", "FRACTAL_Z_C04", "C1HWNCoC0", "NHWC", "HWCN", "CHWN")
FORMATS_3D = ("NDC1HWC0", "FRACTAL_Z_3D", "FRACTAL_Z_3D_TRANSPOSE", "NDHWC", "DHWCN", "DHWNC")
MATRICES = ("FRACTAL_NZ", "FRACTAL_ZZ")


def write(host: Array, name: str, *, c0: int = 16, groups: int = 1) -> tuple[Array, DeviceLayout]:
    """Return the array as device memory holds it, with zeros as padding, and its layout.

    Args:
        host: an array with axes NCHW for the formats of images and weights (or fewer axes, which are padded
            as MindSpore pads them), NCDHW for the formats of volumes, or any matrices for `MATRICES`.
        name: name of the format.
        c0: length of the innermost block.
        groups: number of groups of a convolution, for FRACTAL_Z.
    """
    if name in MATRICES:
        device = _matrices(host, name, c0)
    elif name in FORMATS_3D:
        device = _volumes(host, name, c0)
    elif groups > 1:
        device = _grouped(host, c0, groups)
    else:
        device = _images(host.reshape(padded(host.shape)), name, c0)
    return device, DeviceLayout(name, device.shape, groups)


def padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape padded to four axes as MindSpore pads it."""
    if len(shape) == 4:
        return shape
    return (1, *shape, *[1] * (3 - len(shape)))


def places(shape: tuple[int, ...]) -> list[Array]:
    """Return for each axis the index of each element along that axis; every array has this shape."""
    return list(np.indices(shape))


def up(length: int, block: int) -> int:
    """Return how many blocks `length` elements fill, rounded up."""
    return math.ceil(length / block)


def _images(host: Array, name: str, c0: int) -> Array:
    length_n, length_c, length_h, length_w = host.shape
    n, c, h, w = places(host.shape)
    if name in {"NC1HWC0", "NC1HWC0_C04"}:
        c0 = 4 if name == "NC1HWC0_C04" else c0
        shape: tuple[int, ...] = (length_n, up(length_c, c0), length_h, length_w, c0)
        index: tuple[Array, ...] = (n, c // c0, h, w, c % c0)
    elif name == "FRACTAL_Z":
        shape = (up(length_c, c0) * length_h * length_w, up(length_n, 16), 16, c0)
        index = ((c // c0 * length_h + h) * length_w + w, n // 16, n % 16, c % c0)
    elif name == "FRACTAL_Z_C04":
        shape = (up(4 * length_h * length_w, 16), up(length_n, 16), 16, 16)
        k = (h * length_w + w) * 4 + c
        index = (k // 16, n // 16, n % 16, k % 16)
    elif name == "C1HWNCoC0":
        shape = (up(length_c, c0), length_h, length_w, length_n, c0, c0)
        index = (c // c0, h, w, n, c % c0, c % c0)
    else:
        shape = tuple(host.shape["NCHW".index(axis)] for axis in name)
        index = tuple((n, c, h, w)["NCHW".index(axis)] for axis in name)
    return _put(host, shape, index)


def _volumes(host: Array, name: str, c0: int) -> Array:
    length_n, length_c, length_d, length_h, length_w = host.shape
    n, c, d, h, w = places(host.shape)
    if name == "NDC1HWC0":
        shape: tuple[int, ...] = (length_n, length_d, up(length_c, c0), length_h, length_w, c0)
        index: tuple[Array, ...] = (n, d, c // c0, h, w, c % c0)
    elif name == "FRACTAL_Z_3D":
        blocks = up(length_c, c0)
        shape = (length_d * blocks * length_h * length_w, up(length_n, 16), 16, c0)
        index = (((d * blocks + c // c0) * length_h + h) * length_w + w, n // 16, n % 16, c % c0)
    elif name == "FRACTAL_Z_3D_TRANSPOSE":
        blocks = up(length_n, c0)
        shape = (length_d * blocks * length_h * length_w, up(length_c, 16), 16, c0)
        index = (((d * blocks + n // c0) * length_h + h) * length_w + w, c // 16, c % 16, n % c0)
    else:
        shape = tuple(host.shape["NCDHW".index(axis)] for axis in name)
        index = tuple((n, c, d, h, w)["NCDHW".index(axis)] for axis in name)
    return _put(host, shape, index)


def _matrices(host: Array, name: str, c0: int) -> Array:
    host = host.reshape(1, -1) if host.ndim == 1 else host
    *batch, rows, columns = host.shape
    *place, m, k = places(host.shape)
    if name == "FRACTAL_NZ":
        return _put(
            host,
            (*batch, up(columns, c0), up(rows, 16), 16, c0),
            (*place, k // c0, m // 16, m % 16, k % c0),
        )
    return _put(
        host, (*batch, up(rows, 16), up(columns, c0), 16, c0), (*place, m // 16, k // c0, m % 16, k % c0)
    )


def _grouped(host: Array, c0: int, groups: int) -> Array:
    outputs = host.shape[0] // groups
    _, channels, height, width = host.shape
    per_block = min(math.lcm(math.lcm(channels, c0) // channels, math.lcm(outputs, 16) // outputs), groups)
    c1, n1 = up(per_block * channels, c0), up(per_block * outputs, 16)
    device = np.zeros((up(groups, per_block), c1, height, width, n1 * 16, c0), host.dtype)
    for group in range(groups):
        for n in range(outputs):
            for c in range(channels):
                a = group % per_block * channels + c
                place = group % per_block * outputs + n
                device[group // per_block, a // c0, :, :, place, a % c0] = host[group * outputs + n, c]
    return device.reshape(-1, n1, 16, c0)


def _put(host: Array, shape: tuple[int, ...], index: tuple[Array, ...]) -> Array:
    device = np.zeros(shape, host.dtype)
    device[index] = host
    return device
