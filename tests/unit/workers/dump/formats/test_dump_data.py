"""DumpData files give their tensors, byte for byte, and nothing that they do not bear out."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.dump_data_reading import (
    BYTES,
    FLOATS,
    NULL,
    PARTS,
    headers_of,
    payload_of,
    put_together,
    tensors,
)
from tests.dump_data_writer import (
    Tensor,
    dump_data,
    version_1,
)
from tests.dumps import DumpLibrary
from workers.arrays.device_format import DeviceLayout, to_host
from workers.arrays.dtypes import unpack
from workers.dump.formats.dump_data import read_headers
from workers.dump.formats.header import Truncated


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
