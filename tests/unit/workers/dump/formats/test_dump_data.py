"""DumpData files: tensors, shapes and types; damaged and hostile ones."""

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.dump_data_writer import (
    BYTES,
    DATA_TYPES,
    FLOATS,
    FORMAT_CODES,
    NULL,
    PARTS,
    Tensor,
    chunk,
    dump_data,
    framed,
    headers_of,
    number,
    only,
    payload_of,
    put_together,
    tensors,
    version_1,
)
from tests.stores import DumpLibrary
from workers.arrays.device_format import DeviceLayout, to_host
from workers.arrays.dtypes import unpack
from workers.dump.formats.dump_data import MAX_FIELDS, MAX_HEADER_BYTES, MAX_PADDING_BYTES, read_headers
from workers.dump.formats.header import Truncated
from workers.errors import UnreadableTensor

# DumpData files give their tensors, byte for byte, and nothing that they do not bear out.


@given(st.lists(tensors(), max_size=4), st.lists(tensors(), max_size=4), PARTS, PARTS, st.booleans())
def test_every_tensor_comes_back(
    inputs: list[tuple[Tensor, str]],
    outputs: list[tuple[Tensor, str]],
    buffers: list[bytes],
    spaces: list[bytes],
    packed: bool,
) -> None:
    """Of any type and shape; inputs stand before outputs in the payload, and behind them in the header."""
    content = dump_data(
        [tensor for tensor, _ in inputs],
        [tensor for tensor, _ in outputs],
        buffers=buffers,
        spaces=spaces,
        packed=packed,
    )
    headers = headers_of(content)
    assert [(found.io, found.slot) for found in headers] == [
        *(("input", slot) for slot in range(len(inputs))),
        *(("output", slot) for slot in range(len(outputs))),
        *(("buffer", slot) for slot in range(len(buffers))),
        *(("space", slot) for slot in range(len(spaces))),
    ]
    for found, (tensor, name) in zip(headers, [*inputs, *outputs], strict=False):
        assert (found.element.name, found.shape, found.problem) == (name, tuple(tensor.shape), "")
        assert (found.device, found.format, found.full_name) == (None, "ND", "Default/MatMul-op0")
        assert tensor.payload.startswith(payload_of(content, found))
        assert found.nbytes == found.element.nbytes(found.size)
    for found, payload in zip(headers[len(inputs) + len(outputs) :], [*buffers, *spaces], strict=True):
        assert (found.element.name, found.shape, payload_of(content, found)) == (
            "uint8",
            (len(payload),),
            payload,
        )
    if headers:
        assert put_together(content, headers) == content


@given(st.lists(tensors(), max_size=3), st.lists(tensors(), max_size=3), PARTS, PARTS)
def test_version_1_has_its_payloads_inside(
    inputs: list[tuple[Tensor, str]],
    outputs: list[tuple[Tensor, str]],
    buffers: list[bytes],
    spaces: list[bytes],
) -> None:
    assume(inputs or outputs or buffers or spaces)
    content = version_1(
        [tensor for tensor, _ in inputs],
        [tensor for tensor, _ in outputs],
        buffers=buffers,
        spaces=spaces,
    )
    headers = headers_of(content)
    assert len(headers) == len(inputs) + len(outputs) + len(buffers) + len(spaces)
    assert all(first.offset + first.nbytes <= second.offset for first, second in pairwise(headers))
    found = {(each.io, each.slot): each for each in headers}
    for io, described in (("input", inputs), ("output", outputs)):
        for slot, (tensor, name) in enumerate(described):
            each = found[io, slot]
            assert (each.element.name, each.shape) == (name, tuple(tensor.shape))
            assert tensor.payload.startswith(payload_of(content, each))
            assert each.nbytes == each.element.nbytes(each.size)
    for io, payloads in (("buffer", buffers), ("space", spaces)):
        assert [payload_of(content, found[io, slot]) for slot in range(len(payloads))] == payloads
    assert put_together(content, headers) == content


