"""msProbe's trees, names, JSON and native dumps."""

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.base import Description, Place, TensorFile
from ingest.layouts.msprobe import (
    MSPROBE,
    MSPROBE_NATIVE,
    NotMsProbe,
    parse_native_name,
    parse_tensor_name,
    read_tensors,
)
from tests.stores import DumpLibrary
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import summarise
from workers.dump.formats import npy
from workers.dump.formats.header import Container
from workers.dump.formats.pt import read_headers
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile
from workers.tasks.publish import disagreements

# msProbe's trees: what a file is comes from `dump.json`, and from its name where that is silent.


TREES = (
    "msprobe-26.2.0-mindspore-cpu",
    "msprobe-26.2.0-pytorch-cpu/crc",
    "msprobe-26.2.0-pytorch-cpu/ddp-2-ranks",
    "msprobe-26.2.0-pytorch-cpu/statistics",
    "msprobe-26.2.0-pytorch-cpu/tensor-mix",
)
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3]}


def describe(files: Mapping[str, bytes], fields: Mapping[str, str] | None = None) -> Description:
    """Describe a place `p` that has these files, by their names in it."""
    content = {f"p/{name}": data for name, data in files.items()}
    listed = [SourceFile(path, len(data), 0) for path, data in sorted(content.items())]
    return MSPROBE.describe(Place(MSPROBE, "p", fields or {}), listed, content.get)


def dump_json(data: Mapping[str, Any]) -> bytes:
    return json.dumps({"task": "tensor", "level": "mix", "framework": "pytorch", "data": data}).encode()


def tree_of(name: str, dumps: DumpLibrary) -> Path:
    """Return the directory of one of `TREES`."""
    archive, _, below = name.partition("/")
    return dumps[archive] / below


