"""`dump-ingest divergence` as it is typed."""

import shutil
from pathlib import Path

import pytest

from tests.cli import Answer
from tests.damages import only
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

WEIGHTS = "Momentum.opt-op0"


def fill(run: MadeRun, rank: int, step: int, *, flipped: bool = False) -> None:
    """Write what replicas share: weights, of which a bit may have flipped."""
    values = numbers(*range(step, step + 8))
    if flipped:
        values[3] += 1
    run.op(WEIGHTS, [values], rank=rank, step=step)


@pytest.fixture
def odd(made: MadeDump, store: Path) -> Path:
    """Three replicas for three steps; rank 2 is off in step 1."""
    run = MadeRun(made)
    for rank in range(3):
        for step in range(3):
            fill(run, rank, step, flipped=(rank, step) == (2, 1))
    ingest_directly(made.root, store)
    return store


def test_an_odd_rank_is_named_with_the_values_that_differ(odd: Path, answer: Answer) -> None:
    done = answer("divergence", odd, code=5)
    story, table, groups = done.stdout.split("\n\n")
    lines = story.splitlines()
    assert lines[0] == "rank 2 is off since step 1 (ranks 0-1 agree)"
    assert lines[1] == f"  first   {WEIGHTS}.input.0  (optimizer input)"
    assert lines[2].startswith("  file    rank_2/Net/0/1/Momentum.opt-op0.")
    assert lines[3].startswith("  values  l2_norm ")
    assert lines[4] == "  cause   flipped bit (shown): 1 of 8 elements, element [3]: bit 21"
    assert lines[5] == "  since   1 tensor in 1 step, agrees again after step 1"
    assert table.splitlines()[1].split()[:5] == ["2", "1", "1", "1", "yes"]
    assert table.splitlines()[1].endswith(f"optimizer input  {WEIGHTS}.input.0")
    assert groups.splitlines()[1].split()[0] == "0-2"


def test_what_a_rank_lacks_is_a_difference(made: MadeDump, store: Path, answer: Answer) -> None:
    run = MadeRun(made)
    for rank in range(3):
        for step in range(2):
            fill(run, rank, step)
            run.op("Momentum.opt-op1", [numbers(*range(8, 0, -1))], rank=rank, step=step)
            run.op("Momentum.opt-op2", [numbers(*range(0, 24, 3))], rank=rank, step=step)
            if rank < 2:
                run.op("AllReduce.sum-op0", [numbers(1)], [numbers(*range(9))], rank=rank, step=step)
    ingest_directly(made.root, store)
    done = answer("divergence", store, code=5)
    assert done.stdout.startswith("replicas do not hold the same tensors:\n")
    assert "missing" in done.stdout


def test_ranks_without_anything_in_common_cannot_be_compared(
    made: MadeDump, store: Path, answer: Answer
) -> None:
    run = MadeRun(made)
    for rank in range(2):
        run.op("MatMul.net-op0", (), [numbers(rank, 2, 3)], rank=rank)
    ingest_directly(made.root, store)
    assert "name them with --group." in answer("divergence", store).stderr


def test_that_nothing_could_be_compared_is_said_although_a_step_is_damaged(
    made: MadeDump, store: Path, answer: Answer
) -> None:
    run = MadeRun(made)
    for rank in range(3):
        run.op("MatMul.net-op0", (), [numbers(rank, 2, 3)], rank=rank)
    ingest_directly(made.root, store)
    shutil.rmtree(only(store, "rank_2/step_0/*/index"))
    done = answer("divergence", store, code=3)
    assert "left out: rank 2 step 0: damaged: index/" in done.stderr
    assert "note: nothing could be compared" in done.stderr


def test_only_replicas_by_the_mesh_are_compared(odd: Path, answer: Answer) -> None:
    found = answer("divergence", odd, "--mesh", "dp=3", "--json", code=5).json
    assert [(group["ranks"], group["how"]) for group in found["groups"]] == [([0, 1, 2], "told")]
    done = answer("divergence", odd, "--mesh", "tp=2,dp=2")  # rank 2 has no replica
    assert "replicas agree" in done.stdout
    assert "rank 2 is in no group" in done.stderr
    assert answer("divergence", odd, "--mesh", "tp=2", code=2).stderr.startswith(
        "error: --mesh tp=2: has 2 ranks, and the store has rank 2"
    )


def test_ranks_are_chosen_by_their_place_in_the_mesh(odd: Path, answer: Answer) -> None:
    rows = answer("ls", odd, "--mesh", "tp=2,dp=2", "-r", "dp=0", "--json").json
    assert {(row["rank"], *row["coordinates"]["tp"]) for row in rows} == {(0, 0, 2), (2, 1, 2)}
    assert answer("ls", odd, "--mesh", "dp=3", "-r", "2").stdout.splitlines()[1].split()[:3] == [
        "2",
        "dp",
        "2/3",
    ]
    tensors = answer("find", odd, "--mesh", "dp=3", "-r", "dp=1", "-n", "0", "--json").json
    assert {tensor["rank"] for tensor in tensors} == {1}
    assert "DUMP_INGEST_MESH=tp=2,dp=4" in answer("origin", odd, "-r", "dp=1", code=2).stderr
    assert "neither a rank nor a place" in answer("ls", odd, "-r", "-1", code=2).stderr