def test_version_1_is_read_around_its_payloads() -> None:
    """Files may be larger than memory."""
    content = version_1([Tensor(bytes(4 * 2**20), shape=(2**20,))], [Tensor(bytes(2**20), 4, (2**20,))])
    taken = []

    def read(offset: int, nbytes: int) -> bytes:
        taken.append(nbytes)
        return content[offset : offset + nbytes]

    assert [each.nbytes for each in read_headers(read, len(content))] == [2**20, 4 * 2**20]
    assert sum(taken) < 2**16


def test_payload_is_never_read() -> None:
    content = dump_data([Tensor(bytes(2**20), 4, (2**20,))])

    def read(offset: int, nbytes: int) -> bytes:
        assert offset + nbytes <= 4096
        return content[offset : offset + nbytes]

    assert len(read_headers(read, len(content))) == 1


@pytest.mark.parametrize("make", [dump_data, version_1])
def test_growing_file_is_truncated_at_any_length(make: Callable[..., bytes]) -> None:
    """`Truncated` keeps a step open; a plain `UnreadableTensor` would quarantine a file in the making."""
    content = make([FLOATS, BYTES], [FLOATS], buffers=[b"buffer"], spaces=[b"space"])
    whole = 0
    for length in range(len(content)):
        try:
            headers_of(content[:length])
        except Truncated:
            continue
        whole += 1
    # Of version 1, cuts between two fields cannot be seen.
    assert whole == (0 if make is dump_data else 6)


def test_tensor_without_device_memory_is_no_tensor_of_zeros() -> None:
    content = dump_data([FLOATS, NULL, BYTES], [FLOATS])
    headers = headers_of(content)
    assert [(each.io, each.slot, each.shape) for each in headers] == [
        ("input", 0, (2, 3)),
        ("input", 1, (0,)),
        ("input", 2, (8,)),
        ("output", 0, (2, 3)),
    ]
    assert headers[1].problem == "not dumped: it had no device memory (shape (4), 16 bytes)"
    assert payload_of(content, headers[2]) == b"abcdefgh"
    assert put_together(content, headers) == content


def test_null_address_with_a_payload_is_read_as_the_size_of_the_file_says() -> None:
    content = dump_data([FLOATS, Tensor(bytes(range(16)), shape=(4,), address=0)])
    headers = headers_of(content)
    assert payload_of(content, headers[1]) == bytes(range(16))
    assert headers[1].problem == ""


def test_file_without_any_address_may_still_grow() -> None:
    """Old writers give no address: then none says what was skipped."""
    old = Tensor(FLOATS.payload, shape=(2, 3), address=None)
    with pytest.raises(Truncated):
        headers_of(dump_data([old, Tensor(bytes(16), shape=(4,), address=None, dumped=False)]))


def test_samples_are_what_their_manifest_says(dumps: DumpLibrary) -> None:
    """Files as they are found in trees of TorchAir, TensorFlow and MindSpore."""
    root = dumps["cann-bin-synthetic"]
    entries: list[dict[str, Any]] = json.loads((root / "manifest.json").read_text())
    assert len(entries) == 25
    for entry in entries:
        content = (root / entry["file"]).read_bytes()
        if not entry["complete"]:
            with pytest.raises(Truncated):
                headers_of(content)
            continue
        headers = headers_of(content)
        assert put_together(content, headers) == content
        for described, found in zip(entry["tensors"], headers, strict=True):
            assert (found.io, found.slot) == (described["io"], described["index"])
            assert (found.format, found.full_name) == (described["format"], entry["op_name"])
            if not described["has_payload"]:
                assert (found.nbytes, found.shape) == (0, (0,))
                assert found.problem
                continue
            assert found.shape == tuple(described["original_shape"])
            assert found.problem == ""
            moved = described["format"] != "ND"
            expected_layout = DeviceLayout(described["format"], tuple(described["device_shape"]))
            assert found.device == (expected_layout if moved else None)
            if "expected" not in described:
                continue
            expected = np.load(root / described["expected"], allow_pickle=False)
            assert expected.shape == found.shape
            payload = payload_of(content, found)
            if found.device is None:
                values = unpack(payload, found.element, found.size).reshape(found.shape)
            else:
                values = to_host(payload, found.device, found.shape, found.element)
            np.testing.assert_array_equal(values.astype(expected.dtype), expected)


