"""Files of arrays: npy, npz, raw, safetensors, torch.distributed.checkpoint, and tensors of ONNX."""

import hashlib
import io
import json
import math
import struct
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.dump_data_writer import chunk, number
from tests.pt_files import call, named, pickled, pt_bytes, text
from tests.stores import npy_bytes, npy_header, unpack
from workers.arrays.arrangements import elements_of, inflate
from workers.arrays.dtypes import from_name
from workers.dump.formats import npy
from workers.dump.formats.distcp import Chunk, read_metadata
from workers.dump.formats.distcp import read_headers as read_distcp
from workers.dump.formats.header import HoldsNoTensor, TensorHeader, Truncated
from workers.dump.formats.npy import (
    MAGIC,
    MAX_HEADER_BYTES,
    header_length,
    parse_header,
    read_archive_headers,
)
from workers.dump.formats.safetensors import MAX_HEADER_NBYTES, read_headers
from workers.dump.formats.tensor_proto import LENGTH_DELIMITED, FieldWalk, WireField, varint
from workers.dump.formats.tensor_proto import read_headers as read_tensor_proto
from workers.errors import UnreadableTensor

# The npy header parser believes nothing that the file does not bear out.


FLOATS = npy_bytes(np.arange(6, dtype="<f4").reshape(2, 3))


def header_of(text: str, version: int = 1) -> bytes:
    encoded = text.encode("utf-8")
    length = len(encoded).to_bytes(2 if version == 1 else 4, "little")
    return MAGIC + bytes([version, 0]) + length + encoded


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_of_the_format_is_read(version: int) -> None:
    header = npy_header("<f8", (3, 4), version=version)
    found = parse_header(header, file_size=len(header) + 96)
    assert (found.element.name, found.shape, found.nbytes, found.lead) == ("float64", (3, 4), 96, header)


def test_mindspore_bfloat16_is_known_although_numpy_refuses_it() -> None:
    header = npy_header("<E2", (5,))
    assert parse_header(header, file_size=len(header) + 10).element.name == "bfloat16"


@pytest.mark.parametrize("length", range(0, len(FLOATS), 7))
def test_short_file_may_still_grow(length: int) -> None:
    """`Truncated` keeps a step open; a plain `UnreadableTensor` would quarantine a file in the making."""
    with pytest.raises(Truncated):
        parse_header(FLOATS[:length], file_size=length)


def test_long_file_is_no_tensor_of_that_header() -> None:
    with pytest.raises(UnreadableTensor, match="accounts for only") as found:
        parse_header(FLOATS + b"x", file_size=len(FLOATS) + 1)
    assert not isinstance(found.value, Truncated)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "{}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [2]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % ("1," * 65),
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0x%s,)}" % ("f" * 9000),
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': None, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 5, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '(2,)<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|S99999999999999', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '(99999,99999,99999)f8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4'), ('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [[]], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a',)], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [1], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '[1', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '[%s1]', 'fortran_order': False, 'shape': (1,)}" % ("-" * 50_000),
        "{'descr': '\\ud800', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '[(\"\\udc80\", \"<f4\")]', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '[{[]: 1}]', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': (((1,),),), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': {'names': ['a']}, 'fortran_order': False, 'shape': (1,)}",
        "{[]: 1}",
        "{'descr': {[]: 1}}",
        "__import__('os').system('true')",
        "(" * 5000,
        "-" * 30000 + "1",
        "1" + "+1" * 15000,
        "\0",
    ],
)
def test_nonsense_in_a_header_is_unreadable_and_nothing_else(text: str) -> None:
    """Any other exception would end the watcher instead of quarantining one file."""
    head = header_of(text)
    with pytest.raises(UnreadableTensor):
        parse_header(head, file_size=len(head) + 8)


@pytest.mark.parametrize("shape", [(2**62 - 1, 0), (2**31, 0, 2**31)])
def test_impossible_axes_are_refused_also_where_another_is_empty(shape: tuple[int, ...]) -> None:
    """The sizes agree, zero bytes, but numpy cannot make such an array: reading it back would fail."""
    head = npy_header("<f8", shape)
    with pytest.raises(UnreadableTensor, match="addresses"):
        parse_header(head, file_size=len(head))


