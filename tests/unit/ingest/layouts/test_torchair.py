"""TorchAir's dumps of FX graphs: the names of its directories and files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.base import Place
from ingest.layouts.cann import TorchAir, parse_call_name, parse_node_name
from tests.dumps import DumpLibrary
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

TIME = "20240801120000123456"


def matched(path: str) -> list[dict[str, str]]:
    """Return the fields of each pattern that fits a path to its end."""
    matches = [pattern.match_path(path) for pattern in TorchAir.patterns]
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
    named = TorchAir().describe(Place(TorchAir(), path, fields), files, lambda _: None).named
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
    named = TorchAir().describe(Place(TorchAir(), rank, {"rank": "0"}), files, lambda _: None).named
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