# Shapes, types and memory formats in DumpData files are those of their headers, or a problem.


@pytest.mark.parametrize(
    ("shape", "original", "nbytes", "expected"),
    [
        ((), None, 4, ()),
        ((), (), 4, ()),
        ((1,), (), 4, ()),
        ((1,), None, 4, (1,)),
        ((1,), (1,), 4, (1,)),
        ((1, 1), (), 4, (1, 1)),
        ((3,), (), 12, (3,)),
        ((), None, 24, (6,)),
        ((), (2, 3), 24, (2, 3)),
        ((), (2, 2), 24, (6,)),
        ((), None, 26, (6,)),
        ((), None, 0, (0,)),
        ((0, 4), (0, 4), 0, (0, 4)),
        ((0, 4), None, 0, (0, 4)),
        ((6,), (2, 3), 24, (2, 3)),
        ((2, 3), (-1, 3), 24, (2, 3)),
        ((0,), (0, 2**61, 2**61), 0, (0,)),
        ((), (0, 2**61, 2**61), 0, (0,)),
    ],
)
def test_shape(
    shape: tuple[int, ...], original: tuple[int, ...] | None, nbytes: int, expected: tuple[int, ...]
) -> None:
    """Of float32 in ND; the original shape may be missing, empty, not known or impossible."""
    found = only(Tensor(bytes(nbytes), shape=shape, original_shape=original))
    assert (found.shape, found.problem, found.device) == (expected, "", None)


def test_padding_is_kept_beside_the_payload() -> None:
    content = dump_data([Tensor(b"12345678padding", shape=(2,))], [Tensor(b"12345678rest", shape=(2,))])
    first, second = headers_of(content)
    assert (first.nbytes, second.lead, second.nbytes, second.tail) == (8, b"padding", 8, b"rest")
    assert put_together(content, [first, second]) == content


@pytest.mark.parametrize("padding", [MAX_PADDING_BYTES, MAX_PADDING_BYTES + 1])
def test_long_padding_makes_a_tensor_of_bytes(padding: int) -> None:
    content = dump_data([Tensor(bytes(8 + padding), shape=(2,))])
    (found,) = headers_of(content)
    if padding == MAX_PADDING_BYTES:
        assert (found.element.name, found.shape, found.problem) == ("float32", (2,), "")
    else:
        assert (found.element.name, found.shape) == ("uint8", (8 + padding,))
        assert (found.declared_dtype, found.problem[-14:]) == ("DT_FLOAT", "; kept as bytes"[-14:])
    assert put_together(content, [found]) == content


def test_shape_larger_than_the_payload_is_damage() -> None:
    with pytest.raises(
        UnreadableTensor, match=r"input 0 has 20 bytes, fewer than the 24 of float32, shape \(2, 3\)"
    ):
        headers_of(dump_data([Tensor(bytes(20), shape=(2, 3))]))


@pytest.mark.parametrize("shape", [(2**40, 2**40), (0, 2**61, 2)])
def test_shape_beyond_all_memory_is_damage(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnreadableTensor, match="more bytes than there are addresses"):
        headers_of(dump_data([BYTES, Tensor(b"" if 0 in shape else bytes(8), shape=shape)]))


def test_opaque_type_of_unknown_packing_keeps_its_bytes() -> None:
    """Four 6-bit elements in three bytes: whether they are packed so is not settled."""
    found = only(Tensor(bytes(3), DATA_TYPES["float6_e2m3"], (4,)))
    assert (found.element.name, found.shape, found.nbytes) == ("float6_e2m3", (3,), 3)
    assert "packing" in found.problem


