"""Formulas of the memory formats of Ascend devices: what shape and order of elements each makes of a tensor.

Sources: MindSpore 2.5, `ms_device_shape_transfer.cc`; CANN GE, `formats/format_transfers`; msProbe,
`builtin_format_convert`. The length of the innermost block, C0, is always that of the last device axis: it
depends on the type, the processor and the version.

The device shape is verified against the host shape by the formula of the format. If a format serves several
orders of the host's axes (NCHW or NHWC), the first one that fits is taken, in the order of MindSpore and
PyTorch.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from workers.arrays.arrangements import Arrangement, GroupedArrangement, Shape, nested_strides
from workers.model import ceil_div

Candidate: TypeAlias = tuple[Shape, Arrangement | GroupedArrangement]
"""The device shape that a host shape should have, and how it is arranged then."""

#: Rows of a block of the FRACTAL formats.
_ROWS = 16
#: Larger shapes, which numpy could not even name, are those of damaged headers.
_MAX_ELEMENTS = 2**56


def find_arrangement(
    name: str, device: Shape, host: Shape, *, groups: int = 1
) -> Arrangement | GroupedArrangement | None:
    """Return the arrangement of a host array in device memory; None if format and shapes do not fit.

    Args:
        name: of the format.
        device: lengths of the axes in device memory. They may be any numbers, as in damaged headers.
        host: lengths of the axes on the host. They may be any numbers, too.
        groups: the groups of a convolution, for FRACTAL_Z.
    """
    if not _is_plausible(device, host):
        return None
    if groups > 1:
        candidates = _grouped(device, host, groups) if name == "FRACTAL_Z" else iter(())
    elif name in FORMATS:
        candidates = FORMATS[name](device, host)
    else:
        candidates = _permuted(name, device, host)
    return next((arrangement for expected, arrangement in candidates if expected == device), None)


def _is_plausible(device: Shape, host: Shape) -> bool:
    if not device or not host or len(host) > 32 or min(*device, *host) < 0:
        return False
    if max(math.prod(max(length, 1) for length in lengths) for lengths in (device, host)) > _MAX_ELEMENTS:
        return False
    return (0 in device) == (0 in host)


def _images(shape: Shape) -> Iterator[tuple[Shape, str]]:
    """Yield a host shape as one of images or weights, with the names of its axes; MindSpore's order first."""
    if len(shape) == 4:
        yield from ((shape, order) for order in ("NCHW", "NHWC", "HWCN"))
    elif 1 <= len(shape) < 4:
        yield (1, *shape, *(1 for _ in range(3 - len(shape)))), "NCHW"


def _volumes(shape: Shape) -> Iterator[tuple[Shape, str]]:
    """Yield a host shape as one of volumes or their weights, with the names of its axes."""
    if len(shape) == 5:
        yield from ((shape, order) for order in ("NCDHW", "NDHWC", "DHWCN"))


def _arranged(
    shape: Shape, order: str, device: dict[str, int], parts: dict[str, str], strides: Shape = ()
) -> Arrangement:
    """Return an arrangement by the names of axes.

    Args:
        shape: the lengths of the axes on the host.
        order: the names of its axes, a letter each.
        device: length of each axis in device memory, by name.
        parts: the names of the device axes of each host axis that is not a device axis itself.
        strides: of the device axes, if they are not nested in C order.
    """
    names = list(device)
    indices = tuple(tuple(names.index(part) for part in parts.get(axis, axis).split()) for axis in order)
    return Arrangement(tuple(device.values()), shape, indices, strides)


def _channels_in_blocks(device: Shape, shape: Shape, order: str) -> Iterator[Candidate]:
    """Yield what NC1HWC0 makes of images, and NDC1HWC0 of volumes: the channels in blocks of C0."""
    names = re.findall(r"[A-Z]\d?", order)
    c0 = device[-1] if len(device) == len(names) else 0
    for padded, host in (_volumes(shape) if "D" in names else _images(shape)) if c0 else ():
        length = dict(zip(host, padded, strict=True))
        split = {name: length.get(name, c0) for name in names} | {"C1": ceil_div(length["C"], c0)}
        if host not in ("HWCN", "DHWCN"):
            yield tuple(split.values()), _arranged(padded, host, split, {"C": "C1 C0"})


