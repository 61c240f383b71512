"""Dumps of MindSpore, CANN and TorchAir: places and names, and the references that they are compared with."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ingest
from ingest.api import open_store
from ingest.layouts.base import Description, Layout, Place, ReadSmall
from ingest.layouts.cann import (
    CANN,
    TORCHAIR,
    describe_files,
    parse_bin_name,
    parse_call_name,
    parse_node_name,
    parse_npy_name,
    parse_reference_name,
    parse_tensor_name,
)
from ingest.layouts.detect import find_dump
from ingest.layouts.mindspore import MINDSPORE, parse_raw_name
from tests.dump_data_writer import Tensor, dump_data, version_1
from tests.stores import DumpLibrary, MadeDump, ingest_directly
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile, StepKey

# Names and places of MindSpore dumps.


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_0", 0),
        ("rank_17", 17),
        ("rank_", None),
        ("rank_x", None),
        ("rank_1.bak", None),
        ("Rank_1", None),
        # Two spellings of one rank would overwrite one another.
        ("rank_01", None),
        ("rank_\u0663", None),
        ("rank_" + "9" * 50, None),
    ],
)
def test_rank_of_a_directory(name: str, rank: int | None) -> None:
    (pattern, *_) = MINDSPORE.patterns
    fields = pattern.match(0, name)
    assert (None if fields is None else int(fields["rank"])) == rank


def names_of(dump: Path, step: int | None = 0) -> Mapping[str, TensorName | None]:
    found = find_dump(dump)
    listing = next(listing for listing in found.scan({}).listings if listing.key == StepKey(0, step))
    named = found.describe(listing).named
    return {path.rsplit("/", 1)[-1]: tensor_file.name for path, tensor_file in named.items()}


@pytest.mark.parametrize(
    "content",
    [
        b"x" * 200_000,
        b'"' + b"a\n" * 100_000,
        b"\0,\0\n",
        b"\xff,\xfe\n",
        b"123.npy\n",
        b",,,,\n",
        b"123.npy,nonsense\n",
    ],
)
def test_damaged_mapping_does_no_harm(content: bytes, made: MadeDump) -> None:
    made.add(b"", "123.npy")
    made.add(content, "mapping.csv")
    assert "123.npy" in names_of(made.root)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
@pytest.mark.parametrize("place", ["Net/0/0/mapping.csv", ".dump_metadata/data_dump.json"])
def test_special_file_in_the_place_of_a_small_one_does_not_hang(
    make: Callable[[Path], None], place: str, made: MadeDump
) -> None:
    made.add(b"", "123.npy")
    path = made.root / "rank_0" / place
    path.parent.mkdir(exist_ok=True)
    make(path)
    assert "123.npy" in names_of(made.root)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"common_dump_settings": {"iteration": "0|2-3"}}, {0, 2, 3}),
        ({"common_dump_settings": {"iteration": "all"}}, None),
        ({"common_dump_settings": {}}, None),
        ({}, None),
        ([], None),
    ],
)
def test_configuration_tells_which_steps_to_expect(
    settings: object, expected: set[int] | None, made: MadeDump
) -> None:
    made.add(b"")
    path = made.root / "rank_0" / ".dump_metadata" / "data_dump.json"
    path.parent.mkdir()
    path.write_text(json.dumps(settings))
    assert find_dump(made.root).scan({}).expected_steps == expected


@pytest.mark.parametrize(
    ("name", "place", "steps"),
    [
        ("lenet-1rank", "dump", 3),
        ("mindspore-2.7.1-cpu-sync", "control-flow", 1),
        ("mindspore-2.0.0-cpu-sync", "lenet", 1),
    ],
)
def test_every_name_of_a_real_dump_is_understood(
    name: str, place: str, steps: int, dumps: DumpLibrary
) -> None:
    dump = find_dump(dumps[name] / place)
    found = [listing for listing in dump.scan({}).listings if listing.key.step is not None]
    assert len(found) >= steps
    for listing in found:
        assert [
            path
            for path, tensor_file in dump.describe(listing).named.items()
            if tensor_file.name is None or not tensor_file.settled
        ] == []


# The tree of MindSpore's first asynchronous dumps.


def test_step_of_a_whole_tree_is_the_iteration(tmp_path: Path) -> None:
    """Found among all layouts, with device, net and graph from the path."""
    for iteration in (4, 5):
        place = tmp_path / f"dump/device_3/Net_graph_1/2/{iteration}"
        place.mkdir(parents=True)
        (place / "Add.Add-op1.0.1.17").write_bytes(b"x")
    dump = find_dump(tmp_path)
    listings = dump.scan({}).listings
    assert [(listing.key, listing.layout) for listing in listings] == [
        (StepKey(3, 4), "mindspore_async"),
        (StepKey(3, 5), "mindspore_async"),
    ]
    (named,) = dump.describe(listings[0]).named.values()
    assert named.name is not None
    assert (named.name.net, named.name.graph) == ("Net", "2")


# Names of the npy files of MindSpore, of all releases.


@pytest.mark.parametrize(
    ("op_type", "op_name", "rest", "wanted"),
    [
        # 2.4 and later: scope with `_`, dtype at the end.
        (
            "Conv2D",
            "Default_network-WithLossCell__backbone-Net_conv-Conv2d_Conv2D-op0",
            "0.0.1795220037870151.input.1.DefaultFormat.Float32",
            ("input", 1, 1795220037870151, "DefaultFormat", "Float32"),
        ),
        # Up to 2.3: no dtype.
        (
            "ReLU",
            "ReLU-op3",
            "0.0.161243956333802.output.0.NC1HWC0",
            ("output", 0, 161243956333802, "NC1HWC0", ""),
        ),
        # Before 2.3 parameter names keep their dots.
        ("Parameter", "fc.weight", "0.0.17.output.0.DefaultFormat", ("output", 0, 17, "DefaultFormat", "")),
        (
            "Parameter",
            "moments.0.fc.weight",
            "0.0.17.output.0.ND.bfloat16",
            ("output", 0, 17, "ND", "bfloat16"),
        ),
        ("Parameter", "data-12", "0.0.17.output.0.DefaultFormat", ("output", 0, 17, "DefaultFormat", "")),
    ],
)
def test_real_names_are_parsed_from_the_right(
    op_type: str, op_name: str, rest: str, wanted: tuple[str, int, int, str, str]
) -> None:
    found = parse_tensor_name(f"{op_type}.{op_name}.{rest}.npy")
    assert found is not None
    assert (found.op_type, found.op_name) == (op_type, op_name)
    assert (found.io, found.slot, found.timestamp, found.format, found.declared_dtype) == wanted


@pytest.mark.parametrize(
    "file_name",
    [
        "1807535132.npy",
        "weights.npy",
        "Conv2D.op0.0.0.1.sideways.0.DefaultFormat.npy",
        ".npy",
        "a.b.c.d.e.input.0.F.npy",
        "A.b.0.0.1.output.0.npy",
        "A.b.0.0.99999999999999999999.output.0.F.npy",
        "A.0.0.1.output.0.F.npy",
    ],
)
def test_other_names_are_not_guessed(file_name: str) -> None:
    assert parse_tensor_name(file_name) is None


# Places and names of MindSpore's first synchronous dumps.


def raw(file_name: str) -> tuple[str, str, str, int, str, tuple[int, ...] | None, str]:
    """Return what is understood of a name."""
    named = parse_raw_name(file_name, net="Net")
    assert named is not None
    assert named.container is Container.RAW
    assert named.settled
    name = named.name
    assert name is not None
    assert name.net == "Net"
    return name.op_type, name.op_name, name.io, name.slot, named.dtype, named.shape, name.format


def test_names_are_understood_from_their_end() -> None:
    scope = "Default--network-WithLossCell--_backbone-AlexNet--conv3-Conv2d"
    assert raw(f"{scope}--Conv2D-op308_output_0_shape_4_4_4_4_Float32_NCHW.bin") == (
        "Conv2D",
        f"{scope}--Conv2D-op308".replace("--", "/"),
        "output",
        0,
        "float32",
        (4, 4, 4, 4),
        "NCHW",
    )
    assert raw("moments.conv2.bias_output_0_shape_128_Float32_DefaultFormat.bin") == (
        "Parameter",
        "moments.conv2.bias",
        "output",
        0,
        "float32",
        (128,),
        "DefaultFormat",
    )
    assert raw("Default--Cast-op3_input_1_shape_kNumberTypeFloat16_FRACTAL_NZ.bin") == (
        "Cast",
        "Default/Cast-op3",
        "input",
        1,
        "float16",
        (),
        "FRACTAL_NZ",
    )
    # What no operator is, has no type.
    assert raw("Default--data_output_0_shape_2_Int_ND.bin")[:2] == ("", "Default/data")


@given(st.text(max_size=80))
def test_any_name_of_a_raw_file_is_a_name_or_none(text: str) -> None:
    for file_name in (
        text,
        f"{text}.bin",
        f"w_output_0_shape_{text}_Float32_ND.bin",
        f"{text}_shape_1_Int8_ND.bin",
    ):
        named = parse_raw_name(file_name)
        if named is not None:
            from_name(named.dtype)


@given(st.lists(st.integers(0, 10**6), max_size=8), st.integers(0, 99))
def test_shapes_and_slots_come_back(shape: list[int], slot: int) -> None:
    lengths = "".join(f"{length}_" for length in shape)
    named = parse_raw_name(f"a.b_c_input_{slot}_shape_{lengths}UInt16_NC1HWC0.bin")
    assert named is not None
    assert (named.shape, named.dtype) == (tuple(shape), "uint16")
    assert named.name == TensorName(
        op_type="Parameter",
        op_name="a.b_c",
        io="input",
        slot=slot,
        format="NC1HWC0",
        declared_dtype="UInt16",
    )


#: What a small GPU job would have dumped: values by the name of their file.
OWN_SAMPLE = {
    "Default--network-Net--fc-Dense--MatMul-op7_output_0_shape_2_3_Float32_NCHW.bin": (
        np.arange(6, dtype="<f4").reshape(2, 3)
    ),
    "Default--network-Net--fc-Dense--MatMul-op7_input_1_shape_3_Float16_NCHW.bin": (
        np.array([1.5, -2.25, 0.0], "<f2")
    ),
    "fc.bias_output_0_shape_Float64_DefaultFormat.bin": np.array(0.125, "<f8"),
    "fc.moments.mask_output_0_shape_4_Bool_DefaultFormat.bin": np.array([True, False, True, True]),
}


@pytest.mark.parametrize("place", ["Net/device_3/iteration_2", "Net/iteration_2"])
def test_dump_is_read_to_the_last_element(place: str, tmp_path: Path, store: Path) -> None:
    """From its directories to the values in the store, with all other layouts in play."""
    directory = tmp_path / "dump" / place
    directory.mkdir(parents=True)
    for file_name, values in OWN_SAMPLE.items():
        (directory / file_name).write_bytes(values.tobytes())
    ingest_directly(tmp_path / "dump", store)
    (step,) = open_store(store).select()
    assert step.key == StepKey(3 if "device" in place else 0, 2)
    assert [listing.layout for listing in find_dump(tmp_path / "dump").scan({}).listings] == ["mindspore_raw"]
    tensors = {tensor.source.rpartition("/")[2]: tensor for tensor in open_store(store).tensors()}
    assert tensors.keys() == OWN_SAMPLE.keys()
    for file_name, values in OWN_SAMPLE.items():
        tensor = tensors[file_name]
        assert (tensor.shape, tensor.net) == (values.shape, "Net")
        np.testing.assert_array_equal(tensor.read(), values)
    names = {(tensor.op_type, tensor.op_name.rpartition("/")[2]) for tensor in tensors.values()}
    assert names == {("MatMul", "MatMul-op7"), ("Parameter", "fc.bias"), ("Parameter", "fc.moments.mask")}


# Names of CANN's dump files.


@pytest.mark.parametrize(
    ("file_name", "wanted"),
    [
        (
            "Conv2D.Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op12.2.7.161243956333802",
            (
                "Conv2D",
                "Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op12",
                2,
                7,
                161243956333802,
            ),
        ),
        (
            "Add.Default_Add-op0.65535.65535.1722484800157158",
            ("Add", "Default_Add-op0", -1, -1, 1722484800157158),
        ),
        # Releases of 2021, and exception dumps: without the stream.
        ("Add.Add_2.4.1722556800123456", ("Add", "Add_2", 4, -1, 1722556800123456)),
        ("GatherV2.GatherV21.1.1733469426252033", ("GatherV2", "GatherV21", 1, -1, 1733469426252033)),
        ("Add.Add_2.4.20240801040000123", ("Add", "Add_2", 4, -1, 1722484800123000)),
        ("Add.Add_2.4.20249901040000123", ("Add", "Add_2", 4, -1, 20249901040000123)),
        ("exception_info.7.4.20240801040000123", ("exception_info", "", 4, 7, 1722484800123000)),
        # Threads of FFTS+
        (
            "Add.sgt_graph_0_Add.0.3.1673383728093446.4.1.2.0",
            ("Add", "sgt_graph_0_Add.thread_2", 0, 3, 1673383728093446),
        ),
        (
            "Add.sgt_graph_0_Add.0.3.1673383728093446.4.1.2",
            ("Add", "sgt_graph_0_Add.thread_2", 0, 3, 1673383728093446),
        ),
        (
            "Add.sgt_graph_0_Add.3.1673383728093446.4.1.2.0",
            ("Add", "sgt_graph_0_Add.thread_2", 3, -1, 1673383728093446),
        ),
        (
            "Opdebug.Node_OpDebug.0.3.1673383728094391.4.1.0.0",
            ("Opdebug", "Node_OpDebug.thread_0", 0, 3, 1673383728094391),
        ),
        ("Opdebug.Node_OpDebug.9.7.1722484800168308", ("Opdebug", "Node_OpDebug", 9, 7, 1722484800168308)),
        # Single operators: the call first, its kind second
        (
            "aclnnMul_12_L2.aclnnMul.130.2.1722484800151657",
            ("aclnnMul", "aclnnMul_12_L2", 130, 2, 1722484800151657),
        ),
        (
            "aclnnMul_12_L0.MulAiCore.11.2.1722484800155652",
            ("MulAiCore", "aclnnMul_12_L0", 11, 2, 1722484800155652),
        ),
        ("Add.Add_2.4.655.17", ("Add", "Add_2", 4, 655, 17)),
        ("L2DfxAbscent_4._L0Add.11.2.17", ("Add", "L2DfxAbscent_4", 11, 2, 17)),
    ],
)
def test_names_of_dump_data_files_are_understood(
    file_name: str, wanted: tuple[str, str, int, int, int]
) -> None:
    name = parse_bin_name(file_name, net="N", graph="1")
    assert name is not None
    assert (name.op_type, name.op_name, name.task, name.stream, name.timestamp) == wanted
    assert (name.net, name.graph, name.io, name.slot, name.format) == ("N", "1", "", -1, "")


@pytest.mark.parametrize(
    "file_name",
    [
        "",
        "Add",
        "Add.Add_2",
        "Add.Add_2.4",
        "Add.Add_2.four.7.17",
        "Add.Add_2.4.7.17.bin",
        "Add..4.7.17",
        "Add.Add_2.4.7.17.1.2",
        "Parameter.layer.1.2.3.0.0.17",
        "Add.Add_2.4.7.1722556800123456.1",
        "Add.Add_2.4.7.17.1.2.3.4.5.6",
        "Add.Add_2.4.7." + "9" * 30,
        "x.custom.20240801040000123",
    ],
)
def test_other_names_are_no_names_of_dump_data_files(file_name: str) -> None:
    assert parse_bin_name(file_name) is None


# Places and names of the CANN tree, and of MindSpore's first asynchronous dumps.


DIGEST = "0cc175b9c0f1b6a831c399e269772661"
NATIVE_HEADER = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,MD5\n"
)
CANN_HEADER = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value\n"


def fields_of(layout: Layout, path: str) -> Mapping[str, str] | None:
    """Return what the first pattern says that fits a directory to its end; None if none does."""
    matches = (pattern.match_path(path) for pattern in layout.patterns)
    return next((fields for fields in matches if fields is not None), None)


def describe(contents: Mapping[str, str], *, net: str = "", graph: str = "") -> Description:
    """Describe files of one place by their contents."""
    files = [SourceFile(path, len(text), 0) for path, text in sorted(contents.items())]
    return describe_files(Place(CANN, "p", {"net": net, "graph": graph}), files, reader(contents))


def reader(contents: Mapping[str, str]) -> ReadSmall:
    return lambda path: contents[path].encode() if path in contents else None


def name_of(path: str, contents: Mapping[str, str]) -> TensorName:
    name = describe(contents).named[path].name
    assert name is not None
    return name


MODEL = {"time": "20240801041010", "device": "0", "net": "ge_default_11", "graph": "2"}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        # TensorFlow, MindSpore O2, OM inference
        ("20240801041010/0/ge_default_11/2/5", {**MODEL, "iteration": "5"}),
        # The model gave no step.
        ("20240801041010/0/ge_default_11/2", MODEL),
        # Single operators; and a time that is no valid one.
        ("20240801041066/7", {"time": "20240801041066", "device": "7"}),
        # TorchAir, alone and within msProbe, old and new
        (
            "worldsize8_global_rank3/20240801041010/0/ge_default_11/2/5",
            {**MODEL, "world_size": "8", "rank": "3", "iteration": "5"},
        ),
        (
            "msprobe_ge_dump/worldsize8_global_rank3/20240801041010/0/ge_default_11/2/5",
            {**MODEL, "world_size": "8", "rank": "3", "iteration": "5"},
        ),
        ("msprobe_ge_dump/20240801041010/0/ge_default_11/2/5", {**MODEL, "iteration": "5"}),
        # MindSpore through ACL, O2 and O0/O1
        ("3/20240801041010/0/ge_default_11/2/5", {**MODEL, "step": "3", "iteration": "5"}),
        ("3/20240801041010/0", {"step": "3", "time": "20240801041010", "device": "0"}),
        # msProbe level L2
        ("step3/20240801041010/0", {"step": "3", "time": "20240801041010", "device": "0"}),
        ("extra-info/data-dump/5", {"device": "5"}),
        # Not ours: the levels above, msProbe native, TorchAir eager, MindSpore.
        ("20240801041010", None),
        ("rank_0/20240801041010/step_0", None),
        ("worldsize8_global_rank3/graph_1/0", None),
        ("rank_0/Net/0/1", None),
        ("20240801041010/0/ge_default_11", None),
        ("20240801041010/0/ge_default_11/two", None),
    ],
)
def test_places_are_found_behind_every_producers_prefix(path: str, fields: Mapping[str, str] | None) -> None:
    assert fields_of(CANN, path) == fields


@given(st.text(max_size=60))
def test_any_file_name_is_a_name_or_none(text: str) -> None:
    for file_name in (text, f"Add.Add.{text}", f"Add.Add.1.2.3.{text}.npy", f"{text}.npy", f"{text}.csv"):
        parse_bin_name(file_name)
        parse_npy_name(file_name)
        describe({f"d/{file_name}": ""})


def test_npy_files_are_tensors_by_mindspores_names_and_by_converters() -> None:
    def parsed(rest: str) -> tuple[str, str, int, int, str, str] | None:
        name = parse_npy_name(f"Add.{rest}.npy")
        if name is None:
            return None
        return name.op_name, name.io, name.slot, name.timestamp, name.format, name.declared_dtype

    assert parsed("Default_Add-op1.0.1.17.output.2.NCHW.bfloat16") == (
        "Default_Add-op1",
        "output",
        2,
        17,
        "NCHW",
        "bfloat16",
    )
    assert parsed("Add_1.0.1.17.input.0") == ("Add_1", "input", 0, 17, "", "")
    assert parsed("Add_1.0.1.17.input.0.32x256x13x13") == ("Add_1", "input", 0, 17, "", "")
    assert parsed("Add_1.0.1.17.input.0.FRACTAL_NZ") == ("Add_1", "input", 0, 17, "FRACTAL_NZ", "")
    assert parsed("sgt_Add.0.3.1673383728093446.4.1.2.0.output.0") == (
        "sgt_Add.thread_2",
        "output",
        0,
        1673383728093446,
        "",
        "",
    )
    # Old parameters hold dots; ground truth of ONNX and TensorFlow is kept as a file.
    assert parsed("fc.weight.0.0.17.output.0.ND") == ("fc.weight", "output", 0, 17, "ND", "")
    assert parsed("layer.1.2.3.0.0.17.output.0.ND") == ("layer.1.2.3", "output", 0, 17, "ND", "")
    assert parsed("0.17") is None
    name = parse_npy_name("aclnnMul_12_L2.aclnnMul.65535.2.17.output.0.ND.float32.npy")
    assert name is not None
    assert (name.op_type, name.op_name, name.task) == ("aclnnMul", "aclnnMul_12_L2", -1)


def test_what_a_converter_made_of_a_file_that_is_there_counts_no_second_time() -> None:
    bin_name = "d/Add.Add_2.4.7.17"
    npy = [f"{bin_name}.output.0.npy", f"{bin_name}.output.1.2x3.npy", f"{bin_name}.input.0.ND.float32.npy"]
    assert describe(dict.fromkeys([bin_name, *npy], "")).named.keys() == {bin_name}
    assert describe(dict.fromkeys(npy, "")).named.keys() == set(npy)


def test_a_long_name_is_found_in_the_mapping() -> None:
    files = {
        "d/7748076420210162913": "",
        "d/1807535132.npy": "",
        f"d/{DIGEST}.output.0.npy": "",
        "d/mapping.csv": "7748076420210162913,MatMulV2.model_a,b.129.7.17\n"
        "1807535132.npy,ReLU.Default_l.0.0.18.input.0.DefaultFormat.Float32.npy\n"
        f"{DIGEST}.output.0.npy,Add.Add.1.2.3.output.0.npy\n",
    }
    described = describe(files, net="Net", graph="1")
    assert {named.settled for named in described.named.values()} == {True}
    found = described.named["d/7748076420210162913"]
    assert found.container is Container.DUMP_DATA
    assert found.name == TensorName("Net", "1", "MatMulV2", "model_a,b", task=129, stream=7, timestamp=17)
    assert name_of("d/1807535132.npy", files).op_name == "Default_l"
    assert name_of(f"d/{DIGEST}.output.0.npy", files).op_name == "Add"


@pytest.mark.parametrize("mapping", [None, "", "8,Add.Add.1.2.3\n", "7"])
def test_a_number_is_a_name_until_its_row_is_written(mapping: str | None) -> None:
    files = {"d/7": "", "d/9.npy": ""} | ({} if mapping is None else {"d/mapping.csv": mapping})
    described = describe(files)
    assert [(named.name, named.settled) for named in described.named.values()] == [
        (TensorName(op_name="7"), False),
        (TensorName(op_name="9"), False),
    ]


def test_statistics_of_cann_are_those_of_the_operator_in_the_name_of_the_file() -> None:
    path = "d/aclnnMul_1_L2.aclnnMul.4.7.17.csv"
    described = describe(
        {path: CANN_HEADER + "Output,1,24,DT_FLOAT,ND,2x3,1.5,-2.25\n"}, net="Net", graph="1"
    )
    assert described.named == {}
    (reported,) = described.reported
    assert reported.name == TensorName(
        "Net",
        "1",
        "aclnnMul",
        "aclnnMul_1_L2",
        io="output",
        slot=1,
        task=4,
        stream=7,
        timestamp=17,
        format="ND",
    )
    assert (reported.source, reported.dtype, reported.shape) == (path, "DT_FLOAT", (2, 3))
    assert (reported.statistics.max, reported.statistics.min, reported.digits) == (1.5, -2.25, 6)
    assert (reported.tensor, reported.checksum) == ("", "")


def test_statistics_of_mindspore_name_their_operators_themselves() -> None:
    rows = (
        f'Add,Default_Add-op1,0,65535,17,output,0,24,float32,"(2,3)",1.5,{DIGEST},\n'
        f'aclnnMul_1_L2,aclnnMul,0,1,18,input,2,24,float32,"(2,3)",1.5,,\n'
    )
    described = describe({"d/statistic.csv": NATIVE_HEADER + rows}, net="Net", graph="1")
    first, second = described.reported
    assert first.name == TensorName(
        "Net", "1", "Add", "Default_Add-op1", io="output", slot=0, task=0, timestamp=17
    )
    assert first.checksum == f"md5:{DIGEST}"
    assert (second.name.op_type, second.name.op_name) == ("aclnnMul", "aclnnMul_1_L2")
    assert described.unfinished == ""


# References of other frameworks, and the Ascend dumps that are compared with them.


X = np.arange(12, dtype=np.float32).reshape(3, 4)
RELU = np.maximum(X - 5, 0)


def output(values: npt.NDArray[np.float32], model: tuple[bytes, int]) -> Tensor:
    return Tensor(values.tobytes(), 1, values.shape, original=model)


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """Three operators of a model, as its framework computed them."""
    root = tmp_path / "reference"
    root.mkdir()
    for name, values in (("conv1", X), ("conv1_relu", RELU), ("fc", X.sum(1))):
        np.save(root / f"{name}.0.1610000000000000.npy", values)
    return root


@pytest.fixture
def ascend(tmp_path: Path) -> Path:
    """The same network compiled: the convolution and the ReLU are one operator, which is a little off."""
    place = tmp_path / "ascend/20260101000000/0/net/1/0"
    place.mkdir(parents=True)
    fused = dump_data([], [output(RELU + np.float32(1e-3), (b"conv1_relu", 0))], op_name=b"conv1conv1_relu")
    (place / "Conv2D.conv1conv1_relu.2.7.1610000000000001").write_bytes(fused)
    fc = dump_data([Tensor(X.tobytes(), 1, X.shape)], [output(X.sum(1), (b"", 0))], op_name=b"fc")
    (place / "MatMul.fc.3.7.1610000000000002").write_bytes(fc)
    return tmp_path / "ascend"


@pytest.mark.parametrize("is_swapped", [False, True])
def test_outputs_are_compared_with_those_of_the_operators_made_of_them(
    reference: Path, ascend: Path, tmp_path: Path, is_swapped: bool
) -> None:
    """One side is a store, the other a dump: the model is known of both."""
    ingest_directly(ascend, tmp_path / "ascend.zarr")
    sides = [reference, tmp_path / "ascend.zarr"]
    comparison = ingest.compare(*(sides[::-1] if is_swapped else sides))
    # `fc` is equal; `conv1` is no output of the compiled model.
    (different,) = (tensor for tensor in comparison.tensors if tensor.verdict == "different")
    names = {different.name_a, different.name_b}
    assert names == {"Reference.conv1_relu.output.0", "Conv2D.conv1conv1_relu.output.0"}
    assert (different.matched, different.guessed) == ("reference", False)
    (only,) = (
        tensor for tensor in comparison.tensors if tensor.verdict.startswith("only") and tensor.io == "output"
    )
    assert "Reference.conv1.output.0" in (only.name_a, only.name_b)


def test_both_halves_of_a_quantised_pair_have_one_name(tmp_path: Path) -> None:
    for kind, values in (("pb", X), ("quant", np.round(X))):
        content = version_1([], [output(values, (b"", 0))], op_name=b"conv1")
        (tmp_path / f"conv1.0.1610000000000000.{kind}").write_bytes(content)
    ingest_directly(tmp_path, tmp_path / "s.zarr")
    tensors = ingest.open_store(tmp_path / "s.zarr").tensors()
    assert [(tensor.graph, tensor.name) for tensor in tensors] == [
        ("", "Reference.conv1.output.0"),
        ("quantized", "Reference.conv1.output.0"),
    ]


def test_steps_may_be_directories(tmp_path: Path) -> None:
    for step in (3, 8):
        (tmp_path / f"run_step{step}").mkdir()
        np.save(tmp_path / f"run_step{step}" / "conv1.1.1610000000000000.npy", X)
    scan = find_dump(tmp_path).scan({})
    assert sorted(listing.key.step for listing in scan.listings if listing.key.step is not None) == [3, 8]
    tensor = parse_reference_name("conv1.1.1610000000000000.npy")
    assert tensor is not None
    assert tensor.name is not None
    assert (tensor.name.slot, tensor.container) == (1, Container.NPY)


# TorchAir's dumps of FX graphs: the names of its directories and files.


TIME = "20240801120000123456"


def matched(path: str) -> list[dict[str, str]]:
    """Return the fields of each pattern that fits a path to its end."""
    matches = [pattern.match_path(path) for pattern in TORCHAIR.patterns]
    return [fields for fields in matches if fields is not None]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "worldsize2_global_rank0/graph_1/7",
            {"world_size": "2", "rank": "0", "graph": "graph_1", "step": "7"},
        ),
        (
            "msprobe_fx_dump/worldsize8_global_rank7/gm_20240801120000123456_dump/0",
            {"world_size": "8", "rank": "7", "graph": "gm_20240801120000123456_dump", "step": "0"},
        ),
        ("data_dump/1/gm_20240801120000123456_dump", {"previous_step": "1", "graph": f"gm_{TIME}_dump"}),
        (f"msprobe_fx_dump/data_dump/2/gm_{TIME}_dump", {"previous_step": "2", "graph": f"gm_{TIME}_dump"}),
        ("worldsize1_global_rank0", {"world_size": "1", "rank": "0"}),
    ],
)
def test_directories_are_recognised(path: str, fields: dict[str, str]) -> None:
    assert matched(path) == [fields]


def test_sample_is_understood(dumps: DumpLibrary) -> None:
    root = dumps["synthetic-text"] / "torchair-eager"
    path = "worldsize2_global_rank0/graph_1/0"
    (fields,) = matched(path)
    files = [
        SourceFile(str(file.relative_to(root)), file.stat().st_size, 0)
        for file in sorted((root / path).iterdir())
    ]
    named = TORCHAIR.describe(Place(TORCHAIR, path, fields), files, lambda _: None).named
    assert named.keys() == {file.path for file in files}
    found = sorted(
        (name.op_type, name.op_name, name.io, name.slot, name.graph)
        for tensor_file in named.values()
        if (name := tensor_file.name) is not None
    )
    assert found == [
        ("aten.add.Tensor", "add", "input", 0, "graph_1"),
        ("aten.add.Tensor", "add", "input", 1, "graph_1"),
        ("aten.add.Tensor", "add", "output", 0, "graph_1"),
        ("aten.split.Tensor", "split_1", "output.0", 1, "graph_1"),
    ]


def test_captured_graph_has_a_file_per_node_and_run() -> None:
    names = [parse_node_name(f"mm_1_device_0_{count}.pt") for count in (9, 10)]
    assert names == [
        TensorName(op_type="mm", op_name="mm_1", io="output", sequence=count) for count in (9, 10)
    ]
    assert parse_node_name("weights.pt") is None


def test_files_of_a_captured_graph_stand_directly_in_the_directory_of_the_rank() -> None:
    rank = "worldsize1_global_rank0"
    files = [
        SourceFile(f"{rank}/{name}", 1, 0) for name in ("mm_device_0_1.pt", "x/y_device_0_1.pt", "a.json")
    ]
    named = TORCHAIR.describe(Place(TORCHAIR, rank, {"rank": "0"}), files, lambda _: None).named
    assert [(path, tensor_file.container) for path, tensor_file in named.items()] == [
        (f"{rank}/mm_device_0_1.pt", Container.PT)
    ]


@given(
    st.text(max_size=60) | st.from_regex(r"[a-z-]{1,6}\.(IN|OUT)PUT(\.\d{1,25}){0,4}(\.npy)?", fullmatch=True)
)
def test_any_name_is_parsed_or_not(name: str) -> None:
    for found in (parse_call_name(name), parse_node_name(name), parse_node_name(f"{name}_device_1_2.pt")):
        assert found is None or -1 <= found.slot < 10**9
        assert found is None or abs(found.timestamp) < 2**63
