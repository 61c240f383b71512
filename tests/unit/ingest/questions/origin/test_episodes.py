"""A run may go wrong more than once."""

from pathlib import Path

from ingest.api import open_store
from ingest.questions.origin.episodes import Episode, episodes_of
from ingest.reader.snapshot import take_snapshot
from tests.made_runs import MadeRun
from tests.npy_files import MadeDump
from tests.origin_runs import BAD, CLEAN, GOOD
from tests.pipeline import ingest_directly


def episodes(dump: MadeDump, store: Path) -> list[Episode]:
    ingest_directly(dump.root, store)
    return list(episodes_of(take_snapshot(open_store(store)), []))


def test_steps_in_a_row_are_one_episode(run: MadeRun, made: MadeDump, store: Path) -> None:
    """Steps 1 and 2 on rank 0, step 4 on both ranks."""
    for step in range(6):
        for rank in range(2):
            is_bad = (rank == 0 and step in (1, 2)) or step == 4
            run.op("Log.log", [CLEAN], [BAD if is_bad else GOOD], rank=rank, step=step)
    first, second = episodes(made, store)
    assert (first.steps, first.ranks, first.tensors) == ((1, 2), (0,), 2)
    assert (first.origin.step, first.origin.rank, first.origin.op_name) == (1, 0, "log")
    assert (second.steps, second.ranks, second.tensors) == ((4,), (0, 1), 2)
    assert {later.step for later in first.origin.spread.steps} <= {1, 2}


def test_a_healthy_run_has_none(run: MadeRun, made: MadeDump, store: Path) -> None:
    run.op("Log.log", [CLEAN], [GOOD])
    assert episodes(made, store) == []
