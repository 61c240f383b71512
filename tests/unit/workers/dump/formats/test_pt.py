"""`.pt` files, pickles and zip archives are read as torch reads them, and nothing in them is run."""

import contextlib
import io
import json
import math
import struct
import sys
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.pt_files import (
    HOOKS,
    STORAGES,
    archive,
    array_of_numpy,
    call,
    integer,
    integers,
    members_of,
    named,
    pickled,
    pt_bytes,
    rebuilt,
    storage,
    text,
    tuple_of,
)
from tests.stores import DATA, DumpLibrary
from workers.arrays.arrangements import elements_of
from workers.arrays.statistics import summarise
from workers.dump.formats import header as header_module
from workers.dump.formats.header import MAX_ENVELOPE_NBYTES, HoldsNoTensor, ReadAt, TensorHeader, Truncated
from workers.dump.formats.pickle_machine import (
    Function,
    Global,
    Instance,
    Machine,
    OpaqueKey,
    Storage,
    describe_value,
)
from workers.dump.formats.pt import LEGACY_MAGIC, read_headers
from workers.dump.formats.pt_tree import FUNCTIONS, Composite, RebuiltTensor, Wrapper, contents
from workers.dump.formats.pt_tree import contents as contents_of_pickle
from workers.dump.formats.zip_archive import MAX_DIRECTORY_NBYTES, open_archive
from workers.errors import UnreadableTensor

# `.pt` files are read as torch reads them, and nothing in them is run or believed.


FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)
FILE = pt_bytes(FLOATS)
DTYPES = [np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in STORAGES]


def header_of(file: bytes) -> TensorHeader:
    def read(offset: int, nbytes: int) -> bytes:
        assert offset >= 0
        assert nbytes >= 0
        return file[offset : offset + nbytes]

    (header,) = read_headers(read, len(file))
    assert header.lead + payload_of(file, header) + header.tail == file
    return header


def headers_of(file: bytes) -> list[TensorHeader]:
    """Return the tensors of a file, whose parts add up to it."""
    headers = read_headers(lambda offset, nbytes: file[offset : offset + nbytes], len(file))
    parts = [header for header in headers if header.view is None]
    assert b"".join(part.lead + payload_of(file, part) + part.tail for part in parts) == file
    return [header for header in headers if not header.is_part]


def elements_of_header(file: bytes, header: TensorHeader) -> bytes:
    """Return the elements of a tensor in C order."""
    if header.view is not None:
        at = header.offset
        read = lambda start, nbytes: file[at + start : at + start + nbytes]  # noqa: E731
        return bytes(elements_of(read, header.view, header.shape, header.element))
    values = np.frombuffer(payload_of(file, header), header.element.to_numpy())
    shaped = values.reshape(header.shape, order="F" if header.fortran_order else "C")
    return np.ascontiguousarray(shaped).tobytes()


def payload_of(file: bytes, header: TensorHeader) -> bytes:
    return file[header.offset : header.offset + header.nbytes]


def values_of(file: bytes) -> np.ndarray[Any, Any]:
    header = header_of(file)
    values = np.frombuffer(payload_of(file, header), header.element.to_numpy())
    return values.reshape(header.shape, order="F" if header.fortran_order else "C")


def torch_files() -> dict[str, tuple[bytes, dict[str, Any]]]:
    """Return the files that torch wrote, and what it read back."""
    with tarfile.open(DATA / "pt" / "torch-2.15.0-cpu.tar.xz") as packed:
        content = {
            member.name.rpartition("/")[2]: found.read()
            for member in packed
            if (found := packed.extractfile(member)) is not None
        }
    expected = json.loads(content["expected.json"])
    return {name: (content[f"{name}.pt"], told) for name, told in expected.items()}


TORCH_FILES = torch_files()


