"""The dumps of the PyTorch world: every tensor as torch reads it, every file byte for byte."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ingest.layouts.detect import find_dump
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.step import Step
from tests.dump_data_writer import chunk, number
from tests.dumps import unpack
from tests.pipeline import ingest_directly
from tests.torch_truth import COMPOSITE, LAYOUTS, ODD_LAYOUT, differences, truth
from workers.errors import UsageError
from workers.tasks.read_back import ReadBackJob, ReadBackVerdict, read_back, recheck

#: The directory of each dump, below that of its `truth.json`.
DUMPS = {
    "sglang-dumper-nan-dp2": "dump",
    "torch-save-tree": "dump",
    "forward-hook-passes": "dump",
    "tensorrt-llm-like": "dump",
    "aoti-intermediate": "dump",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("world")
    unpack("pt/pytorch-world", into)
    root = into / "pytorch-world"
    # Only its own step: a pattern has one shape of directories.
    (root / "torch-save-tree" / "odd").mkdir()
    (root / "torch-save-tree" / "dump" / "odd").rename(root / "torch-save-tree" / "odd" / "odd0")
    return root


@pytest.fixture(scope="module")
def stores(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, DumpStore]:
    """Each dump in a store of its own."""
    into = tmp_path_factory.mktemp("stores")
    for name, below in DUMPS.items():
        ingest_directly(world / name / below, into / name, layout=LAYOUTS.get(name, ""))
    ingest_directly(world / "torch-save-tree" / "odd", into / "odd", layout=ODD_LAYOUT)
    return {name: open_store(into / name) for name in (*DUMPS, "odd")}


@pytest.mark.parametrize("name", DUMPS)
def test_every_tensor_reads_back_as_torch_reads_it(
    name: str, world: Path, stores: Mapping[str, DumpStore]
) -> None:
    told = {path: file for path, file in truth(world / name).items() if "/odd/" not in path}
    assert list(differences(told, f"{DUMPS[name]}/", stores[name])) == []
    counted = sum(step.commit.summary.tensors for step in stores[name].select())
    assert counted == sum(len(file["tensors"]) for file in told.values())


def test_odd_files_read_back_as_torch_reads_them(world: Path, stores: Mapping[str, DumpStore]) -> None:
    """Views, shared storages, DTensors, old formats, types that numpy lacks, classes that exist nowhere."""
    told = {
        path.replace("dump/odd/", "odd0/"): file
        for path, file in truth(world / "torch-save-tree").items()
        if "/odd/" in path
    }
    assert len(told) > 70
    assert list(differences(told, "", stores["odd"])) == []
    (step,) = stores["odd"].select()
    quarantined = step.tables.label("source")[step.tables.label("kind") == "quarantined"]
    assert sorted(quarantined) == ["odd0/truncated.pt", "odd0/zero_bytes.pt"]


def test_tensors_that_consist_of_others_have_their_parts(stores: Mapping[str, DumpStore]) -> None:
    found: dict[str, list[str]] = {}
    for tensor in stores["odd"].tensors():
        if tensor.source.replace("odd0/", "dump/odd/") in COMPOSITE:
            found.setdefault(tensor.source, []).append(tensor.op_name)
            assert tensor.attributes["tensor"]["kind"].endswith("tensor")
    assert {source: sorted(names) for source, names in found.items()} == {
        "odd0/nested_tensor.pt": ["nested_tensor.offsets", "nested_tensor.values"],
        "odd0/quantized_per_channel.pt": [
            "quantized_per_channel",
            "quantized_per_channel.scales",
            "quantized_per_channel.zero_points",
        ],
        "odd0/quantized_per_tensor.pt": ["quantized_per_tensor"],
        "odd0/sparse_coo.pt": ["sparse_coo.indices", "sparse_coo.values"],
        "odd0/sparse_csr.pt": [
            "sparse_csr.compressed_indices",
            "sparse_csr.plain_indices",
            "sparse_csr.values",
        ],
    }


def test_views_of_one_storage_are_stored_once(stores: Mapping[str, DumpStore]) -> None:
    shared = {
        tensor.op_name.partition(".")[2]: tensor
        for tensor in stores["odd"].tensors()
        if tensor.source == "odd0/shared_storage.pt"
    }
    assert sorted(shared) == ["flat", "rows", "same", "whole"]
    offsets = {name: tensor._number("offset") for name, tensor in shared.items()}
    assert offsets["whole"] == offsets["flat"] == offsets["same"]
    assert offsets["rows"] == offsets["whole"] + 8
    assert (shared["whole"].read()[2:5] == shared["rows"].read()).all()


def test_values_that_are_no_tensors_are_attributes(stores: Mapping[str, DumpStore]) -> None:
    tensors = {tensor.source: tensor for tensor in stores["odd"].tensors()}
    nested = tensors["odd0/nested.pt"].attributes
    assert (nested["none"], nested["n"], nested["f"]) == (None, 3, 1.5)
    assert (nested["dtype"], nested["size"], nested["bytes"]) == ("torch.bfloat16", [2, 3], "3 bytes")
    local = tensors["odd0/dtensor_rank0.pt"].attributes["tensor"]
    assert (local["placements"], local["global_shape"]) == (["Shard(0)"], [6, 5])
    meta = next(iter(stores["sglang-dumper-nan-dp2"].tensors())).attributes["meta"]
    assert meta["world_size"] == 2


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Step]:
    """The odd files that are whole, and their step."""
    dump, store = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("store")
    shutil.copytree(world / "torch-save-tree" / "odd", dump, dirs_exist_ok=True)
    for name in ("truncated", "zero_bytes"):
        (dump / "odd0" / f"{name}.pt").unlink()
    ingest_directly(dump, store / "run.zarr", layout=ODD_LAYOUT)
    (step,) = open_store(store / "run.zarr").select()
    return dump, step


def test_files_with_views_are_read_back_and_checked_again(whole: tuple[Path, Step]) -> None:
    """So retention may delete them, and a file that changed behind its time is found."""
    dump, step = whole
    (listing,) = find_dump(dump, layout=ODD_LAYOUT).scan({}).listings
    job = ReadBackJob(step.key, step.fingerprint, str(dump), step.address, listing.files)
    verdicts = dict(zip([file.path for file in listing.files], read_back(job).verdicts.tolist(), strict=True))
    assert [path for path, verdict in verdicts.items() if verdict != ReadBackVerdict.SAME] == []
    assert recheck(job) == ()
    shared = next(file for file in listing.files if file.path.endswith("shared_storage.pt"))
    path = dump / shared.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(shared.mtime_ns, shared.mtime_ns))
    try:
        assert recheck(job) == (shared.path,)
    finally:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(shared.mtime_ns, shared.mtime_ns))


def test_places_of_ranks_are_known_from_what_the_dump_tells(stores: Mapping[str, DumpStore]) -> None:
    store = stores["sglang-dumper-nan-dp2"]
    told = store.coordinates()
    assert [told[rank]["dp"] for rank in (0, 1)] == [(0, 2), (1, 2)]
    assert told[1]["tp"] == (0, 1)
    assert {tensor.rank for tensor in store.tensors(rank="tp=0,dp=1", step=0)} == {1}
    assert [step.to_dict()["coordinates"]["dp"] for step in store.select(rank=1)] == [[1, 2]] * 3
    with pytest.raises(UsageError, match="no rank at tp=5") as raised:
        store.select(rank="tp=5")
    assert raised.value.hint == "The store has tp 0; pp 0; dp 0-1; cp 0; ep 0; etp 0; edp 0-1."
    by_name = stores["forward-hook-passes"].coordinates(rank=1)
    assert {axis: place.rank for axis, place in by_name[1].items()} == {"tp": 1, "pp": 0}
    assert stores["tensorrt-llm-like"].coordinates() == {0: {}}


@pytest.mark.parametrize(
    ("role", "names"), [("gradient", "Gradient."), ("weight", "Parameter."), ("loss", "dump.loss.")]
)
def test_roles_are_those_of_the_names(role: str, names: str, stores: Mapping[str, DumpStore]) -> None:
    tensors = stores["sglang-dumper-nan-dp2"].tensors(role=role, step=0)
    assert tensors
    assert all(tensor.name.startswith(names) for tensor in tensors), {tensor.name for tensor in tensors}


def test_tensors_of_onnx_runtime_have_their_ranks_and_names(tmp_path: Path) -> None:
    """As its debug build names them: what is no letter or digit became `_`; the message has the name."""
    values = np.arange(6, dtype="<f4")
    message = number(1, 6) + number(2, 1) + chunk(8, b"/fc.1/output") + chunk(9, values.tobytes())
    for rank in range(2):
        path = tmp_path / "dump" / f"_fc_1_output_rank_{rank}.tensorproto"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(message)
    ingest_directly(tmp_path / "dump", tmp_path / "store")
    store = open_store(tmp_path / "store")
    assert [tensor.rank for tensor in store.tensors()] == [0, 1]
    (tensor,) = store.tensors(rank=1, step=0)
    assert (tensor.name, tensor.full_name) == ("Tensor._fc_1_output.output.0", "/fc.1/output")
    assert tensor.read().tolist() == values.tolist()
