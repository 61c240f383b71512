"""Programs of JAX on eight virtual devices, recorded, and the answers about them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ingest
from tests.stores import ingest_directly

ROOT = Path(__file__).parent.parent.parent
PROGRAM = ROOT / "tests" / "jax_programs.py"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("jax")]
#: By program: where its NaN is born, on which rank, why, and the operators with other results in order.
BORN = {
    "mlp": ("Jax.log", "step.0.score.0.log.0", 0, "logarithm of a number that is not positive"),
    "scan": ("Jax.sqrt", "step.0.scan.0.sqrt.0", 0, "square root of a negative number"),
    "shards": ("Jax.div", "step.0.shard_map.0.div.0", 3, "zero divided by zero"),
    "flax": ("Jax.log", "Net.Head_0.log.0", 0, "logarithm of a number that is not positive"),
    "sharded": ("Jax.sqrt", "step.0.sqrt.0", 0, "square root of a negative number"),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, jax: None) -> Path:  # noqa: ARG001  (or skip)
    """Return a directory with `{program}/{healthy or faulty}.zarr`."""
    directory = tmp_path_factory.mktemp("jax")
    subprocess.run([sys.executable, "-m", "tests.jax_programs", directory], cwd=ROOT, check=True)
    for program in BORN:
        for name in ("healthy", "faulty"):
            ingest_directly(directory / program / name, directory / program / f"{name}.zarr")
    return directory


@pytest.mark.parametrize("program", BORN)
def test_origin_names_the_equation_and_its_line(stores: Path, program: str) -> None:
    answer = ingest.origin(ingest.open_store(stores / program / "faulty.zarr"))
    op_type, op_name, rank, reason = BORN[program]
    assert (answer.what, answer.how) == ("NaN", "born")
    assert (answer.op_type, answer.op_name, answer.rank) == (op_type, op_name, rank)
    assert answer.why is not None
    assert answer.why.reasons[0].reason == reason
    assert answer.source is not None
    planted = f"# {program}: the planted line"
    lines = PROGRAM.read_text("utf-8").splitlines()
    assert [planted in line for line in lines].index(True) + 1 == answer.source.line
    assert not ingest.origin(ingest.open_store(stores / program / "healthy.zarr")).found


@pytest.mark.parametrize("program", BORN)
def test_compare_names_the_first_equation_that_differs(stores: Path, program: str) -> None:
    healthy, faulty = (ingest.open_store(stores / program / f"{name}.zarr") for name in ("healthy", "faulty"))
    first = ingest.compare(healthy, faulty).first
    assert first is not None
    assert first.tensor.op_type == "Jax.sub"
    assert first.tensor.name_a.endswith("input.1")  # what is subtracted on the planted line
    assert ingest.compare(healthy, healthy).first is None
    assert ingest.audit(healthy).failures == ()


def test_turns_of_a_scan_are_runs_of_an_operator(stores: Path) -> None:
    store = ingest.open_store(stores / "scan" / "faulty.zarr")
    roots = store.tensors(op_type="Jax.sqrt", io="output")
    counts = {root.occurrence: int(root.statistics.nan_count) for root in roots}
    assert counts == {0: 0, 1: 0, 2: 1, 3: 0, 4: 0}
    assert ingest.origin(store).occurrence == 2


def test_a_nan_passes_from_device_to_device_through_a_collective(stores: Path) -> None:
    spread = ingest.origin(ingest.open_store(stores / "shards" / "faulty.zarr")).spread
    (collective,) = spread.collectives
    assert (collective.op_type, collective.from_ranks) == ("Jax.all_reduce", (3,))
    assert collective.to_ranks == (0, 1, 2, 4, 5, 6, 7)


def test_shardings_are_placements(stores: Path) -> None:
    store = ingest.open_store(stores / "sharded" / "healthy.zarr")
    layout = ingest.layout(store)
    assert layout.findings == ()
    placed = {kind.name: (str(kind.placement), kind.why) for kind in layout.kinds}
    assert placed["Parameter.weight.output.0"] == ("dp: replicated, tp: shard 1", "told")
    assert placed["Parameter.x.output.0"] == ("dp: shard 0, tp: replicated", "told")
    product = "Jax.dot_general.step.0.dot_general.0.output.0"
    assert placed[product] == ("dp: shard 0, tp: shard 1", "told")
    (whole,) = {tensor.unsharded().shape for tensor in store.tensors(product)}
    assert whole == (6, 8)
    assert ingest.divergence(store).agree