@pytest.mark.parametrize("name", [name for name, (_, told) in TORCH_FILES.items() if "refused" not in told])
def test_what_torch_wrote_is_read_as_torch_reads_it(name: str) -> None:
    file, told = TORCH_FILES[name]
    values, header = values_of(file), header_of(file)
    assert list(values.shape) == told["shape"]
    assert np.ascontiguousarray(values).tobytes().hex() == told["c_order_bytes"]
    assert header.declared_dtype or header.element.name == told["dtype"].removeprefix("torch.")
    assert header.fortran_order == (name == "fortran")


#: What each file holds that is not a single contiguous tensor: the shapes of its tensors.
STRUCTURED = {
    "channels_last": [(2, 3, 4, 5)],
    "slice": [(3, 4)],
    "overlapping": [(3, 3)],
    "expanded": [(4, 3)],
    "dictionary": [(2, 3, 4)],
    "list": [(2, 3, 4), (2, 3, 4)],
    "tuple": [(2, 3, 4)],
    "conjugated": [(3,)],
    "negated": [(3,)],
    "with_attribute": [(2, 3, 4)],
    "sparse": [(3, 23), (23,)],
    "quantised": [(2, 3, 4)],
    "before_1.6": [(2, 3, 4)],
    "numpy": [(3,)],
}


@pytest.mark.parametrize("name", [name for name, (_, told) in TORCH_FILES.items() if "refused" in told])
def test_what_is_no_single_contiguous_tensor_is_read_in_its_parts(name: str) -> None:
    file, _ = TORCH_FILES[name]
    if name not in STRUCTURED:
        with pytest.raises(HoldsNoTensor) as found:
            headers_of(file)
        assert json.loads(found.value.record)["file"]
        return
    headers = headers_of(file)
    assert [header.shape for header in headers] == STRUCTURED[name]
    for header in headers:
        assert len(elements_of_header(file, header)) == header.nbytes


@pytest.mark.parametrize(
    "place",
    ["tensor-mix/step0/proc17836", "ddp-2-ranks/step0/rank0", "ddp-2-ranks/step0/rank1"],
)
def test_samples_have_the_values_that_msprobe_reported(place: str, dumps: DumpLibrary) -> None:
    """`dump.json` gives maximum, minimum, mean and norm of every tensor, as torch computed them."""
    directory = dumps["msprobe-26.2.0-pytorch-cpu"] / place
    dump = json.loads((directory / "dump.json").read_text())
    compared = 0
    for told in tensors_in(dump["data"]):
        values = values_of((directory / "dump_tensor_data" / told["data_name"]).read_bytes())
        found = summarise(values.reshape(-1))
        assert list(values.shape) == told["shape"]
        # Of torch both are NaN where any element is.
        assert [float(values.max()), float(values.min())] == pytest.approx(
            [float(told["Max"]), float(told["Min"])], rel=0, abs=0, nan_ok=True
        )
        if told["Mean"] is not None and math.isfinite(told["Mean"]):
            scale = max(abs(found.max), abs(found.min))
            precision = 2**-8 if values.dtype == ml_dtypes.bfloat16 else 2**-20
            assert math.isclose(told["Mean"], found.mean, abs_tol=scale * precision)
            assert math.isclose(abs(told["Norm"]), found.l2_norm, rel_tol=precision)
        compared += 1
    assert compared == len(list((directory / "dump_tensor_data").iterdir()))


