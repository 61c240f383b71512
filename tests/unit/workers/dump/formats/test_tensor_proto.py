"""Tensors of ONNX, as ONNX Runtime dumps them: one message, whose elements lie in the file as they are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dump_data_writer import chunk, number
from workers.dump.formats.header import TensorHeader, Truncated
from workers.dump.formats.tensor_proto import read_headers, varint
from workers.errors import UnreadableTensor

VALUES = np.arange(6, dtype="<f4").reshape(2, 3)


def proto(
    shape: tuple[int, ...] = (2, 3),
    code: int = 1,
    raw: bytes | None = VALUES.tobytes(),
    *,
    packed: bool = False,
    extra: bytes = b"",
) -> bytes:
    dims = chunk(1, b"".join(map(varint, shape))) if packed else b"".join(b"\x08" + varint(n) for n in shape)
    elements = b"" if raw is None else chunk(9, raw)
    return dims + number(2, code) + chunk(8, b"/model/fc.1/output_0") + elements + extra


def headers_of(content: bytes) -> tuple[TensorHeader, ...]:
    return read_headers(lambda offset, nbytes: content[offset : offset + nbytes], len(content))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("extra", [b"", chunk(12, b"text"), number(14, 0)])
def test_elements_lie_in_the_file(packed: bool, extra: bytes) -> None:
    content = proto(packed=packed, extra=extra)
    (header,) = headers_of(content)
    assert (header.shape, header.element.name, header.full_name) == (
        (2, 3),
        "float32",
        "/model/fc.1/output_0",
    )
    payload = content[header.offset : header.offset + header.nbytes]
    assert header.lead + payload + header.tail == content
    assert payload == VALUES.tobytes()


@pytest.mark.parametrize(
    ("code", "name", "nbytes"),
    [(10, "float16", 12), (16, "bfloat16", 12), (9, "bool", 6), (22, "int4", 3), (17, "float8_e4m3fn", 6)],
)
def test_types(code: int, name: str, nbytes: int) -> None:
    (header,) = headers_of(proto(code=code, raw=bytes(nbytes)))
    assert (header.element.name, header.nbytes) == (name, nbytes)


def test_file_that_is_cut_off_may_still_grow() -> None:
    content = proto()
    for nbytes in range(len(content)):
        with pytest.raises((Truncated, UnreadableTensor)) as raised:
            headers_of(content[:nbytes])
        assert raised.type is Truncated or nbytes < 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (proto(code=99), "element type 99"),
        (proto((2, 4)), "24 bytes of elements instead of 32"),
        (proto((2**40, 2**40)), "more bytes than there are addresses"),
        (proto((2**62,)), "impossible shape"),
        (proto((1,) * 65), "impossible shape"),
        (proto(extra=chunk(9, b"again")), "elements in two places"),
        (proto(extra=number(14, 1)), "in another file"),
        (proto(extra=number(3, 1) * 1100), "fields"),
        (chunk(8, bytes(5000)), "name of 5000 bytes"),
        (chunk(1, bytes(5000)), "more than 64 axes"),
        (chunk(1, b"\x80"), "ends inside a number"),
        (chunk(2, b"x"), "is not a number"),
    ],
)
def test_impossible_figures_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        headers_of(content)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for variant in (content, proto()[: len(content)] + content):
        try:
            headers = headers_of(variant)
        except UnreadableTensor:
            continue
        assert sum(len(h.lead) + h.nbytes + len(h.tail) for h in headers if h.view is None) == len(variant)


@pytest.mark.parametrize(
    ("dtype", "shape", "written"),
    [
        (
            "float32",
            (2, 3),
            "080208031001420866632f6f75743a304a18000000000000803f000000000000803f000000000000803f",
        ),
        ("bfloat16", (3,), "08031010420866632f6f75743a304a060000803f0000"),
        ("int64", (), "1007420866632f6f75743a304a080000000000000000"),
        ("bool", (2, 2), "080208021009420866632f6f75743a304a0400010001"),
        ("float16", (0,), "0800100a420866632f6f75743a304a00"),
    ],
)
def test_what_the_package_onnx_writes_is_read(dtype: str, shape: tuple[int, ...], written: str) -> None:
    """By `onnx.numpy_helper.from_array(values, "fc/out:0")` of onnx 1.23.2: each element is 0 or 1 in turn.

    ONNX Runtime writes the same messages, but only if it was built for that: its wheels are not.
    """
    (header,) = headers_of(bytes.fromhex(written))
    expected = np.arange(math.prod(shape)).reshape(shape) % 2
    content = bytes.fromhex(written)[header.offset : header.offset + header.nbytes]
    values = np.frombuffer(content, header.element.to_numpy()).reshape(header.shape)
    assert (header.element.name, header.shape, header.full_name) == (dtype, shape, "fc/out:0")
    assert np.array_equal(values.astype(np.int64), expected)
