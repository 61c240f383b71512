"""Programs that differ: of two versions or frameworks, compiled, or dumped before an update and after it."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare.html import to_html
from ingest.questions.compare.mapping import load_mapping
from ingest.questions.compare.matching import mapping_text
from ingest.questions.compare.result import Comparison, Verdict
from ingest.questions.compare.run import compare
from tests.dumps import DumpLibrary, unpack
from tests.made_runs import MadeRun, Values
from tests.npy_files import MadeDump
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


NETWORKS = ("lenet", "explode")


@pytest.fixture(scope="module")
def stores(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """By network: a store of version 2.0.0, and one of 2.10.0."""
    directory = tmp_path_factory.mktemp("versions")
    for path in dumps["mindspore-2-versions"].iterdir():
        ingest_directly(path, directory / f"{path.name}.zarr")
    return {
        network: (f"{directory}/{network}-2.0.0.zarr", f"{directory}/{network}-2.10.0.zarr")
        for network in NETWORKS
    }


@pytest.fixture(scope="module")
def compared(stores: dict[str, tuple[str, str]]) -> dict[str, Comparison]:
    """By network: version 2.0.0 compared with 2.10.0."""
    return {network: compare(*both, keep_equal=True) for network, both in stores.items()}


@pytest.mark.parametrize(
    ("network", "names", "paired"), [("lenet", (155, 195, 3), 152), ("explode", (140, 210, 4), 134)]
)
def test_all_pairs_are_the_same_tensor(
    compared: dict[str, Comparison], network: str, names: tuple[int, int, int], paired: int
) -> None:
    """The same weights and inputs give the same numbers: a wrong pair would differ."""
    comparison = compared[network]
    assert (comparison.names.a, comparison.names.b, comparison.names.common) == names
    counts = comparison.counts
    assert counts.keys() <= {Verdict.EQUAL, Verdict.CLOSE, Verdict.ONLY_A, Verdict.ONLY_B}
    steps = len(comparison.steps)
    assert counts[Verdict.EQUAL] + counts[Verdict.CLOSE] == paired * steps
    assert counts[Verdict.ONLY_A] == (names[0] - paired) * steps
    assert comparison.first is None


def test_every_guess_is_marked(compared: dict[str, Comparison]) -> None:
    comparison = compared["lenet"]
    by_how = Counter(tensor.matched for tensor in comparison.tensors if tensor.guessed)
    assert by_how == comparison.guessed == {"content": 130, "spelling": 16, "producers": 3}
    assert {tensor.matched for tensor in comparison.tensors if not tensor.guessed} == {"", "exact"}
    row = comparison.to_dict()
    assert row["names"] == {"a": 155, "b": 195, "common": 3}
    assert any(tensor["guessed"] and tensor["matched"] == "content" for tensor in row["tensors"])
    assert "B knows 3 of 155 names of A" in comparison.notes[0]
    assert "149 pairs of tensors are guesses (" in " ".join(comparison.notes)
    page = to_html(comparison)
    assert page.count("guess: content") == 130
    assert "names of A" in page


def test_what_is_not_paired_says_why(compared: dict[str, Comparison]) -> None:
    """All but two parameters, which 2.0.0 does not dump: the counter of steps, and the labels."""
    for comparison in compared.values():
        alone = {
            tensor.name_a or tensor.name_b: tensor.reason
            for tensor in comparison.tensors
            if tensor.verdict in (Verdict.ONLY_A, Verdict.ONLY_B)
        }
        unexplained = {name for name, reason in alone.items() if not reason}
        assert unexplained <= {"Parameter.global_step.output.0", "Parameter.inputs1.output.0"}
    reason = alone["ReduceMean.ReduceMean-op78.input.1"]
    assert reason.startswith("ReduceMean.Default_")
    assert reason.endswith(" of B, its counterpart, does not have it")


def test_what_was_fused_is_compared_by_its_output(compared: dict[str, Comparison]) -> None:
    fused = [tensor for tensor in compared["lenet"].tensors if tensor.op_type.endswith("Fusion")]
    pairs = {tensor.name_a.split(".")[0]: tensor.name_b for tensor in fused if tensor.name_b}
    assert pairs["MatMulBiasAddFusion"].startswith(
        "BiasAdd.Default_network-WithLossCell__backbone-LeNet5_fc3-"
    )
    assert pairs["MatMulBiasAddReluFusion"].startswith("ReLU.")
    inputs = {tensor.name_a: tensor.name_b for tensor in fused if tensor.name_b and tensor.io == "input"}
    # What the parts read is read by the whole: by content.
    assert {name.split(".")[0] for name in inputs.values()} == {"MatMul", "BiasAdd"}


def test_the_order_of_execution_may_differ(compared: dict[str, Comparison]) -> None:
    """Content tells the gradients of two biases apart in the first step; in the second it is another."""
    tensors = compared["explode"].tensors
    biases = [tensor for tensor in tensors if tensor.op_type == "BiasAddGrad" and tensor.name_a]
    by_name: dict[str, set[str]] = {tensor.name_a: set() for tensor in biases}
    for tensor in biases:
        by_name[tensor.name_a].add(tensor.name_b)
    assert len(by_name) == 6
    assert all(len(names) == 1 for names in by_name.values())
    assert {tensor.verdict for tensor in biases} <= {Verdict.EQUAL, Verdict.CLOSE}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_suggested_mapping_gives_the_same_answer(
    stores: dict[str, tuple[str, str]], compared: dict[str, Comparison], network: str, tmp_path: Path
) -> None:
    path = tmp_path / "map.yml"
    comparison = compared[network]
    path.write_text(mapping_text(comparison.guesses, {"a": comparison.a, "b": comparison.b}))
    again = compare(*stores[network], mapping=load_mapping(path), keep_equal=True)
    assert again.counts == comparison.counts
    assert not again.guessed
    assert [(tensor.name_a, tensor.name_b) for tensor in again.tensors] == [
        (tensor.name_a, tensor.name_b) for tensor in comparison.tensors
    ]


def test_one_version_is_not_guessed_at(stores: dict[str, tuple[str, str]]) -> None:
    """Names that most of both sides share are meant as they are."""
    same = compare(stores["lenet"][0], stores["lenet"][0])
    assert (same.verdict, same.guessed) == ("equal", {})


def test_other_releases_too(dumps: DumpLibrary, tmp_path: Path) -> None:
    for version in ("2.0.0", "2.7.1"):
        ingest_directly(dumps[f"mindspore-{version}-cpu-sync"] / "lenet", tmp_path / f"{version}.zarr")
    comparison = compare(tmp_path / "2.0.0.zarr@0,0", tmp_path / "2.7.1.zarr@0,0")
    assert comparison.counts[Verdict.ONLY_A] == 4
    assert comparison.guessed == {"scope": 6, "spelling": 8, "producers": 49}


RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(4, 5)).astype(np.float32)
DATA = RNG.normal(size=(3, 4)).astype(np.float32)
NAMES = {
    "old": ("fc.weight", "MatMul.MatMul-op1", "Mul.Mul-op3"),
    "new": ("fc_weight", "MatMul.Default_net-Net_fc-Dense_MatMul-op0", ""),
}


def program(root: Path, version: str, dumped: Values, read: Values) -> Path:
    """Dump a program of one of two versions: a parameter, and the operator that reads it."""
    run = MadeRun(MadeDump(root))
    parameter, product, other = NAMES[version]
    run.parameter(parameter, dumped)
    run.op(product, [DATA, read], [DATA @ read])
    if other:  # without an operator of one side, these are not two programs
        run.op(other, [DATA], [DATA * 2])
    return root


@pytest.mark.parametrize("in_store", [True, False], ids=["stores", "dumps"])
@pytest.mark.parametrize("updated", ["old", "new"])
def test_a_parameter_that_is_read_alike_may_have_been_updated(
    tmp_path: Path, updated: str, *, in_store: bool
) -> None:
    sides = []
    for version in NAMES:
        dump = program(tmp_path / version, version, WEIGHT + 0.1 * (version == updated), WEIGHT)
        if in_store:
            ingest_directly(dump, tmp_path / f"{version}.zarr")
        sides.append(tmp_path / f"{version}.zarr" if in_store else dump)
    for a, b in (sides, sides[::-1]):
        (row,) = (row for row in compare(a, b).tensors if row.op_type == "Parameter")
        assert (row.verdict, row.reason[:24]) == (Verdict.IGNORED, "dumped before its update")


@pytest.mark.parametrize("read", [WEIGHT, WEIGHT + 1], ids=["as neither was dumped", "otherwise"])
def test_a_parameter_that_nothing_shows_to_be_updated_differs(tmp_path: Path, read: Values) -> None:
    old = program(tmp_path / "old", "old", WEIGHT + 2, read)
    new = program(tmp_path / "new", "new", WEIGHT + 3, WEIGHT)
    (row,) = (row for row in compare(old, new).tensors if row.op_type == "Parameter")
    assert row.verdict is Verdict.DIFFERENT