def _fractal_z(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _images(shape) if c0 else ():
        n, c, h, w = (padded[order.index(axis)] for axis in "NCHW")
        split = {"C1": ceil_div(c, c0), "H": h, "W": w, "N1": ceil_div(n, _ROWS), "N0": _ROWS, "C0": c0}
        expected = (split["C1"] * h * w, split["N1"], _ROWS, c0)
        yield expected, _arranged(padded, order, split, {"C": "C1 C0", "N": "N1 N0"})


def _weights_3d(device: Shape, shape: Shape, *, rows: str, columns: str) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _volumes(shape) if c0 else ():
        length = dict(zip(order, padded, strict=True))
        row_blocks, column_blocks = ceil_div(length[rows], _ROWS), ceil_div(length[columns], c0)
        d, h, w = (length[axis] for axis in "DHW")
        split = {"D": d, "K1": column_blocks, "H": h, "W": w, "M1": row_blocks, "M0": _ROWS, "K0": c0}
        expected = (d * column_blocks * h * w, row_blocks, _ROWS, c0)
        yield expected, _arranged(padded, order, split, {columns: "K1 K0", rows: "M1 M0"})


def _fractal_z_c04(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    for padded, order in _images(shape) if c0 and c0 % 4 == 0 else ():
        n, c, h, w = padded
        if order == "NCHW" and c <= 4:
            # H and W are one axis; a block of it holds C0 / 4 places with four channels each.
            split = {
                "K1": ceil_div(4 * h * w, c0),
                "N1": ceil_div(n, _ROWS),
                "N0": _ROWS,
                "K0": c0 // 4,
                "C": 4,
            }
            expected = (split["K1"], split["N1"], _ROWS, c0)
            yield expected, _arranged((n, c, h * w), "NCK", split, {"N": "N1 N0", "K": "K1 K0"})


def _matrix_in_blocks(device: Shape, shape: Shape, order: str) -> Iterator[Candidate]:
    """Yield what FRACTAL_NZ (K1 M1 M0 K0) and FRACTAL_ZZ (M1 K1 M0 K0) make of matrices."""
    is_nz = order.startswith("K1")
    shape = (1, *shape) if is_nz and len(shape) == 1 else shape
    if len(shape) < 2 or len(device) < 2:
        return
    *batch, m, k = shape
    m0, k0 = (_ROWS if is_nz else device[-2]), device[-1]
    if m0 and k0:
        blocks = {"K1": ceil_div(k, k0), "M1": ceil_div(m, m0), "M0": m0, "K0": k0}
        split = {"B": math.prod(batch)} | {name: blocks[name] for name in order.split()}
        expected = (*batch, *tuple(split.values())[1:])
        yield expected, _arranged((split["B"], m, k), "BMK", split, {"M": "M1 M0", "K": "K1 K0"})


def _c1hwncoc0(device: Shape, shape: Shape) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 6 else 0
    for padded, order in _images(shape) if c0 else ():
        n, c, h, w = (padded[order.index(axis)] for axis in "NCHW")
        split = {"C1": ceil_div(c, c0), "H": h, "W": w, "N": n, "C0": c0}
        expected = (split["C1"], h, w, n, c0, c0)
        # Only the diagonal of each square of C0 x C0 is data.
        *outer, _, _ = nested_strides(expected)
        strides = (*outer, c0 + 1)
        yield expected, _arranged(padded, order, split, {"C": "C1 C0"}, strides)


def _grouped(device: Shape, shape: Shape, groups: int) -> Iterator[Candidate]:
    c0 = device[-1] if len(device) == 4 else 0
    if not c0 or len(shape) != 4 or not all(shape) or shape[0] % groups:
        return
    n, channels, h, w = shape
    outputs = n // groups
    per_block = min(math.lcm(math.lcm(channels, c0) // channels, math.lcm(outputs, _ROWS) // outputs), groups)
    c1, n1 = ceil_div(per_block * channels, c0), ceil_div(per_block * outputs, _ROWS)
    blocks = ceil_div(groups, per_block)
    split = (blocks, c1, h, w, n1 * _ROWS, c0)
    expected = (blocks * c1 * h * w, n1, _ROWS, c0)
    yield expected, GroupedArrangement(split, (groups, outputs, channels, h, w), per_block)


def _permuted(name: str, device: Shape, shape: Shape) -> Iterator[Candidate]:
    """Yield the arrangements that only permute the axes; such a format is named after its order."""
    targets = [(shape, "NC"), *itertools.islice(_images(shape), 1), *itertools.islice(_volumes(shape), 1)]
    for padded, order in targets:
        if sorted(name) == sorted(order) and len(padded) == len(order):
            split = {axis: padded[order.index(axis)] for axis in name}
            yield tuple(split.values()), _arranged(padded, order, split, {})
    if sorted(name) in PERMUTED:
        # The framework has its axes in the same order.
        yield shape, Arrangement(device, shape, tuple((axis,) for axis in range(len(shape))))


#: The axes, sorted, of formats that only permute them.
PERMUTED = [sorted(order) for order in ("NC", "NCHW", "NCDHW")]
#: The other formats: functions of the device shape and the host shape.
FORMATS: dict[str, Callable[[Shape, Shape], Iterator[Candidate]]] = {
    "NC1HWC0": partial(_channels_in_blocks, order="NC1HWC0"),
    "NC1HWC0_C04": lambda device, shape: (
        _channels_in_blocks(device, shape, "NC1HWC0") if device[-1:] == (4,) else iter(())
    ),
    "NDC1HWC0": partial(_channels_in_blocks, order="NDC1HWC0"),
    "FRACTAL_Z": _fractal_z,
    "FRACTAL_Z_3D": partial(_weights_3d, rows="N", columns="C"),
    "FRACTAL_Z_3D_TRANSPOSE": partial(_weights_3d, rows="C", columns="N"),
    "FRACTAL_Z_C04": _fractal_z_c04,
    "FRACTAL_NZ": partial(_matrix_in_blocks, order="K1 M1 M0 K0"),
    "FRACTAL_ZZ": partial(_matrix_in_blocks, order="M1 K1 M0 K0"),
    "C1HWNCoC0": _c1hwncoc0,
}
