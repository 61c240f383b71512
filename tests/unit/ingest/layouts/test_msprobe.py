"""msProbe's trees: what a file is comes from `dump.json`, and from its name where that is silent."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.base import Description, Place
from ingest.layouts.msprobe import MsProbe, parse_tensor_name
from tests.dumps import DumpLibrary
from workers.arrays.statistics import summarise
from workers.dump.formats.pt import read_headers
from workers.dump.model import TensorName
from workers.model import SourceFile
from workers.tasks.publish import disagreements

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
    return MsProbe().describe(Place(MsProbe(), "p", fields or {}), listed, content.get)


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
        place = Place(MsProbe(), str(directory.relative_to(root)), {})
        found.append((directory, MsProbe().describe(place, files, lambda path: (root / path).read_bytes())))
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
    found = MsProbe().describe(Place(MsProbe(), "p", {}), files, lambda _: data)
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
    matches = [pattern.match_path(path) for pattern in MsProbe.patterns]
    return [fields for fields in matches if fields is not None]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    describe({"dump.json": data, FILE: b""})
    describe({"dump.json": LISTED[: len(data) * 5] + data, FILE: b""})