def test_overlong_header_is_refused_before_it_is_read() -> None:
    head = MAGIC + b"\x02\x00" + (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(UnreadableTensor, match=str(MAX_HEADER_BYTES)):
        header_length(head)


literals = st.recursive(
    st.one_of(
        st.integers(),
        st.booleans(),
        st.none(),
        st.text(max_size=5),
        st.sampled_from(["<f4", "|O", "[", "<E2"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "names", "formats"]), inner, max_size=2),
    ),
    max_leaves=8,
)
plausible = st.builds(
    lambda descr, order, shape: f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}}}",
    literals,
    st.one_of(st.booleans(), literals),
    st.one_of(st.lists(st.integers(-1, 2**70), max_size=4).map(tuple), literals),
)


@given(head=st.one_of(st.binary(max_size=200), plausible.map(header_of)), more=st.integers(0, 64))
@example(head=b"", more=0)
def test_any_bytes_parse_or_are_unreadable(head: bytes, more: int) -> None:
    """A dump is untrusted input."""
    try:
        found = parse_header(head, file_size=len(head) + more)
    except UnreadableTensor:
        return
    assert found.offset + found.nbytes == len(head) + more
    # What is accepted can be read: no dtype or shape that numpy itself refuses.
    element = np.zeros(0, found.element.to_numpy())
    assert element.dtype.itemsize == found.element.itemsize
    if found.size == 0:
        element.reshape(found.shape)


# Archives of numpy are read as numpy reads them; a compressed array never exceeds what it announces.


ARRAYS: dict[str, Any] = {
    "a": np.arange(6, dtype=np.int32).reshape(2, 3),
    "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "empty": np.zeros((0, 2), np.float32),
}


def file_of(save: Any, **arrays: Any) -> bytes:
    made = io.BytesIO()
    save(made, **arrays)
    return made.getvalue()


def read(file: bytes) -> list[TensorHeader]:
    headers = read_archive_headers(lambda offset, nbytes: file[offset : offset + nbytes], len(file))
    parts = [part for part in headers if part.view is None]
    whole = b"".join(part.lead + file[part.offset : part.offset + part.nbytes] + part.tail for part in parts)
    assert whole == file
    return [part for part in headers if not part.is_part]


def view_of(begin: bytes, header: TensorHeader) -> bytes:
    assert header.view is not None
    read_at = lambda start, nbytes: begin[start : start + nbytes]  # noqa: E731
    return bytes(elements_of(read_at, header.view, header.shape, header.element))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_have_the_elements_that_numpy_reads(save: Any) -> None:
    file = file_of(save, **ARRAYS)
    found = {header.path: header for header in read(file)}
    assert sorted(found) == [("a",), ("empty",), ("f",)]
    for (name,), header in found.items():
        at = header.offset
        content = view_of(file[at:], header) if header.view is not None else file[at : at + header.nbytes]
        values = np.frombuffer(content, header.element.to_numpy())
        shaped = values.reshape(header.shape, order="F" if header.fortran_order else "C")
        assert shaped.tolist() == ARRAYS[name].tolist()


def test_array_that_becomes_more_than_it_announces_is_refused() -> None:
    file = bytearray(file_of(np.savez_compressed, a=np.zeros(1_000_000, np.uint8)))
    at = file.rindex(b"PK\x01\x02")
    file[at + 24 : at + 28] = (1000).to_bytes(4, "little")
    with pytest.raises(UnreadableTensor, match="more than 1000 bytes"):
        read(bytes(file))
    file[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    with pytest.raises(UnreadableTensor, match="is compressed and has 2147483648 bytes"):
        read(bytes(file))


def test_same_bytes_are_not_decompressed_for_each_of_many_names() -> None:
    """An archive of 56 kB took 22 s."""
    file = file_of(np.savez_compressed, a=np.zeros(24 << 20, np.uint8))
    end = file.rindex(b"PK\x05\x06")
    begin = file.rindex(b"PK\x01\x02")
    entries = b"".join(file[begin:end].replace(b"a.npy", b"%c.npy" % name) for name in range(65, 91))
    record = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 26, 26, len(entries), begin, 0)
    with (
        patch.object(npy, "inflate", wraps=inflate) as counted,
        pytest.raises(UnreadableTensor, match="views that would take"),
    ):
        read(file[:begin] + entries + record)
    assert counted.call_count == 3