def tensors_in(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        found = [value] if "data_name" in value else []
        return found + [tensor for below in value.values() for tensor in tensors_in(below)]
    return [tensor for below in value for tensor in tensors_in(below)] if isinstance(value, list) else []


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Return arrays of any type, of any bytes."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    nbytes = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=nbytes, max_size=nbytes))
    return np.frombuffer(bytes(n & 1 for n in data) if dtype.kind == "b" else data, dtype).reshape(shape)


@given(values=arrays(), fortran=st.booleans(), order=st.sampled_from(["little", "big"]))
def test_any_array_reads_back_equal(values: np.ndarray[Any, Any], fortran: bool, order: str) -> None:
    values = np.asfortranarray(values) if fortran and values.ndim else values
    if values.dtype == ml_dtypes.bfloat16:
        order = "little"  # numpy cannot turn its bytes around
    file = pt_bytes(values, order=order)
    found = values_of(file)
    assert found.shape == values.shape
    assert found.astype(values.dtype.newbyteorder("=")).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("torch.uint16", "uint16"),
        ("torch.float8_e4m3fn", "float8_e4m3fn"),
        ("torch.float8_e5m2", "float8_e5m2"),
        ("torch.complex32", "complex32"),
    ],
)
def test_types_without_a_storage_class_are_known_by_name(name: str, element: str) -> None:
    nbytes = {"uint16": 12, "complex32": 24}.get(element, 6)
    value = rebuilt(
        "torch.storage.UntypedStorage",
        (2, 3),
        (3, 1),
        named(name),
        elements=nbytes,
        function="torch._utils._rebuild_tensor_v3",
    )
    header = header_of(archive(members_of(value, bytes(nbytes))))
    assert (header.element.name, header.shape, header.declared_dtype) == (element, (2, 3), "")


def test_tensor_of_an_accelerator_is_read_in_host_layout() -> None:
    """torch_npu saves a copy from the host, and the number of the format that it had on the device."""
    device_format = call("torch_npu.npu._format.Format", integer(2))
    for last in (integer(2), device_format, b"\x88"):
        value = rebuilt(
            "torch.FloatStorage",
            (2, 3),
            (3, 1),
            last,
            function="torch_npu.utils.storage._rebuild_npu_tensor",
        )
        assert (values_of(archive(members_of(value, FLOATS.tobytes()))) == FLOATS).all()


def test_zip_with_64_bit_figures_is_read() -> None:
    """Those of more than 4 GiB have their true figures in records of their own."""
    header = header_of(FILE)
    end = len(FILE) - 22
    count, nbytes, offset = struct.unpack("<HII", FILE[end + 10 : end + 20])
    wide = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, nbytes, offset)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    short = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    directory = widened(FILE[offset:end])
    wide = wide[:40] + struct.pack("<QQ", len(directory), offset)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, offset + len(directory), 1)
    file = FILE[:offset] + directory + wide + locator + short
    assert header_of(file).offset == header.offset
    assert (values_of(file) == FLOATS).all()


def widened(directory: bytes) -> bytes:
    """Return a zip directory with all figures moved to a zip64 field."""
    made, at = b"", 0
    while at < len(directory):
        fixed = bytearray(directory[at : at + 46])
        stored, nbytes, name_n = struct.unpack("<IIH", fixed[20:30])
        (offset,) = struct.unpack("<I", fixed[42:46])
        extra = struct.pack("<2H3Q", 1, 24, nbytes, stored, offset)
        fixed[20:28], fixed[42:46] = b"\xff" * 8, b"\xff" * 4
        fixed[30:32] = struct.pack("<H", len(extra))
        made += bytes(fixed) + directory[at + 46 : at + 46 + name_n] + extra
        at += 46 + name_n
    return made


