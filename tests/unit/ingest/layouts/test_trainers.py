"""Checkpoints that real trainers wrote: every tensor as torch and safetensors read it, every file whole."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.layouts.detect import find_dump
from ingest.reader.dump_store import DumpStore, open_store
from ingest.reader.mesh import Coordinate
from ingest.steps.events import KeepReason
from tests.deleting import Run
from tests.dumps import unpack
from tests.npy_files import npy_bytes
from tests.pipeline import ingest_directly
from tests.torch_truth import truth
from workers.model import StepKey

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
def stores(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, DumpStore]:
    into = tmp_path_factory.mktemp("stores")
    for name in STEPS:
        ingest_directly(checkpoints / name, into / name)
    return {name: open_store(into / name) for name in STEPS}


def digest(values: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


@pytest.mark.parametrize("name", STEPS)
def test_every_tensor_reads_back_as_torch_and_safetensors_read_it(
    name: str, checkpoints: Path, stores: Mapping[str, DumpStore]
) -> None:
    """By its file, and by the way to it in the file, with which its name ends."""
    left: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {}
    for path, file in truth(checkpoints).items():
        source = path.removeprefix(f"{name}/")
        if source != path and source not in BESIDE:
            for tensor in file["tensors"]:
                left[source, plain(".".join(tensor["key"]))] = tuple(tensor["shape"]), tensor["sha256"]
    assert left
    for tensor in stores[name].tensors():
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
def test_steps_and_ranks_are_those_of_the_names(name: str, stores: Mapping[str, DumpStore]) -> None:
    steps, ranks, layout = STEPS[name]
    store = stores[name]
    keys = {key for key in store.keys if key.step is not None}
    assert keys == {StepKey(rank, step) for step in steps for rank in range(ranks)}
    records = [step.commit.record for step in store.select()]
    assert {part for record in records for part in record.source.layout.split("+")} <= {
        layout,
        "distributed_checkpoint",
    }
    assert {step.commit.summary.status for step in store.select()} == {"complete"}


def test_ranks_have_their_places_in_the_mesh(stores: Mapping[str, DumpStore]) -> None:
    assert stores["zero3"].coordinates() == {
        rank: {"tp": Coordinate(0), "dp": Coordinate(rank)} for rank in range(2)
    }
    assert stores["megatron"].coordinates() == {
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
