"""Two versions of MindSpore, which name the same tensors differently, run from the same weights."""

from collections import Counter
from pathlib import Path

import pytest

from ingest.questions.compare.html import to_html
from ingest.questions.compare.mapping import load_mapping
from ingest.questions.compare.matching import mapping_text
from ingest.questions.compare.result import Comparison, Verdict
from ingest.questions.compare.run import compare
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly

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