def test_short_file_may_still_grow() -> None:
    """`Truncated` keeps a step open; a plain `UnreadableTensor` would quarantine a file in the making."""
    for length in range(len(FILE)):
        with pytest.raises(Truncated):
            header_of(FILE[:length])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (rebuilt("torch.FloatStorage", (2, 4), (4, 1)), "has 24 bytes, but its pickle announces 32"),
        (rebuilt("torch.FloatStorage", (6,), (1,), offset=1, elements=6), "view of more than its storage"),
        (rebuilt("torch.FloatStorage", (6,), (-1,)), "view of more than its storage"),
        (rebuilt("torch.FloatStorage", (2, -3), (3, 1), elements=6), "impossible shape"),
        (
            rebuilt("torch.FloatStorage", (0, 2**61), (1, 1), elements=6),
            "more bytes than there are addresses",
        ),
        (rebuilt("torch.FloatStorage", (6,), (1, 1)), "impossible shape"),
        (array_of_numpy((1,) * 65), "impossible shape"),
        (array_of_numpy((2**180,) * 20_000), "impossible shape"),
        (rebuilt("torch.FloatStorage", (1,) * 65, (1,) * 65, elements=6), "impossible shape"),
        (
            rebuilt("torch.FloatStorage", (6,), (1,), b"}" + text("new") + b"\x89s"),
            "not as they are stored: new",
        ),
        (call("os.system", text("true")), "calls os.system"),
        (call("builtins.eval", text("1")), "calls builtins.eval"),
        (b"]", "holds values, and no tensor"),
        (storage("torch.FloatStorage", 6), "holds values, and no tensor"),
        (b"R", "empty stack"),
        (b"t", "lacks a mark"),
        (b"h\x07", "lacks the value 7"),
        (named("a." + "b" * 300), "a name of 300 characters"),
        (b"X\xff\xff\xff\x7f", "middle of an instruction"),
        (call("torch._utils._rebuild_tensor_v2", integer(1)), "with 1 argument"),
        (text("a") + b"Q", "refers to a value of type str"),
        (text("a") + text("b") + text("c") + b"s", "sets items of a value of type str"),
        (b"]" * 70 + b"a" * 69, "nested more than 64 deep"),
        (rebuilt("torch.FloatStorage", (2**24,), (0,), elements=6) * 4 + b"\x85\x86\x86\x86", "would take"),
    ],
)
def test_pickle_of_anything_else_says_what_it_is(value: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        header_of(archive(members_of(value, FLOATS.tobytes())))


def test_tensors_of_one_storage_share_its_bytes() -> None:
    whole = rebuilt("torch.FloatStorage", (2, 3), (3, 1))
    second = rebuilt("torch.FloatStorage", (3,), (1,), offset=3, elements=6)
    value = b"}(" + text("a") + second + text("b") + whole + b"u"
    file = archive(members_of(value, FLOATS.tobytes()))
    payload, view = headers_of(file)
    assert (payload.path, view.path) == (("b",), ("a",))
    assert (payload.number, view.number) == (1, 0)
    assert view.view is not None
    assert (view.view.base, view.offset) == (payload.offset, payload.offset + 12)
    assert elements_of_header(file, view) == FLOATS[1].tobytes()


def test_a_long_envelope_is_a_part_of_its_own() -> None:
    members = members_of(rebuilt("torch.FloatStorage", (2, 3), (3, 1)), FLOATS.tobytes())
    for file in (
        archive({"extra": bytes(MAX_ENVELOPE_NBYTES), **members}),
        archive({**members, "extra": bytes(MAX_ENVELOPE_NBYTES)}),
    ):
        (header,) = headers_of(file)
        assert len(header.lead) + len(header.tail) < MAX_ENVELOPE_NBYTES
        assert payload_of(file, header) == FLOATS.tobytes()


def test_small_pickle_takes_little_memory_and_time() -> None:
    """Texts and tuples that are used again and again could make gigabytes of a few kilobytes."""
    long = text("x" * 30_000) + b"q\x00"
    names = b"h\x00h\x00\x930" * 6000
    doubled = b")q\x00" + b"h\x00h\x00\x86q\x00" * 5000
    many = b"(" + b"K\x01" * 10_000 + b"tq\x01"
    rebuild = tuple_of(storage("torch.FloatStorage", 6), b"K\x00", b"h\x01", b"h\x01", b"\x89", b")")
    repeated = many + named("torch._utils._rebuild_tensor_v2") + b"q\x02" + (b"h\x02" + rebuild + b"R") * 300
    for code in (long + names, doubled, repeated):
        tracemalloc.start()
        with contextlib.suppress(UnreadableTensor):
            contents(Machine(pickled(code), FUNCTIONS).run(), len(code))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()


def test_other_files_are_told_apart() -> None:
    with pytest.raises(UnreadableTensor, match=r"begins with b'\\x93NUM'"):
        header_of(b"\x93NUMPY" + bytes(200))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("a/b", b"c")
    with pytest.raises(UnreadableTensor, match=r"a zip of 1 members, 0 of them data\.pkl"):
        header_of(file.getvalue())


def decode(file: bytes) -> None:
    """Read a file that may be anything: only this error is allowed."""
    with contextlib.suppress(UnreadableTensor):
        header_of(file)


def unpickle(code: bytes) -> None:
    """Interpret a pickle that may be anything."""
    with contextlib.suppress(UnreadableTensor):
        contents(Machine(code, FUNCTIONS).run(), len(code))


@given(
    st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(FILE)),
)
@example([(0, 0)], len(FILE))
def test_damaged_file_is_refused_or_read(changes: list[tuple[int, int]], length: int) -> None:
    file = bytearray(FILE)
    for at, byte in changes:
        file[at] = byte
    decode(bytes(file))
    decode(bytes(file[:length]))


