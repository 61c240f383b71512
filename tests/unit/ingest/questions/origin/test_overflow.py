"""The first overflow that the hardware recorded."""

from pathlib import Path

import ingest
from ingest import open_store
from tests.dumps import DumpLibrary
from tests.origin_runs import origin_of


def test_first_overflow_record(dumps: DumpLibrary, store: Path) -> None:
    answer = origin_of(dumps["cann-bin-synthetic"] / "torchair", store)
    assert (answer.how, answer.cause, answer.rank, answer.step) == ("recorded", "overflow", 1, 0)
    assert any("task and stream" in note for note in answer.notes)
    assert answer.to_dict() == ingest.origin(open_store(store), cause="overflow").to_dict()