def test_other_files_are_told_apart() -> None:
    with pytest.raises(UnreadableTensor, match="is not an npz file"):
        read(b"\x93NUMPY" + bytes(100))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("b.txt", b"c")
    with pytest.raises(HoldsNoTensor):
        read(made.getvalue())


@given(st.integers(0, 700), st.integers(0, 255))
def test_any_changed_byte_is_refused_or_read(at: int, value: int) -> None:
    for save in (np.savez, np.savez_compressed):
        file = bytearray(file_of(save, **ARRAYS))
        file[at % len(file)] = value
        try:
            read(bytes(file))
        except UnreadableTensor:
            continue


# Files of elements only: their size must be that of the type and the shape in their name.


@given(
    st.sampled_from(["float32", "int8", "complex128", "bfloat16"]), st.lists(st.integers(0, 9), max_size=4)
)
def test_file_of_the_right_size_is_one_tensor(dtype: str, shape: list[int]) -> None:
    nbytes = from_name(dtype).nbytes(math.prod(shape))
    header = npy.raw_header(dtype, tuple(shape), nbytes)
    assert (header.shape, header.offset, header.nbytes, header.element.name) == (
        tuple(shape),
        0,
        nbytes,
        dtype,
    )


@pytest.mark.parametrize(
    ("dtype", "nbytes", "size"), [("float32", 24, 6), ("int4", 3, 6), ("uint1", 2, 16), ("|V1", 5, 5)]
)
def test_without_a_shape_all_elements_are_on_one_axis(dtype: str, nbytes: int, size: int) -> None:
    assert npy.raw_header(dtype, None, nbytes).shape == (size,)


def test_short_file_may_still_grow_and_a_long_one_is_damaged() -> None:
    with pytest.raises(
        Truncated, match=r"has 20 bytes, but its name announces 24 \(float32, shape \(2, 3\)\)"
    ):
        npy.raw_header("float32", (2, 3), 20)
    with pytest.raises(UnreadableTensor, match="has 28 bytes") as error:
        npy.raw_header("float32", (2, 3), 28)
    assert not isinstance(error.value, Truncated)


# Files of safetensors are read as its format says, and no figure in them is believed.


VALUES = np.arange(6, dtype=np.float32)


def safetensors_file(header: Any, payload: bytes = VALUES.tobytes()) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


#: A JSON object with two members of the same name, which `json.loads` would take for the second one alone.
TWICE = b'{"a": %s, "a": %s}' % tuple(json.dumps(tensor(n, n + 12, [3])).encode() for n in (0, 12))


def read_safetensors(file: bytes) -> tuple[TensorHeader, ...]:
    headers = read_headers(lambda offset, nbytes: file[offset : offset + nbytes], len(file))
    parts = [part for part in headers if part.view is None]
    whole = b"".join(part.lead + file[part.offset : part.offset + part.nbytes] + part.tail for part in parts)
    assert whole == file
    return headers


def test_tensors_have_names_types_shapes_and_places() -> None:
    header = {"b": tensor(8, 24, [2, 2]), "a": tensor(0, 8, [4], "BF16"), "__metadata__": {"format": "pt"}}
    file = safetensors_file(header)
    found = read_safetensors(file)
    assert [(header.path, header.element.name, header.shape, header.number) for header in found] == [
        (("a",), "bfloat16", (4,), 1),
        (("b",), "float32", (2, 2), 0),
    ]
    assert json.loads(found[0].record)["file"] == {"__metadata__": {"format": "pt"}}
    assert file[found[1].offset :] == VALUES[2:].tobytes()