def places_of(root: Path) -> list[tuple[Path, Description]]:
    """Describe every process and step of a tree."""
    found = []
    for directory in sorted(path.parent for path in root.rglob("dump.json")):
        files = [
            SourceFile(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        ]
        place = Place(MSPROBE, str(directory.relative_to(root)), {})
        found.append((directory, MSPROBE.describe(place, files, lambda path: (root / path).read_bytes())))
    assert found
    return found


def key_of(name: TensorName) -> tuple[str, str, str, int]:
    return name.graph, name.op_name, name.io, name.slot


@pytest.mark.parametrize("tree", TREES)
def test_samples_are_understood_to_the_last_file(tree: str, dumps: DumpLibrary) -> None:
    root = tree_of(tree, dumps)
    for directory, description in places_of(root):
        assert (description.problems, description.unfinished) == ([], "")
        tensors = {str(path.relative_to(root)) for path in directory.rglob("dump_tensor_data/*")}
        assert description.named.keys() == tensors
        assert {told.tensor for told in description.reported if told.tensor} == tensors


@pytest.mark.parametrize("tree", TREES)
def test_name_of_a_file_says_the_same_as_dump_json(tree: str, dumps: DumpLibrary) -> None:
    """So that a file has the same name before and after its entry is written."""
    for _, description in places_of(tree_of(tree, dumps)):
        for path, named in description.named.items():
            assert named.name is not None
            stem = path.rpartition("/")[2].removesuffix(f".{named.container}")
            assert parse_tensor_name(stem) == named.name._replace(sequence=-1, declared_dtype="")
            assert f"{named.name.op_name}.{named.name.io}" in stem or "grad" in stem


@pytest.mark.parametrize("tree", TREES)
def test_reported_statistics_of_samples_agree_with_their_tensors(tree: str, dumps: DumpLibrary) -> None:
    root = tree_of(tree, dumps)
    for _, description in places_of(root):
        for told in description.reported:
            if told.tensor:
                values = load(root / told.tensor)
                assert values.shape == told.shape
                computed = summarise(values.reshape(-1))
                assert disagreements(told, computed, values.dtype.name) == []


def load(path: Path) -> np.ndarray[Any, Any]:
    if path.suffix == ".npy":
        return np.asarray(np.load(path))
    data = path.read_bytes()
    (header,) = read_headers(lambda offset, nbytes: data[offset : offset + nbytes], len(data))
    return np.frombuffer(data, header.element.to_numpy(), header.size, header.offset).reshape(header.shape)


def test_checksum_is_the_crc_of_the_elements(dumps: DumpLibrary) -> None:
    """Two runs of one program, from one seed: one dumped tensors, the other their checksums.

    msProbe computes them in other threads, so of a tensor that is changed in place it may be that of a moment
    later: that of the input `Tensor.add_.7` in this sample is that of the output.
    """
    root = dumps["msprobe-26.2.0-pytorch-cpu"] / "tensor-mix"
    ((_, tensors),) = places_of(root)
    ((_, sums),) = places_of(root.parent / "crc")
    checksums = {key_of(told.name): told.checksum for told in sums.reported}
    for told in tensors.reported:
        if told.name.op_type == "Tensor.add_" and told.name.io == "input":
            continue
        payload = load(root / told.tensor).tobytes()
        assert checksums[key_of(told.name)] == f"crc32:{zlib.crc32(payload):08x}"


FILE = "dump_tensor_data/Functional.f.0.forward.output.0.pt"
ENTRY = {**TENSOR, "data_name": "Functional.f.0.forward.output.0.pt"}
LISTED = dump_json({"Functional.f.0.forward": {"output": [ENTRY]}})


def test_file_without_an_entry_keeps_the_step_open_and_its_own_name() -> None:
    other = "dump_tensor_data/Functional.f.0.forward.input.0.npy"
    found = describe({"dump.json": LISTED, FILE: b"", other: b""})
    assert found.unfinished == "p/dump.json"
    name = found.named[f"p/{other}"].name
    assert name is not None
    assert (name.io, name.slot, name.sequence) == ("input", 0, -1)
    assert "has no entry for 1 tensor files" in str(found.problems[0])


def test_json_as_it_is_created_keeps_a_step_with_tensors_open() -> None:
    assert describe({"dump.json": dump_json({}), FILE: b""}).unfinished == "p/dump.json"


def test_json_as_it_is_created_is_all_that_a_process_without_tensors_writes() -> None:
    found = describe({"dump.json": dump_json({}), "stack.json": b"{}", "construct.json": b"{}"})
    assert (found.unfinished, found.problems, found.named) == ("", [], {})


@pytest.mark.parametrize("length", [0, 1, 40, len(LISTED) - 1])
def test_json_in_the_middle_of_being_rewritten_keeps_the_step_open(length: int) -> None:
    found = describe({"dump.json": LISTED[:length], FILE: b""})
    assert found.unfinished == "p/dump.json"
    assert "is not JSON" in str(found.problems[0])
    assert [named.name is not None for named in found.named.values()] == [True]


def test_path_in_an_entry_leads_nowhere_else() -> None:
    data = dump_json({"F.f.0.forward": {"output": [{**TENSOR, "data_name": "../../q/x.pt"}]}})
    files = [SourceFile("p/dump.json", 1, 0), SourceFile("q/x.pt", 1, 0)]
    found = MSPROBE.describe(Place(MSPROBE, "p", {}), files, lambda _: data)
    assert found.reported[0].tensor == ""
    assert "q/x.pt" not in {path for path in found.named if not path.startswith("q/")}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("step0/rank3", {"step": "0", "rank": "3"}),
        ("step12/proc5683", {"step": "12", "pid": "5683"}),
        ("step1/pid77", {"step": "1", "pid": "77"}),
        ("step1/rank", {"step": "1"}),
        ("pynative/step0/rank0", {"mode": "pynative", "step": "0", "rank": "0"}),
        ("graph/step0/proc9", {"mode": "graph", "step": "0", "pid": "9"}),
    ],
)
def test_directories_are_recognised(path: str, fields: dict[str, str]) -> None:
    assert matched(path) == [fields]