@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    bytes([code])
                    for code in b".(NJKMXt)}suqrhjcQR\x80\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\x95"
                ),
                integers((2, 3)),
                text("storage"),
                text("conj"),
                HOOKS,
                storage("torch.FloatStorage", 6),
                named("torch._utils._rebuild_tensor_v2"),
                named("torch.float8_e5m2"),
                b"q\x00",
                b"h\x00",
            ]
        ),
        max_size=60,
    )
)
def test_random_instructions_are_refused_or_make_a_tensor(codes: list[bytes]) -> None:
    unpickle(pickled(b"".join(codes)))


MACHINE = b"}" + text("little_endian") + b"\x88s"
LEGACY_PAYLOAD = (6).to_bytes(8, "little") + FLOATS.tobytes()


def legacy(
    *,
    protocol: int = 1001,
    machine: bytes = MACHINE,
    keys: bytes = b"]" + text("0") + b"a",
    payload: bytes = LEGACY_PAYLOAD,
) -> bytes:
    """Return a file as torch wrote it before 1.6: five pickles, and the storages behind them."""
    value = rebuilt("torch.FloatStorage", (2, 3), (3, 1))
    pickles = map(pickled, (integer(protocol), machine, value, keys))
    return LEGACY_MAGIC + b" j\xa8P\x19." + b"".join(pickles) + payload


