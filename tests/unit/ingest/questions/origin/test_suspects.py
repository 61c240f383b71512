"""Only steps that may matter are read, and all of these."""

from pathlib import Path

import pytest

from ingest import open_store
from ingest.questions.origin.calls import bad_numbers
from ingest.questions.origin.suspects import Suspects
from ingest.reader.snapshot import Snapshot, take_snapshot
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.origin_runs import BAD, CLEAN, GOOD, INF, MASKED, Ask, operator
from tests.pipeline import ingest_directly
from workers.model import StepKey


def test_mask_before_softmax(run: MadeRun, ask: Ask) -> None:
    for step in range(3):
        run.op("MaskedFill.mask", [CLEAN], [MASKED], step=step)
        run.op("Softmax.sm", [MASKED], [GOOD], step=step)
    answer = ask()
    assert not answer.found
    assert any("-Inf born in MaskedFill (mask) (rank 0, step 0)" in note for note in answer.notes)
    assert any("The same tensors hold harmless infinity in steps 1-2." in note for note in answer.notes)


def test_as_much_infinity_as_once_went_nowhere_may_matter_later(run: MadeRun, ask: Ask) -> None:
    infinite = numbers(INF, 1)
    run.op("Exp.exp", [CLEAN], [infinite], step=0)
    run.op("Minimum.clip", [infinite], [CLEAN], step=0)
    run.op("Mul.update", [CLEAN, GOOD], [infinite], step=1)
    run.parameter("weight", infinite, step=1)
    answer = ask()
    assert operator(answer) == (0, 1, "update")
    assert any("went nowhere" in note and "exp" in note for note in answer.notes)


@pytest.fixture
def snapshot(run: MadeRun, made: MadeDump, store: Path) -> Snapshot:
    """NaN on rank 1 in step 1, infinity on rank 0 in step 2."""
    for step in range(3):
        for rank in (0, 1):
            bad = {(1, 1): BAD, (0, 2): numbers(INF, 1)}.get((rank, step), CLEAN)
            run.op("Log.a", [CLEAN], [bad], rank=rank, step=step)
    ingest_directly(made.root, store)
    return take_snapshot(open_store(store))


def test_steps_in_which_the_same_tensors_are_bad_as_in_a_harmless_one_are_alike(snapshot: Snapshot) -> None:
    suspects = Suspects(snapshot, bad_numbers, "auto")
    suspects.mark_harmless(1, suspects.trace(1, [0, 1]))
    assert list(suspects.steps()) == [2]
    assert suspects.alike == [1]


def test_damaged_ranks_are_left_out_and_named(snapshot: Snapshot, store: Path) -> None:
    for chunk in store.glob("rank_1/step_1/*/index/*/c/0/0"):
        chunk.unlink()
    suspects = Suspects(snapshot, bad_numbers, "auto")
    for _ in range(2):
        assert list(suspects.trace(1, [0, 1, 7])) == [0]
    (left,) = suspects.damaged
    assert left.key == StepKey(1, 1)
    assert left.reason.startswith("damaged: ")