def test_tensors_that_overlap_share_their_bytes() -> None:
    whole, part = read_safetensors(
        safetensors_file({"part": tensor(8, 16, [2]), "whole": tensor(0, 24, [6])})
    )
    assert (whole.path, part.path) == (("whole",), ("part",))
    assert part.view is not None
    assert part.view.base == whole.offset


@pytest.mark.parametrize(
    "header", [{"a": tensor(0, 24, [6])}, {"a": tensor(0, 8, [2]), "b": tensor(16, 24, [2])}]
)
def test_files_with_equal_headers_have_bytes_of_their_own(header: dict[str, Any]) -> None:
    """Such a header is read once; what lies between tensors is not part of it."""
    for value in range(3):
        read_safetensors(safetensors_file(header, bytes([value]) * 24))
    with pytest.raises(Truncated):
        read_safetensors(safetensors_file(header, bytes(23)))


@pytest.mark.parametrize(
    ("file", "error", "message"),
    [
        (b"1234", Truncated, "fewer than a safetensors header"),
        (struct.pack("<Q", 100) + b"{}", Truncated, "fewer than the 108"),
        (struct.pack("<Q", MAX_HEADER_NBYTES + 1), UnreadableTensor, "at most"),
        (safetensors_file(b"{"), UnreadableTensor, "not JSON"),
        (safetensors_file(b"[" * 100_000), UnreadableTensor, "not JSON"),
        (safetensors_file([1]), UnreadableTensor, "not a JSON object"),
        (safetensors_file({"a": 1}), UnreadableTensor, "lacks the type"),
        (safetensors_file({"a": tensor(0, 24, [7])}), UnreadableTensor, "24 bytes instead of 28"),
        (safetensors_file({"a": tensor(24, 0, [6])}), UnreadableTensor, "-24 bytes instead of 24"),
        (safetensors_file({"a": tensor(-24, 0, [6])}), UnreadableTensor, "begins before the elements"),
        (safetensors_file(TWICE), UnreadableTensor, "has the same name twice"),
        (safetensors_file({"a": tensor(0, 28, [7])}), Truncated, "announces"),
        (safetensors_file({"a": tensor(0, 4, [1])}), UnreadableTensor, "accounts for only"),
        (
            safetensors_file({"a": tensor(0, 0, [0, 2**61])}),
            UnreadableTensor,
            "more bytes than there are addresses",
        ),
        (safetensors_file({"a": tensor(0, 24, [6], "X8")}), UnreadableTensor, "X8, which is not known"),
        (safetensors_file({}, b""), HoldsNoTensor, "names no tensor"),
    ],
)
def test_damage_and_lies_are_named(file: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_safetensors(file)


def test_names_without_number_for_the_same_bytes_are_refused() -> None:
    """Each is read when it is converted: the work must not exceed the file by orders of magnitude."""
    payload = bytes(1 << 20)
    header = {f"t{n}": tensor(0, 1 << 20, [1 << 18]) for n in range(2000)}
    with pytest.raises(UnreadableTensor, match="views that would take"):
        read_safetensors(safetensors_file(header, payload))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(content: bytes) -> None:
    for file in (content, safetensors_file(content)):
        try:
            read_safetensors(file)
        except UnreadableTensor:
            continue


# Files of torch.distributed.checkpoint: every part as torch wrote it; no figure in them is believed.


PARTS, INTEGERS = np.arange(6, dtype="f4"), np.arange(3, dtype="i8")
FILE = pt_bytes(PARTS) + pt_bytes(INTEGERS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("checkpoint")
    unpack("pt/pytorch-logs", into)
    return into / "pytorch-logs" / "dcp-checkpoint"


def headers_of(content: bytes, chunks: Mapping[int, Chunk] | None = None) -> tuple[TensorHeader, ...]:
    return read_distcp(lambda offset, nbytes: content[offset : offset + nbytes], len(content), chunks)


def put_together(content: bytes, headers: tuple[TensorHeader, ...]) -> bytes:
    return b"".join(
        header.lead + content[header.offset : header.offset + header.nbytes] + header.tail
        for header in headers
        if header.view is None
    )


def test_state_that_many_entries_have_is_not_copied_for_each() -> None:
    """It took minutes, and a place that is too large for a file could collide with any other."""
    many = b"}(" + b"".join(text(f"{n:05}") + b"N" for n in range(10_000)) + b"u"
    index = named("m.Index") + b")\x81}" + text("fqn") + text("w") + b"sb"
    place = (
        named("m.Info") + b")\x81}" + text("relative_path") + text("f") + b"s" + text("offset") + b"K\x07sb"
    )
    unusual = named("m.Info") + b")\x81(h\x00h\x00tb"
    state = (
        b"}" + text("state_dict_metadata") + b"}s" + text("storage_data") + b"}("
        + index + place + (index + unusual) * 2000 + b"us"
    )  # fmt: skip
    begun = time.process_time()
    files = read_metadata(pickled(many + b"q\x000" + named("m.Metadata") + b")\x81" + state + b"b"))
    assert {path: list(chunks) for path, chunks in files.items()} == {"f": [7]}
    assert time.process_time() - begun < 1


def test_every_part_is_where_torch_wrote_it(checkpoint: Path) -> None:
    told = json.loads((checkpoint / "oracle.json").read_text())
    directory = checkpoint / "dump" / "step_2"
    files = read_metadata((directory / ".metadata").read_bytes())
    entries = told["state_dict_metadata"]
    parts = [part for part in told["storage"] if entries[part["fqn"]]["type"] == "TensorStorageMetadata"]
    read: dict[tuple[str, int], tuple[TensorHeader, bytes]] = {}
    for path, chunks in files.items():
        content = (directory / path).read_bytes()
        headers = headers_of(content, chunks)
        assert put_together(content, headers) == content
        begins = sorted(chunks)
        for header in headers:
            begin = max(begin for begin in begins if begin <= header.offset)
            read[path, begin] = header, content[header.offset : header.offset + header.nbytes]
    assert len(parts) == len(read) > 50
    for part in parts:
        header, payload = read[part["file"], part["at"]]
        assert (header.path, list(header.shape)) == ((part["fqn"],), part["shape"])
        assert hashlib.sha256(payload).hexdigest() == part["sha256"]
        record = json.loads(header.record)["tensor"]
        assert (record["global_shape"], record["offsets"]) == (entries[part["fqn"]]["size"], part["offset"])


def test_archives_without_metadata_have_their_places_as_names() -> None:
    headers = headers_of(FILE)
    assert [header.path for header in headers] == [("0",), (str(len(pt_bytes(PARTS))),)]
    assert put_together(FILE, headers) == FILE
    assert [header.element.name for header in headers] == ["float32", "int64"]


@pytest.mark.parametrize("nbytes", [0, 1, 21, 22, 100])
def test_file_that_is_cut_off_may_still_grow(nbytes: int) -> None:
    with pytest.raises(Truncated):
        headers_of(FILE[:nbytes])


@given(st.integers(0, len(FILE)), st.binary(min_size=1, max_size=8))
def test_damaged_file_is_read_or_refused(at: int, piece: bytes) -> None:
    content = FILE[:at] + piece + FILE[at + len(piece) :]
    with suppress(UnreadableTensor):
        assert put_together(content, headers_of(content)) == content


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x04", pickled(b"}"), pickled(text("x")), pickled(call("os.system", text("true")))],
)
def test_other_content_is_no_metadata(content: bytes) -> None:
    with pytest.raises(UnreadableTensor):
        read_metadata(content)


