"""What a service leaves behind; tests/integration/test_stopping.py has a real one."""

from pathlib import Path

from ingest.dispatch.outcomes import StepCommitted
from ingest.service.backlog import Backlog
from tests.dumps import DumpLibrary
from tests.metric_values import listing, look
from tests.pipeline import ingest_directly, plan_all


def test_counts_what_the_last_look_showed_and_nothing_has_committed(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    backlog = Backlog()
    assert (backlog.steps, backlog.nbytes) == (0, 0)
    waiting = [listing(0, 1, files=3), listing(1, 1), listing(1, None)]
    backlog.observe(look(waiting, waiting))
    assert (backlog.steps, backlog.nbytes) == (2, 400)
    dump = dumps["nan-log-2rank"] / "dump"
    summary = next(
        one for one in ingest_directly(dump, tmp_path / "s.zarr") if str(one.key) == "rank 1 step 1"
    )
    backlog.observe(StepCommitted(plan_all(dump, tmp_path / "t.zarr")[0], summary, 1.0))
    assert backlog.steps == 1
    backlog.observe(look(waiting, []))
    assert backlog.steps == 0
