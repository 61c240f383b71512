"""The first overflow that the hardware recorded."""

from pathlib import Path

import ingest
from ingest import open_store
from tests.damages import flip, only
from tests.dumps import DumpLibrary
from tests.made_runs import MadeRun
from tests.origin_runs import BAD, CLEAN, origin_of
from tests.pipeline import ingest_directly
from workers.model import StepKey


def test_first_overflow_record(dumps: DumpLibrary, store: Path) -> None:
    answer = origin_of(dumps["cann-bin-synthetic"] / "torchair", store)
    assert (answer.how, answer.cause, answer.rank, answer.step) == ("recorded", "overflow", 1, 0)
    assert any("task and stream" in note for note in answer.notes)
    assert answer.to_dict() == ingest.origin(open_store(store), cause="overflow").to_dict()


def test_damaged_steps_that_may_hold_nan_are_left_out_beside_an_overflow(
    dumps: DumpLibrary, store: Path, run: MadeRun
) -> None:
    run.op("Log.log", [CLEAN], [BAD], step=5)
    ingest_directly(run.dump.root, store)
    flip(only(store, "rank_0/step_5/*/index/labels/c/0/0"))
    answer = origin_of(dumps["cann-bin-synthetic"] / "torchair", store)
    assert answer.cause == "overflow"
    assert [left.key for left in answer.left_out] == [StepKey(0, 5)]