@given(st.binary(max_size=60))
def test_any_bytes_are_metadata_or_refused(content: bytes) -> None:
    try:
        files: dict[str, Any] = dict(read_metadata(content))
    except UnreadableTensor:
        return
    assert isinstance(files, dict)


# Tensors of ONNX, as ONNX Runtime dumps them: one message, whose elements lie in the file as they are.


PROTO_VALUES = np.arange(6, dtype="<f4").reshape(2, 3)


def proto(
    shape: tuple[int, ...] = (2, 3),
    code: int = 1,
    raw: bytes | None = PROTO_VALUES.tobytes(),
    *,
    packed: bool = False,
    extra: bytes = b"",
) -> bytes:
    dims = chunk(1, b"".join(map(varint, shape))) if packed else b"".join(b"\x08" + varint(n) for n in shape)
    elements = b"" if raw is None else chunk(9, raw)
    return dims + number(2, code) + chunk(8, b"/model/fc.1/output_0") + elements + extra


def headers_of_proto(content: bytes) -> tuple[TensorHeader, ...]:
    return read_tensor_proto(lambda offset, nbytes: content[offset : offset + nbytes], len(content))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("extra", [b"", chunk(12, b"text"), number(14, 0)])
def test_elements_lie_in_the_file(packed: bool, extra: bytes) -> None:
    content = proto(packed=packed, extra=extra)
    (header,) = headers_of_proto(content)
    assert (header.shape, header.element.name, header.full_name) == (
        (2, 3),
        "float32",
        "/model/fc.1/output_0",
    )
    payload = content[header.offset : header.offset + header.nbytes]
    assert header.lead + payload + header.tail == content
    assert payload == PROTO_VALUES.tobytes()