@pytest.mark.parametrize(
    ("code", "element", "declared"),
    [
        (0, "uint8", "DT_UNDEFINED"),
        (13, "uint8", "DT_STRING"),
        (23, "uint8", "DT_RESOURCE"),
        (24, "uint8", "DT_STRING_REF"),
        (25, "uint8", "DT_DUAL"),
        (26, "uint8", "DT_VARIANT"),
        (43, "uint8", "data_type 43"),
        (2**31 - 1, "uint8", "data_type 2147483647"),
        (-1, "uint8", "data_type -1"),
        (14, "int8", "DT_DUAL_SUB_INT8"),
        (15, "uint8", "DT_DUAL_SUB_UINT8"),
        (18, "int8", "DT_QINT8"),
        (21, "uint8", "DT_QUINT8"),
    ],
)
def test_type_without_an_element_type_says_what_it_was(code: int, element: str, declared: str) -> None:
    found = only(Tensor(b"abcdefgh", code, (8,)))
    assert (found.element.name, found.shape, found.declared_dtype) == (element, (8,), declared)


@pytest.mark.parametrize(("name", "code"), FORMAT_CODES.items())
def test_format_has_its_name(name: str, code: int) -> None:
    found = only(Tensor(bytes(24), shape=(2, 3), format=code))
    assert (found.format, found.shape, found.device) == (name, (2, 3), None)


def test_device_format_leads_to_the_host_shape() -> None:
    tensor = Tensor(
        bytes(2 * 2 * 2 * 16 * 16),
        DATA_TYPES["float16"],
        shape=(2, 2, 16, 16),
        original_shape=(20, 30),
        format=FORMAT_CODES["FRACTAL_NZ"],
    )
    found = only(tensor)
    assert (found.shape, found.nbytes) == ((20, 30), 2048)
    assert found.device == DeviceLayout("FRACTAL_NZ", (2, 2, 16, 16))


@pytest.mark.parametrize(("code", "sub_format"), [(4, 2), (2 << 8 | 4, 0)])
def test_groups_of_a_convolution(code: int, sub_format: int) -> None:
    """Two groups of 16 outputs and 16 channels, which fill their blocks."""
    tensor = Tensor(
        bytes(2 * 2 * 1 * 16 * 16),
        DATA_TYPES["float16"],
        shape=(2, 1, 16, 16),
        original_shape=(32, 16, 1, 1),
        format=code,
        sub_format=sub_format,
    )
    assert only(tensor).device == DeviceLayout("FRACTAL_Z", (2, 1, 16, 16), groups=2)


def test_device_format_that_does_not_fit_stays_in_device_shape() -> None:
    tensor = Tensor(
        bytes(4 * 2 * 2 * 16 * 16),
        shape=(2, 2, 16, 16),
        original_shape=(100, 30),
        format=FORMAT_CODES["FRACTAL_NZ"],
    )
    found = only(tensor)
    assert (found.shape, found.device, found.format) == ((2, 2, 16, 16), None, "FRACTAL_NZ")
    assert found.problem == "kept in device shape: FRACTAL_NZ does not convert it to (100, 30)"


def test_permuted_axes_are_a_device_layout() -> None:
    tensor = Tensor(bytes(480), shape=(2, 4, 5, 3), original_shape=(2, 3, 4, 5), format=FORMAT_CODES["NHWC"])
    found = only(tensor)
    assert (found.shape, found.device) == ((2, 3, 4, 5), DeviceLayout("NHWC", (2, 4, 5, 3)))


# Damaged and hostile DumpData files are read as far as they are sound, or refused.


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'",
        b"PK\x03\x04" + bytes(60),
        b'{"magic": "0x5a5a5a5a"}',
        bytes(64),
        struct.pack("<Q", 16) + b"\xff" * 64,
        framed(b"\x0b" * 20),  # a group, and another in it, and so on
        framed(chunk(4, b"\x0b" * 3000)),
        framed(chunk(4, b"\x12\x05")),
        framed(chunk(3, chunk(3, chunk(1, b"\xff" * 11)))),
        framed(number(2, 1) + b"\x00\x01"),
        b"\x0a\x031.0\x1b" + bytes(20),
        b"\x0a\x031.0" + chunk(4, b"\x13" + bytes(20)),
        b"\x0a\x031.0" + chunk(4, chunk(4, b"payload") + number(5, 6)),
        b"\x0a\x031.0" + chunk(4, b"\x08\x01\x22\x7fpayload"),
    ],
)
def test_other_content_is_unreadable(content: bytes) -> None:
    with pytest.raises(UnreadableTensor) as found:
        headers_of(content)
    assert not isinstance(found.value, Truncated)


