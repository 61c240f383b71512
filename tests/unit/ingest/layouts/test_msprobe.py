"""msProbe's trees: what a file is comes from `dump.json`, and from its name where that is silent."""

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

from ingest.layouts.base import Description, Place
from ingest.layouts.msprobe import MsProbe
from ingest.layouts.msprobe_json import JsonTensor, NotMsProbe, read_tensors
from ingest.layouts.msprobe_names import parse_tensor_name
from tests.samples import sample
from workers.arrays.statistics import summarise
from workers.dump.formats.header import Container
from workers.dump.formats.pt import read_headers
from workers.dump.model import TensorName
from workers.model import SourceFile
from workers.tasks.reported_vs_computed import disagreements

TREES = (
    "msprobe-26.2.0-mindspore-cpu",
    "msprobe-26.2.0-pytorch-cpu/crc",
    "msprobe-26.2.0-pytorch-cpu/ddp-2-ranks",
    "msprobe-26.2.0-pytorch-cpu/statistics",
    "msprobe-26.2.0-pytorch-cpu/tensor-mix",
)
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3]}
STATISTICS = {"Max": 3.5, "Min": -1.0, "Mean": 0.25, "Norm": 4.0}


def describe(files: Mapping[str, bytes], fields: Mapping[str, str] | None = None) -> Description:
    """Describe a place `p` that has these files, by their names in it."""
    content = {f"p/{name}": data for name, data in files.items()}
    listed = [SourceFile(path, len(data), 0) for path, data in sorted(content.items())]
    return MsProbe().describe(Place("p", fields or {}), listed, content.get)


def dump_json(data: Mapping[str, Any]) -> bytes:
    return json.dumps({"task": "tensor", "level": "mix", "framework": "pytorch", "data": data}).encode()


def told(entry: Any, key: str = "Functional.f.0.forward") -> list[JsonTensor]:
    return read_tensors(dump_json({key: entry}))


def one(tensor: Mapping[str, Any]) -> JsonTensor:
    (found,) = told({"output": [{**TENSOR, **tensor}]})
    return found