@pytest.mark.parametrize(
    ("code", "name", "nbytes"),
    [(10, "float16", 12), (16, "bfloat16", 12), (9, "bool", 6), (22, "int4", 3), (17, "float8_e4m3fn", 6)],
)
def test_types(code: int, name: str, nbytes: int) -> None:
    (header,) = headers_of_proto(proto(code=code, raw=bytes(nbytes)))
    assert (header.element.name, header.nbytes) == (name, nbytes)


def test_message_that_is_cut_off_may_still_grow() -> None:
    content = proto()
    for nbytes in range(len(content)):
        with pytest.raises((Truncated, UnreadableTensor)) as raised:
            headers_of_proto(content[:nbytes])
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
        headers_of_proto(content)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for variant in (content, proto()[: len(content)] + content):
        try:
            headers = headers_of_proto(variant)
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
    (header,) = headers_of_proto(bytes.fromhex(written))
    expected = np.arange(math.prod(shape)).reshape(shape) % 2
    content = bytes.fromhex(written)[header.offset : header.offset + header.nbytes]
    values = np.frombuffer(content, header.element.to_numpy()).reshape(header.shape)
    assert (header.element.name, header.shape, header.full_name) == (dtype, shape, "fc/out:0")
    assert np.array_equal(values.astype(np.int64), expected)


# Fields of protobuf messages, walked over without parsing them.


def fields_of(content: bytes, *, limit: int = 1000, end: int | None = None) -> list[WireField]:
    walk = FieldWalk(lambda offset, nbytes: content[offset : offset + nbytes], limit=limit)
    return list(walk.fields(0, len(content) if end is None else end))


def delimited(number: int, value: bytes) -> bytes:
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(value)) + value


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")]
)
def test_varints_are_those_of_the_specification(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.binary(max_size=6000)), max_size=5))
def test_every_field_is_found_with_its_value(values: list[tuple[int, bytes]]) -> None:
    """Also values that are longer than what is read at a time."""
    content = b"".join(delimited(number, value) for number, value in values)
    found = [(field.number, content[field.value : field.end]) for field in fields_of(content)]
    assert found == values


def test_countless_fields_are_refused() -> None:
    """Two bytes can become an object of hundreds."""
    with pytest.raises(UnreadableTensor, match="more than 10 fields"):
        fields_of(varint(1 << 3) + b"\x01" + (varint(1 << 3) + b"\x01") * 10, limit=10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (varint(1 << 3 | 3), "no valid protobuf field at byte 0"),
        (varint(0) + b"\x01", "no valid protobuf field at byte 0"),
        (delimited(1, b"12345")[:-1], "extends to byte 7, beyond the end at 6"),
        (b"\x08" + b"\xff" * 20, "number of more than 10 bytes"),
        (b"\x08\x80", "ends inside a number"),
    ],
)
def test_damage_is_named(content: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        fields_of(content)


@given(st.binary(max_size=40))
def test_any_bytes_are_fields_or_refused(content: bytes) -> None:
    try:
        fields = fields_of(content)
    except UnreadableTensor:
        return
    assert [field.begin for field in fields] == [0, *(field.end for field in fields)][: len(fields)]
