"""Dumps that older versions of SGLang, msProbe and TransformerEngine wrote, on CPU."""

from pathlib import Path

import pytest

import ingest
from ingest.reader.dump_store import DumpStore
from tests.stores import ingest_and_open, unpack
from tests.torch_truth import differences, truth


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("older")
    unpack("pt/older-versions", into)
    return into / "older-versions"


def ingested(root: Path, store: Path) -> DumpStore:
    return ingest_and_open(root / "dump", store)


@pytest.mark.parametrize(
    "name", ["sglang-0.4.9", "sglang-0.4.10.post2", "sglang-0.5.9", "transformer-engine-2.15"]
)
def test_every_tensor_and_every_file_is_as_it_was(name: str, dumps: Path, tmp_path: Path) -> None:
    store = ingested(dumps / name, tmp_path / "run.zarr")
    told = truth(dumps / name)
    assert list(differences(told, "dump/", store)) == []
    steps = list(store.select())
    assert sum(step.commit.summary.tensors for step in steps) == sum(len(f["tensors"]) for f in told.values())
    assert sum(step.commit.summary.quarantined for step in steps) == 0
    for step in steps:
        step.export(tmp_path / "exported")
    exported = {path.relative_to(tmp_path / "exported") for path in (tmp_path / "exported").rglob("*.pt")}
    assert exported == {Path(path).relative_to("dump") for path in told}
    for path in exported:
        assert (tmp_path / "exported" / path).read_bytes() == (dumps / name / "dump" / path).read_bytes()


@pytest.mark.parametrize("version", ["0.4.10.post2", "0.5.9"])
def test_pass_of_sglang_is_a_step(version: str, dumps: Path, tmp_path: Path) -> None:
    """It counts from 1. A tensor has the same name in every pass and on every rank."""
    store = ingested(dumps / f"sglang-{version}", tmp_path / "run.zarr")
    assert (store.ranks, store.steps) == ([0, 1], [1, 2, 3])
    names = [[tensor.name for tensor in store.tensors(rank=0, step=step)] for step in store.steps]
    assert names[0] == names[1] == names[2]
    assert names[0][0].startswith("dump.hidden_states.layer_id=0")
    assert len(set(names[0])) == len(names[0])
    origin = ingest.origin(store)
    assert (origin.op_type, origin.rank, origin.step) == ("dump", 1, 3)
    assert str(origin.op_name).startswith("scores")


def test_first_dumper_of_sglang_has_a_directory_for_each_rank(dumps: Path, tmp_path: Path) -> None:
    store = ingested(dumps / "sglang-0.4.9", tmp_path / "run.zarr")
    assert (store.ranks, store.steps) == ([0, 1], [1, 2, 3])
    assert len(store.tensors("dump.attn/out.output.0")) == 6
    origin = ingest.origin(store)
    assert (origin.op_name, origin.rank, origin.step) == ("attn/out", 1, 2)


def test_gradients_of_parameters_of_old_msprobe_are_no_origin(dumps: Path, tmp_path: Path) -> None:
    """Their entries stand behind the forward calls of their modules, and were filled in after all others."""
    store = ingested(dumps / "msprobe-8.1.0", tmp_path / "run.zarr")
    origin = ingest.origin(store)
    assert (origin.op_type, origin.how, origin.step) == ("Torch.log", "born", 2)
    order = [tensor.op_name for tensor in store.tensors(step=2)]
    assert all(name.endswith(".parameters_grad") for name in order[-6:])
    assert order[-1] == "Module.stem.0.Linear.parameters_grad"