def matched(path: str) -> list[dict[str, str]]:
    """Return the fields of each pattern that fits a path to its end."""
    matches = [pattern.match_path(path) for pattern in MSPROBE.patterns]
    return [fields for fields in matches if fields is not None]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    describe({"dump.json": data, FILE: b""})
    describe({"dump.json": LISTED[: len(data) * 5] + data, FILE: b""})


# Names that msProbe gives to files of tensors.


@pytest.mark.parametrize(
    ("stem", "op_type", "io", "slot"),
    [
        ("Functional.conv2d.0.forward|.input.1", "Functional.conv2d", "input", 1),
        ("Torch.cat.3.forward|.input.0.1", "Torch.cat", "input.0", 1),
        ("Torch.npu.swiglu.0.forward|.output.0", "Torch.npu.swiglu", "output", 0),
        ("VF.lstm.0.backward|.kwargs.bias", "VF.lstm", "kwargs.bias", -1),
        ("VF.lstm.0.forward|.kwargs.hx.1", "VF.lstm", "kwargs.hx", 1),
        ("Primitive.conv2d.Conv2D.0.forward|.input.0", "Primitive.Conv2D", "input", 0),
        ("Module.layers.1.Linear.forward.0|.output.0", "Module.Linear", "output", 0),
        ("Module.0.fc.Linear.backward.12|.input.0", "Module.Linear", "input", 0),
        ("Cell.fc.Dense.forward.0|.parameters.weight", "Cell.Dense", "parameters.weight", -1),
        ("Cell.fc.Dense.parameters_grad.0|.bias", "Cell.Dense", "parameters_grad.bias", -1),
        ("Module.fc.Linear.parameters_grad|.weight", "Module.Linear", "parameters_grad.weight", -1),
        ("my.name.0.debug|", "debug", "debug", -1),
        ("x_grad.2.debug|.1.0", "debug", "debug.1", 0),
        ("Aten.add.Tensor.4|.input_kwargs.alpha", "Aten.add.Tensor", "kwargs.alpha", -1),
        ("Aten.add.Tensor.4|.output", "Aten.add.Tensor", "output", -1),
        ("Cell.net.Net.forward.0|.input.0_float32_17", "Cell.Net", "input", 0),
    ],
)
def test_names_of_files_are_parsed(stem: str, op_type: str, io: str, slot: int) -> None:
    name = parse_tensor_name(stem.replace("|", ""))
    assert name is not None
    assert (name.op_type, name.op_name, name.io, name.slot) == (op_type, stem.partition("|")[0], io, slot)


def test_running_number_of_tensordump_is_the_order_and_names_the_type() -> None:
    name = parse_tensor_name("Cell.net.Net.forward.0.output.1_bfloat16_17")
    assert name is not None
    assert (name.sequence, name.declared_dtype) == (17, "bfloat16")


@given(
    st.text(max_size=40)
    | st.from_regex(r"[a-z]{1,3}(\.([a-z]{1,2}|\d{1,25}|forward|input|debug)){1,8}", fullmatch=True)
)
def test_any_name_is_parsed_or_not(stem: str) -> None:
    parse_tensor_name(stem)


# What msProbe records about tensors in JSON, by our names and definitions.

STATISTICS = {"Max": 3.5, "Min": -1.0, "Mean": 0.25, "Norm": 4.0}


def told(entry: Any, key: str = "Functional.f.0.forward") -> list[ReportedStatistics]:
    return read_tensors("dump.json", dump_json({key: entry}))[0]


def one(tensor: Mapping[str, Any]) -> ReportedStatistics:
    (found,) = told({"output": [{**TENSOR, **tensor}]})
    return found