def test_file_of_torch_before_1_6_is_read_in_the_order_of_its_machine() -> None:
    assert (values_of(legacy()) == FLOATS).all()
    assert header_of(legacy(machine=MACHINE.replace(b"\x88", b"\x89"))).element.to_numpy().str == ">f4"
    with pytest.raises(Truncated, match="its storage 0 ends at"):
        header_of(legacy()[:-1])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (legacy(protocol=1002), "not in a format of torch.save that is known"),
        (legacy(machine=integer(1)), "not in a format of torch.save that is known"),
        (legacy(keys=integer(1)), "its list of storages is damaged"),
        (legacy(keys=b"]" + integer(1) + b"a"), "its list of storages is damaged"),
        (legacy(keys=b"]" + text("9") + b"a"), "its storage 9 is not the one of a tensor"),
        (legacy(keys=b"](" + text("0") * 2 + b"e", payload=bytes(16)), "its storage 0 is not the one"),
        (legacy(keys=b"]", payload=b""), "its storage 0 is not in the file"),
    ],
)
def test_damage_to_a_file_of_torch_before_1_6_is_named(file: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        header_of(file)


@pytest.mark.parametrize(
    ("storage", "element", "declared"),
    [
        ("torch.BFloat16Storage", "|V2", "big-endian torch.bfloat16"),
        ("torch.ByteStorage", "uint8", ""),
        ("torch.QInt32Storage", "int32", "torch.qint32"),
        ("torch.QUInt8Storage", "uint8", "torch.quint8"),
    ],
)
def test_big_endian_and_quantised_elements_say_what_they_are(
    storage: str, element: str, declared: str
) -> None:
    itemsize = {"|V2": 2, "uint8": 1}.get(element, 4)
    members = members_of(rebuilt(storage, (6,), (1,)), bytes(6 * itemsize), order="big")
    header = header_of(archive(members))
    assert (header.element.name, header.declared_dtype) == (element, declared)


@pytest.mark.parametrize(
    ("storage", "name"),
    [("torch.QUInt4x2Storage", "torch.quint4x2"), ("torch.FutureStorage", "torch.future")],
)
def test_elements_of_a_type_that_is_not_known_are_kept_as_the_bytes_of_their_storage(
    storage: str, name: str
) -> None:
    """And so are the tensors next to it."""
    value = b"}(" + text("a") + rebuilt(storage, (4, 12), (12, 1), elements=24) + text("big")
    file = archive(members_of(value + b"\x8a\xff" + bytes(255) + b"u", FLOATS.tobytes()))
    header = header_of(file)
    assert (header.shape, header.element.name, header.declared_dtype) == ((24,), "|V1", name)
    assert file[header.offset : header.offset + 24] == FLOATS.tobytes()
    record = json.loads(header.record)
    assert record["tensor"] == {"shape": [4, 12], "strides": [12, 1], "storage_offset": 0}
    assert record["file"] == {"big": "an integer of 255 bytes"}


def test_tensor_of_any_size_is_a_row_if_its_elements_lie_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what must be picked out of its storage is bounded."""
    monkeypatch.setattr(header_module, "MAX_VIEW_NBYTES", 8)
    whole = rebuilt("torch.FloatStorage", (2, 3), (3, 1))
    column = rebuilt("torch.FloatStorage", (2,), (3,), elements=6)
    value = b"}(" + text("whole") + whole + text("column") + column + b"u"
    (header,) = headers_of(archive(members_of(value, FLOATS.tobytes())))
    assert (header.shape, header.path) == ((2, 3), ("whole",))
    assert json.loads(header.record)["file"] == {"not_taken_out": ["column"]}


# The tensor that a pickle of torch describes.


def pickled_tensor(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."


def test_subclass_of_a_subclass_is_not_followed_without_end() -> None:
    function = "torch._tensor._rebuild_from_type_v2"
    arguments = tuple_of(integer(0))
    for _ in range(2000):
        arguments = tuple_of(named(function), named("m.C"), arguments, b"N")
    found = Machine(pickled_tensor(named(function) + arguments + b"R"), FUNCTIONS).run()
    assert (found.name, found.is_call) == (function, True)


def test_values_are_not_copied_each_time_they_are_collected() -> None:
    values = b"(" + b"N" * 1000 + b"lq\x00"
    again = named("builtins.set") + b"h\x00\x85R"
    first, *others = Machine(pickled_tensor(tuple_of(values, again, again)), FUNCTIONS).run()
    assert all(other is first for other in others)


def test_attributes_of_a_subclass_are_not_copied_for_each_tensor() -> None:
    state = b"}" + text("a") + b"Nsq\x00"
    arguments = (named("torch._utils._rebuild_wrapper_subclass"), named("m.C"), b")", b"h\x00")
    again = call("torch._tensor._rebuild_from_type_v2", *arguments)
    first, one, other = Machine(pickled_tensor(tuple_of(state, again, again)), FUNCTIONS).run()
    assert one.state is other.state is first
    assert one.unwrapped() == Composite("m.C", {}, {"a": None})


# Tensors in nested values have the way to them as their name; everything else becomes JSON.


A, B = (RebuiltTensor("torch.FloatStorage", key, 6, 0, (2, 3), (3, 1)) for key in "01")


def contents_of(value: Any) -> tuple[Any, Any, Any]:
    return contents_of_pickle(value, pickle_nbytes=100)


def paths(value: Any) -> list[tuple[str, ...]]:
    return [found.path for found in contents_of(value)[0]]


def test_tensors_under_keys_that_are_objects_are_told_apart() -> None:
    """As those of an optimizer that was saved as an object: its keys are the parameters."""
    keys = [OpaqueKey(Instance("m.Color", (1,))), OpaqueKey(B), OpaqueKey((B,))]
    assert paths({key: {"exp_avg": A} for key in keys}) == [
        ("m.Color 0", "exp_avg"),
        ("tensor 1", "exp_avg"),
        ("a tuple of 1 2", "exp_avg"),
    ]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (2**63, str(2**63)),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (b"abc", "3 bytes"),
        ("x" * 5000, f"{'x' * 4096}... (5000 characters)"),
        (Global("torch.float32"), "torch.float32"),
        (Storage("torch.FloatStorage", "0", 6), "torch.FloatStorage 0 of 6 elements"),
        (1j, "a value of type complex"),
    ],
)
def test_values_are_plain_and_ready_for_json(value: Any, plain: Any) -> None:
    assert contents_of({"v": value})[1] == {"v": plain}
    json.dumps(contents_of({"v": value})[1], allow_nan=False)


def test_members_of_a_module_have_the_names_that_users_know() -> None:
    state = {"_parameters": {"weight": A}, "_buffers": {}, "_modules": {}, "_hooks": 1, "training": True}
    module = Instance("torch.nn.Linear", (), state=state)
    _, attributes, foreign = contents_of({"layer": module})
    assert paths({"layer": module}) == [("layer", "weight")]
    assert attributes == {"layer": {"class": "torch.nn.Linear", "training": True}}
    assert not foreign


def test_value_that_holds_itself_ends_there() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert contents_of({"a": loop, "b": loop[:1]})[1] == {"a": [1, "what holds this"], "b": [1]}
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep]
    with pytest.raises(UnreadableTensor, match="nested more than 64 deep"):
        contents_of(deep)


def nested(value: Any, references: int, levels: int) -> Any:
    """Return a value that a pickle of a few bytes refers to as often as it likes."""
    for _ in range(levels):
        value = [value] * references
    return value


@pytest.mark.parametrize(
    "value",
    [
        nested(A, 30, 3),
        nested("x" * 4096, 100, 1),
        [{"x" * 10**6: 1}],
        nested({"x" * 5000: A}, 100, 1),
        [Composite("c", {"a": nested(A, 1000, 1)}, {str(n): n for n in range(100)})],
    ],
)
def test_same_values_cannot_be_referred_to_too_often(value: Any) -> None:
    with pytest.raises(UnreadableTensor, match="the same ones too often"):
        contents_of(value)
    # A pickle that is long enough for that many values may hold them.
    contents_of_pickle(value, pickle_nbytes=10**6)


def test_tensors_in_tensors_end_somewhere() -> None:
    """Each level has the level below twice, as its attributes."""
    composite = Composite("c", {})
    for _ in range(40):
        composite = Composite("c", {}, {"a": composite, "b": composite})
    with pytest.raises(UnreadableTensor, match="the same ones too often"):
        contents_of(composite)
    for _ in range(3000):
        composite = Composite("c", {}, {"a": composite})
    with pytest.raises(UnreadableTensor, match="nested more than 64 deep"):
        contents_of(composite)


def test_tensors_in_a_list_of_a_subclass_are_not_lost() -> None:
    value = Wrapper("m.Packed", {"_scale": A, "_parts": [A, B], "_bits": 4})
    tensors, *_ = contents_of({"w": value})
    assert [member.path for member in tensors] == [("w",), ("w", "_parts", "0"), ("w", "_parts", "1")]
    assert [member.attributes for member in tensors] == [{"kind": "m.Packed", "_bits": 4}] * 3


# A pickle is interpreted and never executed, whatever it asks for.


MODULE = "workers.dump.formats.pickle_machine"


def run(code: bytes, functions: dict[str, Function] | None = None) -> Any:
    return Machine(code, functions or {}).run()


def test_key_that_would_take_for_ever_to_hash_is_never_hashed() -> None:
    doubled = b")q\x00" + b"h\x00h\x00\x86q\x00" * 200
    ((key, value),) = run(doubled + b"0}h\x00Ns.").items()
    assert (describe_value(key.value), value) == ("a tuple of 2", None)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"", "ends in the middle of an instruction, at byte 0"),
        (b".", "needs a value from an empty stack"),
        (b"t.", "lacks a mark"),
        (b"h\x07.", "lacks the value 7"),
        (b"K\x01K\x02a.", "appends to a value of type int"),
        (b"\xff.", "instruction 0xff at byte 0"),
        (b"c" + b"m" * 300 + b"\nf\n.", "a name of 300 characters"),
    ],
)
def test_damage_and_foreign_values_are_named(code: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        run(code)


def test_instructions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may make a value: 32 MiB of them took 2.3 GB."""
    monkeypatch.setattr(f"{MODULE}._MAX_INSTRUCTIONS", 100)
    assert len(run(b"(" + b"]" * 97 + b"t.")) == 97
    with pytest.raises(UnreadableTensor, match="more than 100 instructions"):
        run(b"(" + b"]" * 98 + b"t.")


def test_integers_of_the_same_hash_are_not_compared() -> None:
    """A dictionary compares each of them with all others: those of 30 MB took hours."""
    keys = [n * sys.hash_info.modulus for n in range(1, 50_001)]
    items = b"".join(b"\x8a\x0c" + key.to_bytes(12, "little") + b"N" for key in keys)
    begun = time.process_time()
    found = run(b"}(" + items + b"u.")
    assert [key.value for key in found] == keys
    assert time.process_time() - begun < 1


# Members of zip archives are where `zipfile` has written them, and damage is named.


CONTENTS = {"a/data.pkl": b"pickle", "a/data/0": b"x" * 100, "ä": b""}


def made(compression: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as writer:
        for name, content in CONTENTS.items():
            writer.writestr(name, content)
        writer.comment = comment
    return file.getvalue()


def reader(file: bytes) -> ReadAt:
    return lambda offset, nbytes: file[offset : offset + nbytes]


@pytest.mark.parametrize("comment", [b"", b"a comment", b"PK\x05\x06 in a comment"])
def test_stored_members_are_placed_without_reading_them(comment: bytes) -> None:
    file = made(comment=comment)
    archive = open_archive(reader(file), len(file))
    assert list(archive.members) == list(CONTENTS)
    for name, member in archive.members.items():
        offset, nbytes = archive.place(reader(file), member)
        assert file[offset : offset + nbytes] == CONTENTS[name]
        assert member.crc == zlib.crc32(CONTENTS[name])


@pytest.mark.parametrize("cut", [1, 10, 21])
def test_file_that_ends_early_may_still_grow(cut: int) -> None:
    file = made()[:-cut]
    with pytest.raises(Truncated, match="no end record of a zip"):
        open_archive(reader(file), len(file))


def _with(file: bytes, at: int, figure: bytes) -> bytes:
    return file[:at] + figure + file[at + len(figure) :]


def test_damage_is_named() -> None:
    file = made()
    end, directory = len(file) - 22, file.index(b"PK\x01\x02")
    second = file.index(b"PK\x01\x02", directory + 1)
    huge = struct.pack("<I", MAX_DIRECTORY_NBYTES + 1)
    for damaged, message in (
        (_with(file, end + 12, huge), "does not fit before"),
        (_with(file, directory, b"XX"), "directory is damaged at byte 0"),
        (_with(file, second, b"XX"), "directory is damaged at byte"),
        (_with(file, end + 12, struct.pack("<I", second - directory + 3)), "in the middle of an entry"),
        (_with(file, end + 10, b"\xff\xff"), "lacks the zip64 record"),
        (_with(file, directory + 20, b"\xff\xff\xff\xff"), "lacks a 64-bit figure"),
    ):
        with pytest.raises(UnreadableTensor, match=message):
            open_archive(reader(damaged), len(damaged))


def test_two_members_of_one_name_are_refused() -> None:
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as writer:
        writer.writestr("x", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            writer.writestr("x", b"2")
    with pytest.raises(UnreadableTensor, match="two members named x"):
        open_archive(reader(twice.getvalue()), len(twice.getvalue()))
