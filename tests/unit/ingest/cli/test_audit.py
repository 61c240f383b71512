"""`audit`: healthy dumps are quiet, and what does not follow from its inputs is named with its place."""

import shutil
from collections.abc import Callable
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


def test_a_bit_that_flips_between_two_operators_is_named(
    dump_copy: Callable[[str], Path], store: Path, answer: Answer
) -> None:
    dump = dump_copy("lenet-1rank") / "dump"
    ingest_directly(dump, store)
    shared = next(
        tensor
        for tensor in ingest.open_store(store).tensors(rank=0, step=1, io="output")
        if tensor.op_type == "ReLU" and len(tensor.consumers) > 1
    )
    read = shared.consumers[0].tensor
    written = "MatMul.*fc1-Dense_MatMul-op0.*.output.0.*"  # too little for a limit, and no reader sees it
    flip(dump, written, rank=0, step=1, element=5, bit=3)
    flip(dump, f"{read.op_type}.{read.op_name}.*.input.{read.slot}.*", rank=0, step=1, element=0, bit=3)
    other = store.with_name("flipped.zarr")
    ingest_directly(dump, other)
    failures = ingest.audit(ingest.open_store(other)).failures
    assert {(each.identity, each.cause, each.where) for each in failures} == {
        ("copy", "flipped bit", "element")
    }
    assert {each.name for each in failures} > {read.name}
    assert any("fc1-Dense_MatMul-op0.output.0" in each.name for each in failures)
    assert "bit 3" in answer("audit", other, code=5).stdout


def products(run: MadeRun, steps: int, *, ranks: int = 2, wrong: dict[int, list[int]]) -> None:
    """Dump four products in each step and rank; of a rank that is wrong, a row of these is doubled."""
    random = np.random.default_rng(0)
    for step in range(steps):
        for rank in range(ranks):
            for number in range(4):
                a, b = (random.normal(size=(16, 16)).astype(np.float32) for _ in range(2))
                c = a @ b
                if number in wrong.get(rank, []):
                    c[5] *= 2
                run.op(f"MatMul.product{number}", [a, b], [c], rank=rank, step=step)


def test_repeated_faults_of_one_rank_are_one_finding(made: MadeDump, store: Path, answer: Answer) -> None:
    products(MadeRun(made), 3, wrong={1: [0, 2, 3]})
    ingest_directly(made.root, store)
    found = answer("audit", store, "--json", code=5).json
    (failure,) = found["failures"]
    assert (failure["rank"], failure["steps"], failure["where"]) == (1, [0, 1, 2], "row")
    assert (failure["follows"], failure["failed"]) == (2, 9)
    assert failure["what"].endswith(
        f"host {failure['host']}, rank 1: 9 products in 3 steps: suspect hardware"
    )
    assert found["tensors"] == found["proved"] + 9 + sum(
        share["tensors"] for share in found["coverage"] if not share["is_proved"]
    )


def test_what_all_ranks_compute_alike_is_no_fault_of_hardware(made: MadeDump, store: Path) -> None:
    products(MadeRun(made), 3, wrong={0: [1], 1: [1]})
    ingest_directly(made.root, store)
    found = ingest.audit(ingest.open_store(store)).failures
    assert [(each.rank, each.steps, each.host) for each in found] == [(0, (0, 1, 2), ""), (1, (0, 1, 2), "")]
    assert not any("suspect" in each.what for each in found)


def test_the_budget_says_where_an_error_was_born_and_who_inherits_it(
    made: MadeDump, store: Path, answer: Answer
) -> None:
    random, run = np.random.default_rng(0), MadeRun(made)
    x, a, b = (random.normal(size=(16, 16)).astype(np.float32) for _ in range(3))
    y = x @ a
    y += np.float32(1e-3) * random.normal(size=y.shape).astype(np.float32)
    z = y @ b
    run.op("MatMul.rough", [x, a], [y])
    run.op("MatMul.fine", [y, b], [z])
    run.op("ReLU.last", [z], [np.maximum(z, 0)])
    ingest_directly(made.root, store)
    known = {each.name: each for each in ingest.audit_budget(ingest.open_store(store)).operators}
    rough, fine, last = (known[f"{name}.output.0"] for name in ("MatMul.rough", "MatMul.fine", "ReLU.last"))
    assert [each.depth for each in (rough, fine, last)] == [0, 1, 2]
    assert rough.born == pytest.approx(1e-3 / 4, rel=0.3)
    assert rough.inherited is None
    assert fine.units < 10
    assert fine.inherited == pytest.approx(rough.born, rel=0.5)
    assert last.born == 0
    assert last.total == pytest.approx(fine.total, rel=0.5)
    rows = answer("audit", store, "--budget", "--json").json["operators"]
    assert [row["name"] for row in rows] == [each.name for each in (rough, fine, last)]


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