def places_of(root: Path) -> list[tuple[Path, Description]]:
    """Describe every process and step of a tree."""
    found = []
    for directory in sorted(path.parent for path in root.rglob("dump.json")):
        files = [
            SourceFile(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        ]
        place = Place(str(directory.relative_to(root)), {})
        found.append((directory, MsProbe().describe(place, files, lambda path: (root / path).read_bytes())))
    assert found
    return found


def key_of(name: TensorName) -> tuple[str, str, str, int]:
    return name.graph, name.op_name, name.io, name.slot


@pytest.mark.parametrize("tree", TREES)
def test_samples_are_understood_to_the_last_file(tree: str) -> None:
    root = sample(tree)
    for directory, description in places_of(root):
        assert (description.problems, description.unfinished) == ([], "")
        tensors = {str(path.relative_to(root)) for path in directory.rglob("dump_tensor_data/*")}
        assert description.named.keys() == tensors
        assert {told.tensor for told in description.reported if told.tensor} == tensors


@pytest.mark.parametrize("tree", [*TREES, "msprobe-repo-tests"])
def test_no_two_tensors_of_a_sample_share_a_name(tree: str) -> None:
    for _, description in places_of(sample(tree)):
        keys = [key_of(told.name) for told in description.reported]
        assert len(set(keys)) == len(keys) > 1
        assert [told.name.sequence for told in description.reported] == list(range(len(keys)))


@pytest.mark.parametrize("tree", TREES)
def test_name_of_a_file_says_the_same_as_dump_json(tree: str) -> None:
    """So that a file has the same name before and after its entry is written."""
    for _, description in places_of(sample(tree)):
        for path, named in description.named.items():
            assert named.name is not None
            stem = path.rpartition("/")[2].removesuffix(f".{named.container}")
            assert parse_tensor_name(stem) == named.name._replace(sequence=-1, declared_dtype="")
            assert f"{named.name.op_name}.{named.name.io}" in stem or "grad" in stem


@pytest.mark.parametrize("tree", TREES)
def test_reported_statistics_of_samples_agree_with_their_tensors(tree: str) -> None:
    root = sample(tree)
    for _, description in places_of(root):
        for told in description.reported:
            if told.tensor:
                values = load(root / told.tensor)
                assert values.shape == told.shape
                computed = summarise(values.reshape(-1))
                assert disagreements(told.statistics, computed, told.digits, values.dtype.name) == []


def load(path: Path) -> np.ndarray[Any, Any]:
    if path.suffix == ".npy":
        return np.asarray(np.load(path))
    data = path.read_bytes()
    (header,) = read_headers(lambda offset, nbytes: data[offset : offset + nbytes], len(data))
    return np.frombuffer(data, header.element.to_numpy(), header.size, header.offset).reshape(header.shape)


def test_checksum_is_the_crc_of_the_elements() -> None:
    """Two runs of one program, from one seed: one dumped tensors, the other their checksums.

    msProbe computes them in other threads, so of a tensor that is changed in place it may be that of a moment
    later: that of the input `Tensor.add_.7` in this sample is that of the output.
    """
    ((_, tensors),) = places_of(sample("msprobe-26.2.0-pytorch-cpu/tensor-mix"))
    ((_, sums),) = places_of(sample("msprobe-26.2.0-pytorch-cpu/crc"))
    root = sample("msprobe-26.2.0-pytorch-cpu/tensor-mix")
    checksums = {key_of(told.name): told.checksum for told in sums.reported}
    for told in tensors.reported:
        if told.name.op_type == "Tensor.add_" and told.name.io == "input":
            continue
        payload = load(root / told.tensor).tobytes()
        assert checksums[key_of(told.name)] == f"crc32:{zlib.crc32(payload):08x}"


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


@pytest.mark.parametrize(
    "stem", ["", "weights", "Functional.conv2d.forward.input.0", "a.0.debugger", "step0"]
)
def test_other_names_are_not_understood(stem: str) -> None:
    assert parse_tensor_name(stem) is None


def test_running_number_of_tensordump_is_the_order_and_names_the_type() -> None:
    name = parse_tensor_name("Cell.net.Net.forward.0.output.1_bfloat16_17")
    assert name is not None
    assert (name.sequence, name.declared_dtype) == (17, "bfloat16")


def test_way_to_a_tensor_through_lists_and_dictionaries_is_its_name() -> None:
    tensor = dict(TENSOR)
    entry = {
        "input_args": [None, tensor, [{"type": "int", "value": 1}, [tensor, {"k": tensor}]]],
        "input_kwargs": {"w": tensor, "dtype": {"type": "torch.dtype", "value": "x"}, "shape": [2]},
        "output": [tensor],
        "parameters": {"bias": tensor},
    }
    assert [(one.name.io, one.name.slot) for one in told(entry)] == [
        ("input", 1),
        ("input.2.1", 0),
        ("input.2.1.1.k", -1),
        ("kwargs.w", -1),
        ("output", 0),
        ("parameters.bias", -1),
    ]


def test_gradients_of_parameters_and_saved_values_have_forms_of_their_own() -> None:
    tensor = dict(TENSOR)
    (gradient,) = told({"weight": [tensor]}, "Module.fc.Linear.parameters_grad.0")
    assert (gradient.name.io, gradient.name.slot) == ("parameters_grad.weight", -1)
    assert [(one.name.io, one.name.slot) for one in told([tensor, {"k": tensor}], "x.0.debug")] == [
        ("debug", 0),
        ("debug.1.k", -1),
    ]
    (whole,) = told(tensor, "x.0.debug")
    assert (whole.name.io, whole.name.slot) == ("debug", -1)


def test_tensor_of_a_point_to_point_operation_goes_by_the_index_of_the_operation() -> None:
    operation = {"class_type": "torch.distributed.P2POp", "tensor": dict(TENSOR), "op": "isend", "peer": 1}
    (found,) = told({"input_args": [[None, operation]]}, "Distributed.batch_isend_irecv.0.forward")
    assert (found.name.io, found.name.slot) == ("input.0", 1)


def test_statistics_are_taken_by_our_definitions() -> None:
    found = one(STATISTICS).statistics
    assert (found.count, found.max, found.min, found.mean, found.l2_norm) == (6, 3.5, -1, 0.25, 4)
    assert (found.nan_count, found.pos_inf_count, found.neg_inf_count) == (0, 0, 0)
    assert math.isnan(found.std)


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


def test_booleans_and_integers_hold_no_nan() -> None:
    found = one({"dtype": "torch.bool", "Max": True, "Min": False, "Mean": None, "Norm": None}).statistics
    assert (found.max, found.min, found.nan_count) == (1, 0, 0)
    assert math.isnan(found.mean)


def test_norm_of_a_tensor_without_axes_has_the_sign_of_its_value() -> None:
    found = one({"shape": [], "Max": -3.0, "Min": -3.0, "Mean": -3.0, "Norm": -3.0}).statistics
    assert (found.mean, found.l2_norm) == (-3, 3)


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


@pytest.mark.parametrize(("dtype", "digits"), [("torch.bfloat16", 2), ("Float16", 3), ("torch.float32", 9)])
def test_narrow_types_have_few_digits(dtype: str, digits: int) -> None:
    found = one({"dtype": dtype})
    assert (found.digits, found.dtype, found.name.declared_dtype) == (digits, dtype, dtype)


FILE = "dump_tensor_data/Functional.f.0.forward.output.0.pt"
ENTRY = {**TENSOR, "data_name": "Functional.f.0.forward.output.0.pt"}
LISTED = dump_json({"Functional.f.0.forward": {"output": [ENTRY]}})


def test_file_with_an_entry_is_named_and_its_statistics_point_to_it() -> None:
    found = describe({"dump.json": LISTED, FILE: b""}, {"mode": "pynative"})
    (named,) = found.named.values()
    assert named.container is Container.PT
    assert named.name == found.reported[0].name
    assert (named.name.graph, named.name.sequence) == ("pynative", 0)
    assert found.reported[0].tensor == f"p/{FILE}"
    assert (found.problems, found.unfinished) == ([], "")


def test_entry_without_its_file_keeps_its_statistics_and_is_a_problem() -> None:
    found = describe({"dump.json": LISTED})
    assert (found.named, found.reported[0].tensor, found.unfinished) == ({}, "", "")
    assert "names 1 files that do not exist; the first is Functional.f.0" in str(found.problems[0])


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


def test_json_that_cannot_be_read_is_a_problem() -> None:
    files = [SourceFile("p/dump.json", 1, 0), SourceFile(f"p/{FILE}", 1, 0)]
    found = MsProbe().describe(Place("p", {}), files, lambda _: None)
    assert "cannot be read" in str(found.problems[0])
    assert found.named.keys() == {f"p/{FILE}"}


def test_tensors_of_a_captured_graph_have_no_json() -> None:
    found = describe({"dump_tensor_data/Aten.add.Tensor.0.output.pt": b""})
    assert (found.problems, found.unfinished, len(found.named)) == ([], "", 1)


def test_debug_json_is_read_as_well() -> None:
    saved = dump_json({"x.0.debug": {**TENSOR, "data_name": "x.0.debug.pt"}})
    found = describe(
        {"dump.json": LISTED, "debug.json": saved, FILE: b"", "dump_tensor_data/x.0.debug.pt": b""}
    )
    assert [told.source for told in found.reported] == ["p/dump.json", "p/debug.json"]
    assert [told.name.sequence for told in found.reported] == [0, 1]
    assert (found.problems, len(found.named)) == ([], 2)


def test_checkpoints_in_directories_of_the_same_names_are_not_claimed() -> None:
    assert describe({"model.pt": b"", "optimizer.npy": b""}) == Description()


def test_path_in_an_entry_leads_nowhere_else() -> None:
    data = dump_json({"F.f.0.forward": {"output": [{**TENSOR, "data_name": "../../q/x.pt"}]}})
    files = [SourceFile("p/dump.json", 1, 0), SourceFile("q/x.pt", 1, 0)]
    found = MsProbe().describe(Place("p", {}), files, lambda _: data)
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


@pytest.mark.parametrize(
    "path", ["step0/rank01", "step0/20240101000000", "step0/rankx", "steps/rank0", "a/step0/rank0"]
)
def test_other_directories_are_not(path: str) -> None:
    assert matched(path) == []


def matched(path: str) -> list[dict[str, str]]:
    """Return the fields of each pattern that fits a path to its end."""
    found = []
    for pattern in MsProbe.patterns:
        names = path.split("/")
        if len(pattern.levels) == len(names):
            fields = [pattern.match(level, name) for level, name in enumerate(names)]
            if all(one is not None for one in fields):
                found.append({key: value for one in fields for key, value in (one or {}).items()})
    return found


def test_directory_of_a_step_alone_proves_nothing() -> None:
    assert all(pattern.proof == len(pattern.levels) >= 2 for pattern in MsProbe.patterns)


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
            found = read_tensors(json.dumps(data).encode())
        except NotMsProbe:
            continue
        for told in found:
            told.name.op_name.encode()
            told.name.io.encode()


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    describe({"dump.json": data, FILE: b""})
    describe({"dump.json": LISTED[: len(data) * 5] + data, FILE: b""})


@given(
    st.text(max_size=40)
    | st.from_regex(r"[a-z]{1,3}(\.([a-z]{1,2}|\d{1,25}|forward|input|debug)){1,8}", fullmatch=True)
)
def test_any_name_is_parsed_or_not(stem: str) -> None:
    parse_tensor_name(stem)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"data":' * 100_000, b'{"data":{"a":' + b"[" * 5000])
def test_deep_nesting_is_refused(data: bytes) -> None:
    with pytest.raises(NotMsProbe):
        read_tensors(data)


def test_tensor_below_more_levels_than_msprobe_writes_is_left_out() -> None:
    deep: object = dict(TENSOR)
    for _ in range(450):
        deep = [deep]
    assert told({"output": deep}) == []
