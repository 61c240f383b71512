"""`audit`: healthy dumps are quiet, and what does not follow from its inputs is named with its place."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ingest
from tests.cli import Answer
from tests.dumps import DumpLibrary
from tests.flips import flip
from tests.made_runs import MadeRun
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

#: Healthy dumps, and the least share of their bytes that is proved.
HEALTHY = {
    "dtypes-1rank": 0.9,
    "lenet-4rank": 0.85,
    "nan-log-2rank": 0.85,
    "nan-mask-1rank": 0.0,
    "inf-explode-1rank": 0.0,
    "tinybert-2rank": 0.75,
    "msprobe-26.2.0-pytorch-cpu/ddp-2-ranks": 0.0,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_dumps_are_quiet(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    archive, _, below = name.partition("/")
    ingest_directly(dumps[archive] / (below or "dump"), store)
    answer = ingest.audit(ingest.open_store(store))
    assert answer.failures == ()
    assert answer.proved_nbytes >= HEALTHY[name] * answer.nbytes


def test_a_flipped_bit_of_a_product_is_named(dumps: DumpLibrary, tmp_path: Path, answer: Answer) -> None:
    dump, store = tmp_path / "dump", tmp_path / "run.zarr"
    shutil.copytree(dumps["nan-log-2rank"] / "dump", dump)
    for path in dump.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    flip(dump, "MatMul.*l2-Dense*.output.0.*", rank=1, step=1, element=2, bit=28)
    ingest_directly(dump, store)
    (failure,) = ingest.audit(ingest.open_store(store)).failures
    assert (failure.rank, failure.steps, failure.identity) == (1, (1,), "matmul")
    assert (failure.where, failure.cause, failure.level) == ("element", "flipped bit", "shown")
    shown = answer("audit", store, code=5)
    assert "1 of " in shown.stdout
    assert answer("audit", store, "--rank", 0).stderr == "nothing fails\n"


def test_repeated_faults_of_one_rank_are_one_finding(made: MadeDump, store: Path, answer: Answer) -> None:
    run, random = MadeRun(made), np.random.default_rng(0)
    for step in range(3):
        for rank in range(2):
            a, b = (random.normal(size=(16, 16)).astype(np.float32) for _ in range(2))
            c = a @ b
            c[5] *= 1 + rank
            run.op("MatMul.product", [a, b], [c], rank=rank, step=step)
    ingest_directly(made.root, store)
    found = answer("audit", store, "--json", code=5).json
    (failure,) = found["failures"]
    assert (failure["rank"], failure["steps"], failure["where"]) == (1, [0, 1, 2], "row")
    assert "suspect its host" in answer("audit", store, code=5).stderr


def trained(run: MadeRun, steps: int, *, frozen: int = 0, rate: float = 0.1) -> None:
    """Dump five parameters and their gradients; SGD updates them, but for the first `frozen`."""
    random = np.random.default_rng(0)
    values = [random.normal(size=(16, 8)).astype(np.float32) for _ in range(5)]
    for step in range(steps):
        for number, value in enumerate(values):
            gradient = random.normal(size=(16, 8)).astype(np.float32)
            run.parameter(f"p{number}", value, step=step)
            run.op(f"Gradient.p{number}", (), [gradient], step=step)
            if number >= frozen:
                values[number] = value - np.float32(rate) * gradient


@pytest.mark.parametrize("frozen", [0, 2, 3])
def test_parameters_that_no_update_reaches_are_one_finding(made: MadeDump, store: Path, frozen: int) -> None:
    trained(MadeRun(made), 7, frozen=frozen)
    ingest_directly(made.root, store)
    found = ingest.audit(ingest.open_store(store)).failures
    assert [(each.cause, each.level, each.follows) for each in found] == (
        [("update does not happen", "shown", frozen - 1)] if frozen else []
    )
