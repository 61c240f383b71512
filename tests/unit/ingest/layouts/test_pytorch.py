"""Dumps of the PyTorch world: their tensors, files and names; checkpoints, and the tree of the recorder."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.api import repair
from ingest.layouts.base import Description, Listing
from ingest.layouts.detect import find_dump
from ingest.layouts.numerics import NotDebugMode, read_log
from ingest.layouts.pytorch import module_type, parse_sglang_names, parse_te_name, parse_vllm_names
from ingest.layouts.recorder import STATISTICS_FILE, STEP_FILE
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.mesh import Coordinate
from ingest.reader.step import Step
from ingest.steps.decide import CompletenessPolicy
from ingest.steps.events import KeepReason
from tests import checker
from tests.damages import flip, only
from tests.dump_data_writer import chunk, number
from tests.services import Run
from tests.stores import ingest_and_open, ingest_directly, npy_bytes, unpack
from tests.torch_truth import COMPOSITE, LAYOUTS, ODD_LAYOUT, differences, truth
from workers.arrays.histogram import Bounds
from workers.dump.formats.distcp import read_metadata
from workers.dump.model import ReportedStatistics, TensorName
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.sketches import HISTOGRAM_TABLE
from workers.tasks.read_back import ReadBackJob, ReadBackVerdict, read_back, recheck

# The dumps of the PyTorch world: every tensor as torch reads it, every file byte for byte.


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
    store = ingest_and_open(tmp_path / "dump", tmp_path / "store")
    assert [tensor.rank for tensor in store.tensors()] == [0, 1]
    (tensor,) = store.tensors(rank=1, step=0)
    assert (tensor.name, tensor.full_name) == ("Tensor._fc_1_output.output.0", "/fc.1/output")
    assert tensor.read().tolist() == values.tolist()


# Names of the dump files of the PyTorch world.


@pytest.mark.parametrize(
    ("tags", "op_type", "op_name", "io", "slot"),
    [
        ("name=non_intrusive__layers.0.attn.inputs.1", "Module.attn", "layers.0.attn", "input", 1),
        ("name=non_intrusive__layers.0.output", "Module.layers", "layers.0", "output", 0),
        ("name=non_intrusive__layers.0.ln.output.1", "Module.ln", "layers.0.ln", "output", 1),
        ("name=non_intrusive__inputs.0", "Module.model", "model", "input", 0),
        ("name=non_intrusive__layers.0.attn.inputs.mask", "Module.attn", "layers.0.attn", "input.mask", 0),
        ("name=non_intrusive__layers.0.attn.inputs.0.1", "Module.attn", "layers.0.attn", "input.0.1", 0),
        ("name=non_intrusive__inputs.ids", "Module.model", "model", "input.ids", 0),
        ("name=non_intrusive__output", "Module.model", "model", "output", 0),
        ("name=param__fc.weight", "Parameter", "fc.weight", "output", 0),
        ("name=grad__param__fc.weight", "Gradient", "fc.weight", "output", 0),
        ("name=grad__non_intrusive__fc.output", "Gradient", "fc.output", "output", 0),
        ("name=grad__attn_k___layer_id=1", "Gradient", "attn_k.layer_id=1", "output", 0),
        ("name=logits___layer_id=3___tp_rank=1", "dump", "logits.layer_id=3", "output", 0),
        ("name=attn/a___b___layer_id=3", "dump", "attn/a___b.layer_id=3", "output", 0),
    ],
)
def test_names_of_sglang(tags: str, op_type: str, op_name: str, io: str, slot: int) -> None:
    name = sglang_name(f"run/step=2___rank=1___dump_index=7___{tags}.pt")
    assert name is not None
    assert (name.op_type, name.op_name, name.io, name.slot) == (op_type, op_name, io, slot)
    assert name.sequence == 7


def sglang_name(path: str) -> TensorName | None:
    return parse_sglang_names([path])[path]


@pytest.mark.parametrize("tags", ["name=logits___dump_index=7", "dump_index=7___name=logits"])
def test_names_of_sglang_that_count_passes(tags: str) -> None:
    """Up to 0.5.9; the name is first up to 0.5.8."""
    name = sglang_name(f"forward_pass_id=2___rank=1___{tags}___layer_id=3.pt")
    assert name is not None
    assert (name.op_name, name.sequence) == ("logits.layer_id=3", 7)


def test_files_of_sglang_without_numbers_are_in_their_order() -> None:
    """Up to 0.4.9; a pass may be unknown."""
    directory = "sglang_dump_1.5_0/forward_pass_id=None"
    names = parse_sglang_names([f"{directory}___name=z.pt", f"{directory}___name=a/b___layer_id=1.pt"])
    assert [name and (name.op_name, name.sequence) for name in names.values()] == [
        ("z", 0),
        ("a/b.layer_id=1", 1),
    ]


def test_tensor_of_a_pass_that_ran_again_is_another_one() -> None:
    again = sglang_name("step=0___rank=0___dump_index=1___name=x___recompute_status=recompute.pt")
    first = sglang_name("step=0___rank=0___dump_index=0___name=x___recompute_status=original.pt")
    assert again is not None
    assert first is not None
    assert (again.graph, first.graph) == ("recompute", "")


def test_processes_that_call_themselves_by_one_rank_are_told_apart() -> None:
    """A rank that is not known is 0. The places in the mesh are in the names if the user wants them there."""
    paths = [f"step=0___rank=0___dump_index=1___name=param__w___tp_rank={place}.pt" for place in range(2)]
    names = parse_sglang_names(paths)
    assert [name and name.op_name for name in names.values()] == ["w.tp_rank=0", "w.tp_rank=1"]


def test_names_of_other_tools() -> None:
    te = parse_te_name("decoder_0_mlp_wgrad.pt")
    assert te is not None
    assert (te.op_name, te.io) == ("decoder_0_mlp.backward", "parameters_grad.weight")
    path = "step_1/model.layers.0/inputs_1_cuda_0.pt"
    vllm = parse_vllm_names({path: "model.layers.0"})[path]
    assert vllm is not None
    assert (vllm.op_type, vllm.io, vllm.slot) == ("Module.layers", "input", 1)
    assert module_type("0.1") == "Module"


def test_ranks_that_log_into_one_directory_are_told_apart() -> None:
    """By their devices: vLLM writes no rank."""
    files = {f"step_1/fc/outputs_{device}.pt": "fc" for device in ("cuda_0", "cuda_1", "cpu")}
    names = parse_vllm_names(files).values()
    assert [name and name.op_name for name in names] == ["fc.cuda_0", "fc.cuda_1", "fc.cpu"]
    assert [name and name.op_type for name in names] == ["Module.fc"] * 3
    del files["step_1/fc/outputs_cuda_1.pt"]
    assert [name and name.op_name for name in parse_vllm_names(files).values()] == ["fc", "fc"]


# A checkpoint of torch.distributed.checkpoint as a dump: names, places of parts, and its bytes.


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("checkpoint")
    unpack("pt/pytorch-logs", into)
    return into / "pytorch-logs" / "dcp-checkpoint" / "dump"


def test_parts_of_all_ranks_make_the_tensors(dump: Path, tmp_path: Path) -> None:
    store = ingest_and_open(dump, tmp_path / "store")
    told = json.loads((dump.parent / "oracle.json").read_text())["state_dict_metadata"]
    tensors = {name: entry for name, entry in told.items() if entry["type"] == "TensorStorageMetadata"}
    for name, entry in tensors.items():
        whole = np.full(entry["size"], np.nan, "f4")
        for tensor in store.tensors(step=2, name=f"Parameter.{name}.output.0"):
            at = tensor.attributes["tensor"]["offsets"]
            place = tuple(slice(begin, begin + n) for begin, n in zip(at, tensor.shape, strict=True))
            assert np.isnan(whole[place]).all()
            whole[place] = tensor.read()
        assert not np.isnan(whole).any(), name
    for step in store.select():
        step.export(tmp_path / "out")
    for file in (path for path in dump.rglob("*") if path.is_file()):
        assert (tmp_path / "out" / file.relative_to(dump)).read_bytes() == file.read_bytes()


def test_checkpoint_without_metadata_is_unfinished(dump: Path, tmp_path: Path) -> None:
    shutil.copytree(dump, tmp_path / "dump")
    (tmp_path / "dump" / "step_2").rename(tmp_path / "dump" / "iter_0000007")
    (tmp_path / "dump" / "iter_0000007" / ".metadata").unlink()
    tree = find_dump(tmp_path / "dump")
    listings = {listing.key: listing for listing in tree.scan({}).listings}
    assert set(listings) == {StepKey(0, 7), StepKey(1, 7)}
    description = tree.describe(listings[StepKey(1, 7)])
    assert description.unfinished == "iter_0000007/.metadata"
    assert "names of the tensors are not known" in description.problems[0].reason


def test_parts_that_a_file_lacks_are_named_although_it_ends_with_a_whole_archive(
    dump: Path, tmp_path: Path
) -> None:
    shutil.copytree(dump, tmp_path / "dump")
    directory = tmp_path / "dump" / "step_2"
    chunks = read_metadata((directory / ".metadata").read_bytes())["__0_0.distcp"]
    *_, size, _ = sorted(chunks)
    with (directory / "__0_0.distcp").open("r+b") as file:
        file.truncate(size)
    tree = find_dump(tmp_path / "dump")
    listings = {listing.key: listing for listing in tree.scan({}).listings}
    assert tree.describe(listings[StepKey(0, 2)]).unfinished == "step_2/__0_0.distcp"
    assert not tree.describe(listings[StepKey(1, 2)]).problems
    ingest_directly(tmp_path / "dump", tmp_path / "store")
    commit = open_store(tmp_path / "store").step(0, 2).commit
    assert commit.record.summary.status == "partial"
    record = str(commit.record)
    assert f"ends at byte {size}, before 2 parts that .metadata names" in record
    assert chunks[size].name in record


def test_file_of_a_rank_that_is_missing_beside_others_of_the_rank_is_named(
    dump: Path, tmp_path: Path
) -> None:
    """All files of another rank may be missing: that rank may be on another host."""
    shutil.copytree(dump, tmp_path / "dump")
    directory = tmp_path / "dump" / "step_2"
    chunks = read_metadata((directory / ".metadata").read_bytes())["__0_0.distcp"]
    (directory / "__1_0.distcp").unlink()
    (directory / "__0_0.distcp").rename(directory / "__0_1.distcp")
    store = ingest_and_open(tmp_path / "dump", tmp_path / "store")
    assert store.step(0, 2).commit.record.summary.status == "partial"
    record = str(store.step(0, 2).commit.record)
    assert f"step_2/__0_0.distcp: is missing: .metadata names {len(chunks)} parts in it" in record
    assert "__1_0.distcp" not in record


# Checkpoints that real trainers wrote: every tensor as torch and safetensors read it, every file whole.


#: The steps and ranks of each checkpoint directory, and the layouts in them.
STEPS: dict[str, tuple[list[int], int, str]] = {
    "hugging_face": ([2, 4, 6, 8], 1, "hugging_face"),
    "accelerate/checkpoints": ([0, 1, 2, 3], 1, "hugging_face"),
    "lightning": ([4, 8], 1, "checkpoint_file"),
    "zero1": ([2, 4], 2, "deepspeed"),
    "zero2": ([2, 4], 2, "deepspeed"),
    "zero3": ([2, 4], 2, "deepspeed"),
    "megatron": ([100, 200], 4, "megatron"),
    "verl": ([10, 20], 2, "verl"),
    "olmo": ([1000, 2000], 1, "olmo"),
    "fairseq": ([500, 1000], 1, "checkpoint_file"),
    "nanogpt": ([0], 1, "checkpoint_file"),
}
#: Files of tensors beside the numbered checkpoints: run files.
BESIDE = ("model.safetensors", "last.ckpt", "checkpoint_last.pt", "best/epoch=01-loss=0.14.ckpt")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("checkpoints")
    unpack("pt/trainer-checkpoints", into)
    return into / "trainer-checkpoints"


@pytest.fixture(scope="module")
def trained(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, DumpStore]:
    into = tmp_path_factory.mktemp("trained")
    for name in STEPS:
        ingest_directly(checkpoints / name, into / name)
    return {name: open_store(into / name) for name in STEPS}


def digest(values: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


@pytest.mark.parametrize("name", STEPS)
def test_every_tensor_reads_back_as_torch_and_safetensors_read_it(
    name: str, checkpoints: Path, trained: Mapping[str, DumpStore]
) -> None:
    """By its file, and by the way to it in the file, with which its name ends."""
    left: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {}
    for path, file in truth(checkpoints).items():
        source = path.removeprefix(f"{name}/")
        if source != path and source not in BESIDE:
            for tensor in file["tensors"]:
                left[source, plain(".".join(tensor["key"]))] = tuple(tensor["shape"]), tensor["sha256"]
    assert left
    for tensor in trained[name].tensors():
        if not tensor.source.endswith(".distcp"):
            name_of = f".{plain(tensor.op_name)}"
            ways = [way for source, way in left if source == tensor.source and name_of.endswith(f".{way}")]
            told = left.pop((tensor.source, max(ways, key=len)))
            assert told == (tensor.shape, digest(tensor.read())), tensor
    assert left == {}


def plain(way: str) -> str:
    """Return a way without the quotes in the text of a tuple."""
    return way.replace("'", "")


@pytest.mark.parametrize("name", STEPS)
def test_steps_and_ranks_are_those_of_the_names(name: str, trained: Mapping[str, DumpStore]) -> None:
    steps, ranks, layout = STEPS[name]
    store = trained[name]
    keys = {key for key in store.keys if key.step is not None}
    assert keys == {StepKey(rank, step) for step in steps for rank in range(ranks)}
    records = [step.commit.record for step in store.select()]
    assert {part for record in records for part in record.source.layout.split("+")} <= {
        layout,
        "distributed_checkpoint",
    }
    assert {step.commit.summary.status for step in store.select()} == {"complete"}


def test_ranks_have_their_places_in_the_mesh(trained: Mapping[str, DumpStore]) -> None:
    assert trained["zero3"].coordinates() == {
        rank: {"tp": Coordinate(0), "dp": Coordinate(rank)} for rank in range(2)
    }
    assert trained["megatron"].coordinates() == {
        rank: {"tp": Coordinate(rank % 2), "pp": Coordinate(rank // 2)} for rank in range(4)
    }


def test_files_of_deepspeed_belong_to_their_ranks_anywhere(checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints / "hugging_face" / "checkpoint-2", tmp_path / "run" / "checkpoint-2")
    inner = tmp_path / "run" / "checkpoint-2" / "global_step2"
    shutil.copytree(checkpoints / "zero2" / "global_step2", inner)
    (inner / "notes.txt").write_text("x")
    scan = find_dump(tmp_path / "run").scan({})
    listings = {listing.key: [file.path for file in listing.files] for listing in scan.listings}
    assert listings.keys() == {StepKey(0, 2), StepKey(1, 2)}
    assert listings[StepKey(1, 2)] == ["checkpoint-2/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"]
    files = [file for files in listings.values() for file in files]
    assert sorted(files) == sorted(
        str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()
    )


def test_checkpoints_beside_a_dump_are_not_a_part_of_it(checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints / "hugging_face", tmp_path / "job")
    shutil.rmtree(tmp_path / "job" / "checkpoint-8" / "pytorch_model_fsdp_0")
    shutil.copytree(checkpoints / "nanogpt", tmp_path / "job" / "out")
    kernel = tmp_path / "job" / "dump" / "rank_0" / "Net" / "0" / "3"
    kernel.mkdir(parents=True)
    (kernel / "Add.Add-op1.0.0.1.output.0.DefaultFormat.npy").write_bytes(npy_bytes(np.zeros(2, "f4")))
    dump = find_dump(tmp_path / "job")
    assert dump.root == tmp_path / "job" / "dump"
    shutil.rmtree(dump.root)
    assert find_dump(tmp_path / "job").root == tmp_path / "job"


def test_directory_of_such_a_name_without_a_checkpoint_is_none(tmp_path: Path) -> None:
    for name in ("checkpoint-2", "global_step2", "step2-unsharded", "global_step_2"):
        (tmp_path / "dump" / name).mkdir(parents=True)
        (tmp_path / "dump" / name / "notes.txt").write_text("x")
    with pytest.raises(Exception, match="no dump of a known layout"):
        find_dump(tmp_path / "dump")


def test_checkpoints_are_never_deleted(checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints / "olmo", tmp_path / "run")
    report = Run(tmp_path / "run", tmp_path / "store").ingest()
    assert report.deleted == []
    assert {event.key: event.reason for event in report.source_kept} == {
        StepKey(0, 1000): KeepReason.CHECKPOINT,
        StepKey(0, 2000): KeepReason.NEWEST,
    }
    listed = [path for path in (checkpoints / "olmo").rglob("*") if path.is_file()]
    assert len(listed) == sum(path.is_file() for path in (tmp_path / "run").rglob("*"))


# The tree of the recorder, as a job that runs, died, or was tampered with leaves it.


STEP = "recorded/rank_1.tp_rank_1_of_2/step_8"
LINE: dict[str, Any] = {
    "op_type": "Module.Linear",
    "op_name": "fc",
    "io": "output",
    "slot": 0,
    "sequence": 3,
    "dtype": "bfloat16",
    "shape": [2, 2],
    "statistics": {"count": 4, "nan_count": 1, "mean": None, "min": -1.5},
}


def write(root: Path, *lines: Any, files: dict[str, bytes] | None = None) -> Path:
    step = root / STEP
    step.mkdir(parents=True)
    text = "".join(line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines)
    (step / STATISTICS_FILE).write_text(text)
    for name, content in (files or {}).items():
        (step / name).write_bytes(content)
    return root


def described(root: Path) -> tuple[Listing, Description]:
    tree = find_dump(root)
    (listing,) = (listing for listing in tree.scan({}).listings if listing.files)
    return listing, tree.describe(listing)


@pytest.mark.parametrize("file", ["", "recorded-tensor-3.raw"])
def test_how_a_dtensor_lies_on_its_mesh_is_an_attribute(file: str, tmp_path: Path) -> None:
    """With elements and without."""
    dtensor = {
        "placements": ["Shard(0)"],
        "global_shape": [4, 2],
        "mesh_shape": [2],
        "mesh_dim_names": ["tp"],
        "mesh_coordinate": [1],
    }
    line = LINE | {"file": file, "dtensor": dtensor}
    dump = write(tmp_path / "dump", line, files={file: bytes(8)} if file else {})
    ingest_directly(dump, tmp_path / "run.zarr")
    (tensor,) = ingest.open_store(tmp_path / "run.zarr").tensors()
    assert tensor.attributes == {"tensor": dtensor}


def test_elements_count_instead_of_the_line_if_they_are_there(tmp_path: Path) -> None:
    header = json.dumps({"k": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    elements = len(header).to_bytes(8, "little") + header + b"\x80\x3f\x00\x40"
    with_file = LINE | {"file": "recorded-tensors-00000.safetensors", "key": "k"}
    lost = LINE | {"op_name": "lost", "file": "recorded-tensors-00001.safetensors", "key": "k"}
    dump = write(tmp_path / "dump", with_file, lost, files={"recorded-tensors-00000.safetensors": elements})
    (summary,) = ingest_directly(dump, tmp_path / "run.zarr")
    assert (summary.tensors, summary.statistics_only, summary.status) == (1, 1, "complete")
    tensors = ingest.open_store(tmp_path / "run.zarr").tensors()
    fc, lost_tensor = sorted(tensors, key=lambda tensor: tensor.op_name)
    assert (fc.op_name, fc.read().tolist(), fc.statistics.mean) == ("fc", [1, 2], 1.5)
    assert (lost_tensor.op_name, lost_tensor.statistics.nan_count) == ("lost", 1)


def test_a_step_is_unfinished_until_its_last_file_is_there(tmp_path: Path) -> None:
    root = write(tmp_path / "dump", LINE)
    listing, description = described(root)
    assert description.unfinished == f"{STEP}/{STATISTICS_FILE}"
    assert listing.layout == "recorder"
    (root / STEP / STEP_FILE).write_text('{"tensors":1}')
    assert described(root)[1].unfinished == ""
    assert CompletenessPolicy().quiet_s > 0


@pytest.mark.parametrize(
    "bad",
    [
        "not JSON\n",
        '{"op_type": "A"}\n',
        LINE | {"shape": [-1]},
        LINE | {"shape": [1] * 100},
        LINE | {"slot": -5},
        LINE | {"dtype": "float3"},
        LINE | {"sequence": 1 << 70},
        LINE | {"file": "../../other.npy"},
        LINE | {"statistics": {"mean": "nan"}},
    ],
)
def test_a_line_that_the_recorder_does_not_write_is_left_out_and_counted(bad: Any, tmp_path: Path) -> None:
    _, description = described(write(tmp_path / "dump", bad, LINE))
    assert [report.name.op_name for report in description.reported] == ["fc"]
    (problem,) = description.problems
    assert str(problem) == (
        f"{STEP}/{STATISTICS_FILE}: 1 of its lines are not those of the recorder, and are left out"
    )


# Calls that DebugMode logs: their tensors, what they are made of, and where they were called.


def scalar(value: Any) -> dict[str, Any]:
    return {"type": "scalar", "value": value}


def call(op: str = "aten::mm", **entry: Any) -> dict[str, Any]:
    hashes = [[name, entry.pop(name)] for name in ("input_hash", "hash") if name in entry]
    return {"type": "op", "call_depth": 2, "op_name": op, "log": {"type": "dict", "items": hashes}, **entry}


def rows_of(*logs: dict[str, Any]) -> dict[str, ReportedStatistics]:
    rows = read_log("eager.json", json.dumps({"logs": list(logs)}).encode())
    return {f"{row.name.op_name}.{row.name.io}.{row.name.slot}": row for row in rows}


def arguments(*values: Any, **keywords: Any) -> dict[str, Any]:
    positional = {"type": "tuple", "items": [scalar(value) for value in values]}
    named = {"type": "dict", "items": [[name, scalar(value)] for name, value in keywords.items()]}
    return {"type": "tuple", "items": [positional, named]}


def test_tensors_have_types_shapes_and_hashes() -> None:
    rows = rows_of(
        call(
            args_str="t: bf16[2, 3], 0.5, dt: i64[]| R",
            input_hash=arguments(1.5, None, 7),
            output_str="  ->  ('t: f32[4]', 't: f8e4m3fn[0]')",
            hash={"type": "tuple", "items": [scalar("nan"), scalar(0.0)]},
        )
    )
    first, second = rows["op_0_mm.input.0"], rows["op_0_mm.input.1"]
    assert (first.dtype, first.shape, json.loads(first.attributes)["hash"]) == ("bfloat16", (2, 3), "l1:1.5")
    assert (second.dtype, second.shape, json.loads(second.attributes)["hash"]) == ("int64", (), "xor:7")
    assert rows["op_0_mm.output.0"].statistics.nan_count == 1
    assert rows["op_0_mm.output.1"].dtype == "float8_e4m3fn"


def test_numbers_of_tensors_tell_who_wrote_what_was_read() -> None:
    rows = rows_of(
        call(output_str=" -> t$3: f32[2]", hash=scalar(1.0)),
        call("aten::add.Tensor", args_str="t$3: f32[2], 1", input_hash=arguments(1.0, None)),
    )
    assert json.loads(rows["op_1_add.input.0"].attributes)["produced_by"] == "op_0_mm"


@pytest.mark.parametrize(
    ("op", "io"), [("aten::empty_strided", "output"), ("aten::copy_", "input"), ("aten::mm.out", "out")]
)
def test_memory_that_nothing_was_written_to_does_not_count(op: str, io: str) -> None:
    rows = rows_of(
        call(
            op,
            args_str="t: f32[2]",
            input_hash=arguments(1e30, out=1e30),
            output_str=" -> t: f32[2]",
            hash=scalar(INF),
        )
    )
    plain = op.partition("::")[2].partition(".")[0]
    if io == "out":
        assert set(rows) >= {f"op_0_{plain}.input.0"}
        assert f"op_0_{plain}.input.1" not in rows
    else:
        before = rows[f"op_0_{plain}.before.0"]
        assert math.isnan(before.statistics.pos_inf_count)


INF = math.inf


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"logs": 3}', b"[" * 100_000])
def test_other_content_is_refused(content: bytes) -> None:
    with pytest.raises(NotDebugMode):
        list(read_log("x.json", content))


COUNTS = {"positive_count": 3, "negative_count": 2, "zero_count": 1, "pos_inf_count": 1, "neg_inf_count": 0}
TOLD: dict[str, Any] = LINE | {
    "shape": [6],
    "statistics": {"count": 6, "nan_count": 0, "min": -3.0, "max": 6.0, **COUNTS},
    "histogram": [[0, 1, 0], [1, 0, 2], [2, 1, 0]],
}


@pytest.mark.parametrize(
    "wrong",
    [
        [[0, 1, 0], [1, 0, 2]],
        [[128, 2, 2]],
        [[0, -1, 4], [1, 3, -2]],
        [[0, 1 << 61, 0], [1, 0, 2], [2, 1 << 61, 0]],
    ],
)
def test_a_histogram_counts_unless_it_contradicts_the_statistics(wrong: Any, tmp_path: Path) -> None:
    """Those of zeros alone have no bins; of another without any, nothing is known."""
    zeros = {"count": 2, "zero_count": 2} | dict.fromkeys(
        ("nan_count", "positive_count", "negative_count", "pos_inf_count", "neg_inf_count"), 0
    )
    lines = [
        TOLD,
        TOLD | {"op_name": "wrong", "histogram": wrong},
        TOLD | {"op_name": "without", "histogram": []},
        TOLD | {"op_name": "zeros", "shape": [2], "statistics": zeros, "histogram": []},
    ]
    dump = write(tmp_path / "dump", *lines, files={STEP_FILE: b'{"tensors": 4}'})
    ingest_directly(dump, tmp_path / "run.zarr", sketches=True)
    store = ingest.open_store(tmp_path / "run.zarr")
    known = {tensor.op_name: histogram for tensor in store.tensors() if (histogram := tensor.histogram)}
    assert known.keys() == {"fc", "zeros"}
    assert known["fc"].finite == 5
    assert (known["fc"].quantile(0).low, known["fc"].quantile(0.75)) == (-3, Bounds(1, 2))
    assert known["zeros"].to_dict() == {"zeros": 2, "bins": []}
    assert not list(store.verify())


def test_a_damaged_histogram_without_elements_comes_from_the_dump(tmp_path: Path) -> None:
    dump = write(tmp_path / "dump", TOLD, files={STEP_FILE: b'{"tensors": 1}'})
    store = tmp_path / "run.zarr"
    ingest_directly(dump, store, sketches=True)
    before = checker.objects(store)
    flip(only(store, f"rank_1/step_8/*/{HISTOGRAM_TABLE.chunk}"))
    assert len(list(ingest.open_store(store).verify())) == 1
    # The view does not exclude what it cannot tell.
    ingest.consolidate(store)
    assert ingest.open_store(store).consolidated().table("without_histogram").tolist() == [[1]]
    assert repair(store, apply=True).is_clean
    assert checker.objects(store).items() >= before.items()
