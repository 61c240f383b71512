"""Places and names of the CANN tree, and of MindSpore's first asynchronous dumps."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.base import Description, Layout, ReadSmall
from ingest.layouts.cann import Cann, describe_files, parse_bin_name, parse_npy_name
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

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
    return describe_files(files, reader(contents), net=net, graph=graph)


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
    assert fields_of(Cann(), path) == fields


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