def test_way_to_a_tensor_through_lists_and_dictionaries_is_its_name() -> None:
    tensor = dict(TENSOR)
    entry = {
        "input_args": [None, tensor, [{"type": "int", "value": 1}, [tensor, {"k": tensor}]]],
        "input_kwargs": {"w": tensor, "dtype": {"type": "torch.dtype", "value": "x"}, "shape": [2]},
        "output": [tensor],
        "parameters": {"bias": tensor},
    }
    assert [(parsed.name.io, parsed.name.slot) for parsed in told(entry)] == [
        ("input", 1),
        ("input.2.1", 0),
        ("input.2.1.1.k", -1),
        ("kwargs.w", -1),
        ("output", 0),
        ("parameters.bias", -1),
    ]


@pytest.mark.parametrize(("key", "name"), [("k" * 10_000, "a"), ("f", "a" * 10_000)])
def test_names_that_fill_memory_are_refused(key: str, name: str) -> None:
    with pytest.raises(NotMsProbe, match="names that are many times as long as the file"):
        told({"output": {name: [TENSOR] * 1000}}, f"{key}.0.forward")


def test_gradients_of_parameters_and_saved_values_have_forms_of_their_own() -> None:
    tensor = dict(TENSOR)
    (gradient,) = told({"weight": [tensor]}, "Module.fc.Linear.parameters_grad.0")
    assert (gradient.name.io, gradient.name.slot) == ("parameters_grad.weight", -1)
    assert [(parsed.name.io, parsed.name.slot) for parsed in told([tensor, {"k": tensor}], "x.0.debug")] == [
        ("debug", 0),
        ("debug.1.k", -1),
    ]
    (whole,) = told(tensor, "x.0.debug")
    assert (whole.name.io, whole.name.slot) == ("debug", -1)


def test_gradients_that_old_versions_enter_early_come_last() -> None:
    """Before 26.0, the key has no number, and stands behind the forward call of its module."""
    calls = {
        "Module.a.Linear.forward.0": {"output": [TENSOR]},
        "Module.a.Linear.parameters_grad": {"weight": [TENSOR]},
        "Module.b.Linear.parameters_grad": {"weight": [TENSOR]},
        "Module.b.Linear.backward.0": {"output": [TENSOR]},
        "Module.b.Linear.parameters_grad.0": {"weight": [TENSOR]},
    }
    assert [one.name.op_name for one in read_tensors("dump.json", dump_json(calls))[0]] == [
        "Module.a.Linear.forward.0",
        "Module.b.Linear.backward.0",
        "Module.b.Linear.parameters_grad.0",
        "Module.b.Linear.parameters_grad",
        "Module.a.Linear.parameters_grad",
    ]


def test_tensor_of_a_point_to_point_operation_goes_by_the_index_of_the_operation() -> None:
    operation = {"class_type": "torch.distributed.P2POp", "tensor": dict(TENSOR), "op": "isend", "peer": 1}
    (found,) = told({"input_args": [[None, operation]]}, "Distributed.batch_isend_irecv.0.forward")
    assert (found.name.io, found.name.slot) == ("input.0", 1)


@pytest.mark.parametrize("mean", [math.nan, math.inf, None])
def test_without_a_finite_mean_nothing_is_said_of_nan_and_infinity(mean: float | None) -> None:
    """One such element makes what torch reports something else than ours, which are of finite elements."""
    found = one({"Max": math.inf, "Min": -2.0, "Mean": mean, "Norm": mean}).statistics
    assert found.min == -2
    assert all(math.isnan(value) for value in (found.max, found.mean, found.l2_norm, found.nan_count))
    assert math.isnan(found.pos_inf_count)


def test_maximum_of_finite_elements_is_taken_where_it_is_given() -> None:
    tensor = {"Max": math.nan, "Min": math.nan, "Max_except_inf_nan": 7.0, "Min_except_inf_nan": -1.0}
    found = one(tensor).statistics
    assert (found.max, found.min) == (7, -1)


