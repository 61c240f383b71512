"""Real dump systems of the PyTorch world: msProbe (with the loop closed), SGLang, AOTInductor and others."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.reader.dump_store import DumpStore
from tests.stores import ingest_and_open, ingest_directly
from tests.torch_truth import differences, truth

PROGRAM = Path(__file__).parent.parent / "torch_tools_program.py"


@pytest.fixture(scope="module")
def tool(
    torch_tools: None,  # noqa: ARG001  (they must be there)
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, Path], None]]:
    """Return what runs a tool with a file or directory. One process imports PyTorch for all runs."""
    directory = tmp_path_factory.mktemp("tools")
    log = (directory / "log").open("w+")
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=directory,
    ) as process:

        def run(name: str, argument: Path) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{name} {argument}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n", (directory / "log").read_text()[-3000:]

        yield run
        assert process.stdin is not None
        process.stdin.close()
    log.close()


def config(task: str, directory: Path) -> str:
    of_task = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    return json.dumps(
        {"task": task, "dump_path": str(directory), "rank": [], "step": [1, 2], "level": "mix", task: of_task}
    )


def sizes(dump: Path) -> list[int]:
    return [path.stat().st_size for path in dump.rglob("*.pt")]


def test_msprobe_dumps_what_next_asked_for(tool: Callable[[str, Path], None], tmp_path: Path) -> None:
    """From statistics alone to the elements of the operator and its inputs, at a fraction of the bytes."""
    for task in ("statistics", "tensor"):
        (tmp_path / f"{task}.json").write_text(config(task, tmp_path / task))
        tool("msprobe", tmp_path / f"{task}.json")
    assert not sizes(tmp_path / "statistics")
    ingest_directly(tmp_path / "statistics", tmp_path / "first.zarr")
    answer = ingest.next_dump(ingest.open_store(tmp_path / "first.zarr"))
    (tmp_path / "next.json").write_text(answer.config.text)
    tool("msprobe", tmp_path / "next.json")
    assert ingest.check_dump_config(tmp_path / "next.json").findings == ()
    second = tmp_path / "statistics_next"
    written, full = sizes(second), sum(sizes(tmp_path / "tensor"))
    assert sum(written) < 0.02 * full
    assert 1 / 1.5 < answer.estimate.nbytes / sum(written) < 1.5
    assert 1 / 1.5 < answer.estimate.files / len(written) < 1.5
    assert 1 / 1.5 < answer.estimate.full_nbytes / full < 1.5
    ingest_directly(second, tmp_path / "second.zarr")
    origin = ingest.origin(ingest.open_store(tmp_path / "second.zarr"))
    assert (origin.op_type, origin.how, origin.step) == ("Torch.log", "born", 2)
    assert [tensor.io for tensor in origin.inputs] == ["input"]
    assert origin.why is not None
    assert origin.source is not None
    assert "the planted line" in origin.source.code


def test_statistics_of_nvdlfw_inspect_are_those_of_the_tensors(
    tool: Callable[[str, Path], None], tmp_path: Path
) -> None:
    """To the four decimals that it prints. Its messages are kept with the log."""
    tool("nvdlfw", tmp_path)
    store = ingest_and_open(tmp_path / "dump", tmp_path / "run.zarr")
    assert store.steps == [0, 1, 2]
    for step in store.steps:
        with np.load(tmp_path / f"{step}.npz") as told:
            for tensor, name in (("input", "activation"), ("parameters.weight", "weight")):
                (found,) = store.tensors(f"Module.decoder.fc1.{tensor}.0", step=step)
                values = told[name]
                for field, expected in (
                    ("min", values.min()),
                    ("max", values.max()),
                    ("mean", values.mean()),
                ):
                    if np.isfinite(expected):
                        assert getattr(found.statistics, field) == pytest.approx(expected, abs=0.51e-4)
    assert ingest.origin(store).step == 2
    store.step(0, None).export(tmp_path / "kept")
    for path in (tmp_path / "dump").rglob("*.log"):
        kept = tmp_path / "kept" / path.relative_to(tmp_path / "dump")
        assert kept.read_bytes() == path.read_bytes()


def read_back(directory: Path) -> DumpStore:
    """Ingest what a tool dumped; check every tensor against torch, and every file."""
    store = ingest_and_open(directory / "dump", directory / "run.zarr")
    told = truth(directory)
    assert list(differences(told, "dump/", store)) == []
    steps = list(store.select())
    assert sum(step.commit.summary.tensors for step in steps) == sum(len(f["tensors"]) for f in told.values())
    assert sum(step.commit.summary.quarantined for step in steps) == 0
    for step in steps:
        step.export(directory / "exported")
    for path in told:
        exported = directory / "exported" / Path(path).relative_to("dump")
        assert exported.read_bytes() == (directory / path).read_bytes()
    return store


def test_dump_of_sglang_names_the_module_in_which_the_nan_was_born(
    tool: Callable[[str, Path], None], tmp_path: Path
) -> None:
    """Although all of its output is NaN, and so are the gradients."""
    tool("sglang_dumper", tmp_path)
    store = read_back(tmp_path)
    assert store.steps == [0, 1, 2]
    (loss,) = store.tensors("dump.loss.output.0", step=1)
    assert loss.attributes["meta"]["dims"] == "# dp:partial"
    assert store.tensors("Gradient.scores.fc.weight.output.0", step=0)[0].shape == (8, 96)
    # A keyword argument is an input, not the output of an operator without inputs.
    assert [tensor.io for tensor in store.tensors("Module.scores.*", step=0)] == [
        "input",
        "input.scale",
        "output",
    ]
    origin = ingest.origin(store)
    assert (origin.op_type, origin.op_name, origin.how, origin.step) == ("Module.scores", "scores", "born", 2)
    answer = ingest.next_dump(store, directory=str(tmp_path / "second/dump"))
    (tmp_path / "second").mkdir()
    (tmp_path / "second/dumper.env").write_text(answer.config.text)
    tool("sglang_dumper", tmp_path / "second")
    written, full = sizes(tmp_path / "second"), sum(sizes(tmp_path / "dump"))
    assert sum(written) < 0.02 * full
    assert 1 / 1.5 < answer.estimate.nbytes / sum(written) < 1.5
    assert answer.estimate.files == len(written)
    second = ingest.origin(read_back(tmp_path / "second"))
    assert (second.op_name, second.how, second.step) == ("scores", "born", 2)


def test_passes_of_the_forward_hooks_of_sglang(tool: Callable[[str, Path], None], tmp_path: Path) -> None:
    """The output of `model` is in the file of the next pass."""
    tool("sglang_hooks", tmp_path)
    store = read_back(tmp_path)
    assert [len(store.tensors(step=step)) for step in store.steps] == [9, 10, 10]
    (output,) = store.tensors("Module.model.model.output.0", step=1)
    assert output.graph == "previous_pass"


def test_tensors_that_transformer_engine_dumps(tool: Callable[[str, Path], None], tmp_path: Path) -> None:
    """By its own writer. A quantised tensor is the arguments of the function that makes it again."""
    tool("transformer_engine", tmp_path)
    store = read_back(tmp_path)
    assert store.steps == [0, 1, 2]
    assert {(t.op_name, t.io, t.dtype, t.shape) for t in store.tensors(step=0)} == {
        ("decoder_fc1", "input", "float32", (32, 64)),
        ("decoder_fc1.quantized.0", "input", "uint8", (32, 64)),
        ("decoder_fc1.quantized.2", "input", "float32", (1,)),
        ("decoder_fc1", "parameters.weight", "float32", (128, 64)),
        ("decoder_fc1.quantized.0", "parameters.weight", "uint8", (128, 64)),
        ("decoder_fc1.quantized.1", "parameters.weight", "uint8", (128, 4)),
        ("decoder_fc1.quantized.2", "parameters.weight", "uint8", (128, 64)),
        ("decoder_fc1.quantized.3", "parameters.weight", "uint8", (4, 128)),
        ("decoder_fc1", "output", "float32", (32, 128)),
    }
    (plain,) = (t for t in store.tensors(step=0) if (t.op_name, t.io) == ("decoder_fc1", "input"))
    assert plain.attributes["quantized"]["1"] == {
        "class": "transformer_engine.pytorch.constants.DType",
        "0": 7,  # kFloat8E4M3
    }
    origin = ingest.origin(store)
    assert (origin.op_name, origin.how, origin.step) == ("decoder_fc1", "born", 2)


def test_buffers_that_aot_inductor_prints(tool: Callable[[str, Path], None], tmp_path: Path) -> None:
    tool("aot_inductor", tmp_path)
    store = read_back(tmp_path)
    kernel = "aoti_torch_cpu_mm_out"
    names = {f"{when}.{buffer}" for when in ("before", "output") for buffer in ("arg1_1", "buf0")}
    assert {tensor.io for tensor in store.tensors(f"{kernel}.*")} == names
    (product,) = store.tensors("*.output.buf0.*")
    np.testing.assert_array_equal(product.read(), np.load(tmp_path / "product.npy"))
