"""Device formats: back to the host and out again, against formulas written apart."""

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.device_writer import FORMATS_2D, FORMATS_3D, MATRICES, write
from tests.stores import DumpLibrary
from workers.arrays import dtypes
from workers.arrays.device_format import DeviceLayout, convertible, padding_is_zero, slabs, to_device, to_host
from workers.arrays.dtypes import ElementType, from_name, from_npy_descr
from workers.dump.formats.dump_data import read_headers

Array = np.ndarray[Any, Any]
DTYPES = ["|i1", "<f2", "<E2", ">f4", "<f8", "<c16", "[('a', '<i2'), ('b', 'i1')]"]


def element_of(values: Array) -> ElementType:
    if values.dtype == ml_dtypes.bfloat16:
        return from_name("bfloat16")
    return from_npy_descr(str(np.lib.format.dtype_to_descr(values.dtype)))


def random_host(shape: tuple[int, ...], descr: str = "<f2", seed: int = 0) -> Array:
    """Return elements of any bits: NaN and negative zeros too."""
    dtype = from_npy_descr(descr).to_numpy()
    raw = np.random.default_rng(seed).bytes(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(bytearray(raw), dtype).reshape(shape)


def same(left: Array, right: Array) -> bool:
    return (left.shape, left.dtype, left.tobytes()) == (right.shape, right.dtype, right.tobytes())


@st.composite
def cases(draw: st.DrawFn, dtypes: list[str] = DTYPES) -> tuple[Array, Array, DeviceLayout]:
    """Return a host array, the same on the device, and its layout."""
    name = draw(st.sampled_from([*FORMATS_2D, *FORMATS_3D, *MATRICES]))
    groups = draw(st.sampled_from([1, 1, 2, 3, 6, 20])) if name == "FRACTAL_Z" else 1
    short, long = st.integers(1, 4), st.integers(1, 37)
    if name in MATRICES:
        batch = draw(st.lists(short, max_size=2))
        shape = (*batch, draw(long), draw(long))
        shape = shape[-1:] if name == "FRACTAL_NZ" and not batch and draw(st.booleans()) else shape
    elif name in FORMATS_3D:
        shape = tuple(draw(st.tuples(long, long, short, short, short)))
    elif groups > 1:
        shape = (groups * draw(st.integers(1, 10)), draw(st.integers(1, 20)), draw(short), draw(short))
    else:
        channels = draw(short if name == "FRACTAL_Z_C04" else long)
        shape = tuple(draw(st.tuples(long, st.just(channels), short, short)))
        shape = shape[1 : draw(st.integers(2, 4))] if draw(st.booleans()) else shape
    c0 = draw(st.sampled_from([8, 16, 32]))
    host = random_host(shape, draw(st.sampled_from(dtypes)), draw(st.integers(0, 9)))
    return host, *write(host, name, c0=c0, groups=groups)


@given(cases(), st.data())
def test_no_bit_of_the_padding_is_lost_unseen(
    case: tuple[Array, Array, DeviceLayout], data: st.DataObject
) -> None:
    """A flipped bit is either one of the host array or seen; so is the sign of a zero."""
    host, device, layout = case
    payload = bytearray(device.tobytes())
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = to_host(payload, layout, host.shape, element_of(host))
    assert padding_is_zero(payload, found) == (to_device(found, layout).tobytes() == payload)
    assert padding_is_zero(payload, found) == (found.tobytes() != host.tobytes())


@given(cases(["<f2", "<f4", "|i1"]), st.sampled_from([64, 1000, 5000, 100_000]))
def test_slabs_are_the_whole(case: tuple[Array, Array, DeviceLayout], limit: int) -> None:
    host, device, layout = case
    element = element_of(host)
    plan = slabs(layout, host.shape, element, limit)
    assume(plan is not None)
    assert plan is not None
    payload = device.tobytes()
    read: list[tuple[int, int]] = []
    found = []
    for slab in plan:
        assert slab.nbytes <= limit
        assert list(slab.ranges) == sorted(slab.ranges)
        pieces = b"".join(payload[offset : offset + nbytes] for offset, nbytes in slab.ranges)
        assert len(pieces) == slab.nbytes
        values = slab.to_host(pieces, element)
        assert values.shape == (slab.size,)
        assert padding_is_zero(pieces, values)
        found.append(values.tobytes())
        read += slab.ranges
    assert b"".join(found) == host.tobytes()
    at = 0
    for offset, nbytes in sorted(read):
        assert offset == at
        at += nbytes
    assert at == len(payload)


@pytest.mark.parametrize(
    ("name", "device", "shape", "count"),
    [
        ("NC1HWC0", (64, 16, 224, 224, 16), (64, 256, 224, 224), 2),
        ("NC1HWC0", (2, 16, 2240, 2240, 16), (2, 250, 2240, 2240), 32),
        ("FRACTAL_NZ", (512, 2048, 16, 16), (32768, 8192), 8),
        ("FRACTAL_NZ", (9, 512, 2048, 16, 16), (9, 32768, 8192), 9 * 8),
        ("FRACTAL_Z", (144, 256, 16, 16), (4096, 256, 3, 3), 1),
    ],
)
def test_large_tensors_are_cut(
    name: str, device: tuple[int, ...], shape: tuple[int, ...], count: int
) -> None:
    """In few pieces, each of them large: nothing is allocated here, for the slabs come one by one."""
    limit = {"NC1HWC0": 2**30, "FRACTAL_Z": 2**28}.get(name, 2**26)
    limit = 2**28 if device[1:3] == (16, 2240) else limit
    plan = slabs(DeviceLayout(name, device), shape, from_name("float16"), limit)
    assert plan is not None
    found = list(plan)
    assert sum(slab.nbytes for slab in found) == math.prod(device) * 2
    assert count / 2 <= len(found) <= count * 2
    assert max(len(slab.ranges) for slab in found) <= 1024


@pytest.mark.parametrize(
    ("name", "device", "shape"),
    [
        ("NC1HWC0", (2, 1, 3, 4, 16), (2, 17, 3, 4)),
        ("NC1HWC0", (2, 2, 3, 4, 16), (2, 16, 3, 4)),
        ("NC1HWC0", (2, 1, 3, 4, 16), (2, 5, 3, 4, 1)),
        ("NC1HWC0", (2, 1, 3, 4, 0), (2, 5, 3, 4)),
        ("NC1HWC0", (2, 1, 3, 16), (2, 5, 3, 4)),
        ("NC1HWC0", (), ()),
        ("NC1HWC0_C04", (2, 1, 3, 4, 16), (2, 5, 3, 4)),
        ("FRACTAL_NZ", (2, 3, 16, 16), (35, 33)),
        ("FRACTAL_NZ", (2, 3, 8, 16), (24, 32)),
        ("FRACTAL_NZ", (16,), (16,)),
        ("FRACTAL_NZ", (1, 1, 16, 16), ()),
        ("FRACTAL_ZZ", (1, 1, 16, 16), (16,)),
        ("FRACTAL_Z", (6, 2, 16, 16), (18, 5, 3, 3)),
        ("FRACTAL_Z", (-6, 2, 16, 16), (18, 5, -3, 2)),
        ("FRACTAL_Z_C04", (1, 1, 16, 16), (16, 5, 1, 1)),
        ("FRACTAL_Z_C04", (1, 1, 16, 16), (16, 0, 1, 1)),
        ("NHWC", (2, 3, 4, 5), (2, 3, 5, 4)),
        ("NHWC", (0, 2**63, 2**63, 1), (0, 1, 2**63, 2**63)),
        ("FRACTAL_ZN_LSTM", (1, 1, 16, 16), (16, 16)),
        ("FRACTAL_Z_WINO", (1, 1, 16, 16), (16, 16)),
        ("ND", (1, 1, 16, 16), (16, 16)),
        ("", (1,), (2,)),
    ],
)
def test_what_does_not_fit_is_not_converted(
    name: str, device: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    layout = DeviceLayout(name, device)
    assert not convertible(layout, shape, from_name("float16"))
    assert slabs(layout, shape, from_name("float16"), 1 << 20) is None
    with pytest.raises(ValueError, match="not known as a layout"):
        to_host(b"", layout, shape, from_name("float16"))


@pytest.mark.parametrize(
    ("name", "device", "order"),
    [
        ("NC1HWC0", (2, 2, 3, 4, 16), "NHWC"),
        ("FRACTAL_Z", (2 * 3 * 4, 1, 16, 16), "HWCN"),
        ("FRACTAL_Z", (2 * 3 * 4, 1, 16, 16), "NHWC"),
        ("C1HWNCoC0", (2, 3, 4, 2, 16, 16), "HWCN"),
    ],
)
def test_other_orders_of_the_host_are_taken_where_only_they_fit(
    name: str, device: tuple[int, ...], order: str
) -> None:
    """TensorFlow has channels last."""
    host = random_host((2, 20, 3, 4))
    written, layout = write(host, name)
    assert layout.shape == device
    other = host.transpose(["NCHW".index(axis) for axis in order])
    assert same(to_host(written, layout, other.shape, from_name("float16")), np.ascontiguousarray(other))
    assert same(to_device(other, layout), written)


def test_first_axes_are_channels_where_both_orders_fit() -> None:
    host = random_host((2, 3, 3, 3))
    written, layout = write(host, "NHWC")
    assert same(to_host(written, layout, host.shape, from_name("float16")), host)


@pytest.mark.parametrize("name", ["int4", "uint1"])
def test_packed_elements_stay_on_the_device(name: str) -> None:
    """Blocks of less than a byte would have to be taken apart."""
    layout = DeviceLayout("NC1HWC0", (2, 1, 3, 4, 64))
    assert not convertible(layout, (2, 5, 3, 4), dtypes.from_name(name))
    assert slabs(layout, (2, 5, 3, 4), dtypes.from_name(name), 1000) is None


def test_samples_are_what_the_vendor_makes_of_them(dumps: DumpLibrary) -> None:
    root = dumps["cann-bin-synthetic"]
    checked = set()
    for file in json.loads((root / "manifest.json").read_text()):
        if not file["complete"]:
            continue
        content = (root / file["file"]).read_bytes()
        headers = read_headers(lambda at, n, content=content: content[at : at + n], len(content))  # type: ignore[misc]
        for header, described in zip(headers, file["tensors"], strict=False):
            if header.device is None or not header.nbytes:
                continue
            payload = content[header.offset : header.offset + header.nbytes]
            host = to_host(payload, header.device, header.shape, header.element)
            assert same(host, np.load(root / described["expected"]))
            assert padding_is_zero(payload, host)
            assert to_device(host, header.device).tobytes() == payload
            checked.add(header.device.format)
    assert checked == {"NC1HWC0", "FRACTAL_Z", "FRACTAL_NZ", "NDC1HWC0"}
