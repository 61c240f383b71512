"""Real programs that differ: eager against compiled, and PyTorch against MindSpore with exchanged axes."""

import json
import shutil
from pathlib import Path

import pytest

from ingest.questions.compare.run import compare
from tests.dumps import DumpLibrary, unpack
from tests.pipeline import ingest_directly


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores of what DebugMode logged of one net: eager, compiled by Inductor, and that with a mistake."""
    directory = tmp_path_factory.mktemp("logs")
    unpack("pt/pytorch-logs", directory)
    dump = directory / "pytorch-logs" / "debugmode-json" / "dump"
    for name in ("eager", "compile_inductor", "mistake"):
        (directory / name).mkdir()
    shutil.copy(dump / "eager.json", directory / "eager")
    shutil.copy(dump / "compile_inductor.json", directory / "compile_inductor")
    text = (dump / "compile_inductor.json").read_text()
    told = json.loads(text)
    last = [log for log in told["logs"] if (log.get("op_name") or "").startswith("aten::addmm")][-1]
    right = last["log"]["items"][-1][1]["value"]
    (directory / "mistake" / "mistake.json").write_text(text.replace(repr(right), repr(right * 1.25)))
    stores = {}
    for name in ("eager", "compile_inductor", "mistake"):
        stores[name] = directory / f"{name}.zarr"
        ingest_directly(directory / name, stores[name])
    return stores


def test_compiled_code_does_the_same_as_eager_code(logs: dict[str, Path]) -> None:
    found = compare(logs["compile_inductor"], logs["eager"], ignore_unmatched=True)
    assert (found.verdict, found.first) == ("close", None)
    programs = found.to_dict()["programs"]
    assert (programs["operators_a"], programs["operators_b"], programs["common"]) == (16, 32, 15)
    fused = {gap["name"].split(".")[1] for gap in programs["gaps"] if gap["why"] == "fused"}
    assert {"native_layer_norm", "gelu", "add"} <= fused
    assert "A ran 16 operators, B 32, and 15 are the same" in " ".join(found.notes)


def test_two_frameworks_do_the_same(torch: object, dumps: DumpLibrary, tmp_path: Path) -> None:
    """PyTorch against MindSpore: one step of training from the same weights."""
    assert torch is not None
    from tests.torch_lenet import record_lenet  # deferred: it imports torch, which may be missing

    reference, store = tmp_path / "mindspore.zarr", tmp_path / "torch.zarr"
    ingest_directly(dumps["mindspore-2-versions"] / "lenet-2.10.0", reference)
    record_lenet(reference, tmp_path / "dump")
    ingest_directly(tmp_path / "dump", store)
    found = compare(f"{store}@step=0", f"{reference}@step=0", keep_equal=True, ignore_unmatched=True)
    assert found.is_within, [(row.name, row.reason) for row in found.worst(5)]
    rows = {row.name_a: row for row in found.tensors if row.name_a and row.name_b}
    assert rows["Torch.conv2d.features.0.0.conv2d.0.output.0"].name_b.startswith("Conv2D.")
    assert {row.matched for row in rows.values()} == {"content"}
    assert len(rows) >= 55