def test_header_of_more_than_its_limit_is_refused_unread() -> None:
    def read(offset: int, nbytes: int) -> bytes:
        assert nbytes <= 4096
        return struct.pack("<Q", MAX_HEADER_BYTES + 1)[offset:] + bytes(nbytes - 8)

    with pytest.raises(UnreadableTensor, match="more than 16777216"):
        read_headers(read, 2**40)


def test_header_of_countless_fields_is_refused() -> None:
    """Two bytes of a header become hundreds in memory, if they are a message."""
    content = framed(b"\x22\x00" * (MAX_HEADER_BYTES // 2))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableTensor, match=f"more than {MAX_FIELDS} fields"):
            headers_of(content)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(content)
    finally:
        tracemalloc.stop()


def test_version_1_of_countless_fields_is_refused() -> None:
    with pytest.raises(UnreadableTensor, match="fields"):
        headers_of(b"\x0a\x031.0" + chunk(4, b"\x08\x01" * 2**18))
    with pytest.raises(UnreadableTensor, match="besides the payloads"):
        headers_of(b"\x0a\x031.0" + chunk(6, bytes(2**23)) * 3)
    with pytest.raises(UnreadableTensor, match="besides the payloads"):
        headers_of(b"\x0a\x031.0" + chunk(4, chunk(20, bytes(2**23)) * 3))


def test_long_name_of_many_tensors_is_refused() -> None:
    """Each tensor carries the name: a small file must not fill the memory with it."""
    message = chunk(1, b"2.0") + chunk(3, b"") * 60_000 + chunk(6, b"x" * 60_000)
    with pytest.raises(UnreadableTensor, match="60000 bytes for each of 60000 tensors"):
        headers_of(framed(message))
    message = chunk(1, b"2.0") + chunk(3, b"") * 60_000 + chunk(6, b"x" * 20)
    assert len(headers_of(framed(message))) == 60_000


def only_its_errors(content: bytes) -> None:
    """Read a file that may be anything: in little time, and raising nothing else."""
    begun = time.perf_counter()
    try:
        headers = headers_of(content)
    except UnreadableTensor:
        pass
    else:
        assert not headers or put_together(content, headers) == content
        assert all(each.full_name.encode() is not None for each in headers)
    assert time.perf_counter() - begun < 1


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    only_its_errors(content)
    only_its_errors(framed(content))
    only_its_errors(framed(content) + bytes(16))
    only_its_errors(b"\x0a\x031.0" + content)


VALID = [
    dump_data([FLOATS, NULL, BYTES], [FLOATS], buffers=[b"buffer"], spaces=[b"space"]),
    dump_data([FLOATS], [Tensor(bytes(2048), 2, (2, 2, 16, 16), (20, 30), format=29)]),
    dump_data([Tensor(bytes(512), 2, (1, 1, 1, 16, 16), (1, 3, 1, 16), format=3)]),
    version_1([FLOATS, BYTES], [FLOATS], buffers=[b"buffer"], spaces=[b"space"]),
]


@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.binary(min_size=1, max_size=4)), max_size=6),
)
def test_damaged_file_is_read_or_refused(content: bytes, edits: list[tuple[float, int, bytes]]) -> None:
    """Bytes replaced, inserted and taken out, most of them in the header."""
    for where, kind, piece in edits:
        at = int(where * min(len(content), 200))
        behind = at if kind == 1 else at + len(piece)
        content = content[:at] + (b"" if kind == 2 else piece) + content[behind:]
    only_its_errors(content)