def test_magnitudes_of_complex_elements_are_not_their_values() -> None:
    found = one({"dtype": "torch.complex64", **STATISTICS}).statistics
    assert found.count == 6
    assert all(math.isnan(value) for value in found.as_row()[1:])


def test_what_cannot_be_true_is_not_taken() -> None:
    found = one({"Max": -1.0, "Min": 1.0, "Mean": 10**400, "Norm": -4.0}).statistics
    assert all(math.isnan(value) for value in found.as_row()[1:])


@pytest.mark.parametrize(
    ("md5", "checksum"),
    [
        ("0a1b2c3d", "crc32:0a1b2c3d"),
        ("0x00112233445566ff", "xor64:00112233445566ff"),
        ("0" * 32, "md5:" + "0" * 32),
        (None, ""),
        ("?", ""),
        (7, ""),
    ],
)
def test_checksum_has_its_kind(md5: object, checksum: str) -> None:
    assert one({"md5": md5}).checksum == checksum


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8) | st.just(TENSOR),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "dtype", "shape", "Max", "Norm", "md5", "data_name", "tensor", "class_type", "x"]
            )
            | st.text(max_size=4),
            below,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING, st.sampled_from(["F.f.0.forward", "M.parameters_grad.0", "x.0.debug", "", ".", "\ud800"]))
