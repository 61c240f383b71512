"""What a service leaves behind; tests/integration/test_stopping.py has a real one."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ingest.dispatch.outcomes import StepCommitted
from ingest.service.backlog import Backlog
from tests.dumps import DumpLibrary
from tests.metric_values import listing, look
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all
from workers.model import SourceFile


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
        summary
        for summary in ingest_directly(dump, tmp_path / "s.zarr")
        if str(summary.key) == "rank 1 step 1"
    )
    backlog.observe(StepCommitted(plan_all(dump, tmp_path / "t.zarr")[0], summary, 1.0))
    assert backlog.steps == 1
    backlog.observe(look(waiting, []))
    assert backlog.steps == 0


def test_does_not_count_what_cannot_be_taken_of_a_partial_step(tmp_path: Path) -> None:
    """The next look lists the step as pending until it is planned again; then, too, it cannot be taken."""
    made = MadeDump(tmp_path / "dump")
    made.add(np.ones(3, np.float32))
    made.add(b"torn", tensor_name("Torn.op"))
    [plan] = [plan for plan in plan_all(made.root, tmp_path / "t.zarr") if plan.key.step is not None]
    [summary] = ingest_directly(made.root, tmp_path / "s.zarr")
    assert summary.status == "partial"
    files = {entry.source for entry in plan.entries}
    seen = replace(listing(0, 0), files=tuple(files))
    backlog = Backlog()
    backlog.observe(look([seen], [seen]))
    assert backlog.steps == 1
    backlog.observe(StepCommitted(plan, summary, 1.0))
    assert backlog.steps == 0
    backlog.observe(look([seen], [seen]))
    assert backlog.steps == 0
    more = replace(seen, files=(*seen.files, SourceFile("rank_0/Net/0/1/late.npy", 10, 1)))
    backlog.observe(look([more], [more]))
    assert backlog.steps == 1