def test_any_json_is_read_or_refused(value: Any, key: str) -> None:
    for data in (value, {"data": value}, {"data": {key: value}}, {"data": {key: {"output": value}}}):
        try:
            found, _ = read_tensors("dump.json", json.dumps(data).encode())
        except NotMsProbe:
            continue
        for told in found:
            told.name.op_name.encode()
            told.name.io.encode()


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"data":' * 100_000, b'{"data":{"a":' + b"[" * 5000])
def test_deep_nesting_is_refused(data: bytes) -> None:
    with pytest.raises(NotMsProbe):
        read_tensors("dump.json", data)


# msProbe's native dumps: names, elements without a header, and statistics.


STEP = "rank_0/20240801120000/step_3"
STEM = "MatMul.Default_net_MatMul-op0.2.7.1722484800151657"
NUMBER = "12345678901234567890123456789012"


def describe_native(files: Mapping[str, bytes]) -> Description:
    """Describe a step that has these files, by their names in it."""
    content = {f"{STEP}/{name}": data for name, data in files.items()}
    listed = [SourceFile(path, len(data), 0) for path, data in sorted(content.items())]
    place = Place(MSPROBE_NATIVE, STEP, {"rank": "0", "time": "20240801120000", "step": "3"})
    return MSPROBE_NATIVE.describe(place, listed, content.get)


def only(files: Mapping[str, bytes]) -> TensorFile:
    (named,) = describe_native(files).named.values()
    return named


def name_of(type_name: str, layout: str = "NCHW") -> TensorName:
    return TensorName(
        op_type="MatMul",
        op_name="Default_net_MatMul-op0",
        io="output",
        slot=1,
        task=2,
        stream=7,
        timestamp=1722484800151657,
        format=layout,
        declared_dtype=type_name,
    )


def test_npy_has_the_type_before_it_was_converted_in_its_name() -> None:
    assert parse_native_name(f"{STEM}.output.1.NCHW.BF16.npy") == TensorFile(name_of("BF16"), Container.NPY)


@pytest.mark.parametrize(
    ("type_name", "dtype"),
    [
        ("FLOAT", "float32"),
        ("DOUBLE", "float64"),
        ("BF16", "bfloat16"),
        ("UINT16", "uint16"),
        ("HIFLOAT8", "hifloat8"),
        ("FLOAT8_E8M0", "float8_e8m0fnu"),
        ("COMPLEX64", "complex64"),
        ("STRING", "|V1"),
        ("UNDEFINED", "|V1"),
    ],
)
def test_file_of_elements_has_their_type_and_no_shape(type_name: str, dtype: str) -> None:
    found = parse_native_name(f"{STEM}.output.1.FRACTAL_NZ.{type_name}")
    assert found == TensorFile(name_of(type_name, "FRACTAL_NZ"), Container.RAW, dtype=dtype)
    assert from_name(dtype).itemsize
    assert npy.raw_header(dtype, None, 48).shape == (48 // from_name(dtype).itemsize,)


@pytest.mark.parametrize(
    "name", ["mapping.csv", "acl.json", "notes.txt", "Opdebug.Node_OpDebug.1.2.3.output.0.json"]
)
def test_other_files_are_kept_as_files(name: str) -> None:
    assert describe_native({name: b""}).named == {}


@pytest.mark.parametrize(
    ("long", "real", "container"),
    [
        (f"{NUMBER}.npy", f"{STEM}.output.1.NCHW.FLOAT.npy", Container.NPY),
        (f"{NUMBER}.FLOAT", f"{STEM}.output.1.NCHW.FLOAT", Container.RAW),
        (NUMBER, f"{STEM}.output.1.NCHW.FLOAT", Container.RAW),
    ],
)
def test_long_name_is_looked_up(long: str, real: str, container: Container) -> None:
    found = only({long: b"", "mapping.csv": f"0.npy,x\n{long},{real}\n".encode()})
    assert (found.name, found.container, found.settled) == (name_of("FLOAT"), container, True)


def test_long_name_without_its_row_keeps_its_number_and_may_still_be_told() -> None:
    found = only({f"{NUMBER}.BF16": b"", "mapping.csv": b""})
    assert found.name == TensorName(op_name=NUMBER, declared_dtype="BF16")
    assert (found.container, found.dtype, found.settled) == (Container.RAW, "bfloat16", False)
    assert only({f"{NUMBER}.npy": b""}).settled is False


def test_row_that_is_cut_off_may_go_on() -> None:
    real = f"{STEM}.output.1.NCHW.FLOAT.npy"
    assert only({f"{NUMBER}.npy": b"", "mapping.csv": f"{NUMBER}.npy,{real}".encode()}).settled is False


HEADER = "Op Type,Op Name,Task ID,Stream ID,Timestamp,Input/Output,Slot,Data Size,Data Type,Format,Shape"
ROW = "MatMul,Default_net_MatMul-op0,2,7,1722484800151657,output,1,24,FLOAT,NCHW,(2,3)"


def test_statistics_are_reported_under_the_name_of_their_tensor() -> None:
    """In MD5 mode the shape has no quotes."""
    md5 = "0123456789abcdef0123456789abcdef"
    found = describe_native({"statistic.csv": f"{HEADER},MD5 Value\n{ROW},{md5}\n".encode()})
    (reported,) = found.reported
    assert (reported.shape, reported.checksum, reported.dtype) == ((2, 3), f"md5:{md5}", "FLOAT")
    assert (reported.name.op_name, reported.name.io, reported.name.slot) == (
        "Default_net_MatMul-op0",
        "output",
        1,
    )
    assert (found.problems, found.unfinished) == ([], "")


def test_statistics_that_end_within_a_row_keep_the_step_open() -> None:
    found = describe_native({"statistic.csv": f"{HEADER},MD5 Value\n{ROW[:30]}".encode()})
    assert found.unfinished == f"{STEP}/statistic.csv"


@given(
    st.text(max_size=60)
    | st.from_regex(
        r"[A-Z]{1,3}\.[a-z]{1,3}(\.\d{1,20}){0,4}\.(input|output)\.\d{1,12}\.[A-Z]{2}\.[A-Z0-9_]{0,5}(\.npy)?",
        fullmatch=True,
    )
    | st.from_regex(r"\d{31,33}(\.[a-zA-Z0-9]{1,6})?", fullmatch=True),
    st.binary(max_size=40),
)
def test_any_name_is_understood_or_not(name: str, mapping: bytes) -> None:
    describe_native({name: b"", "mapping.csv": mapping, "statistic.csv": mapping})
