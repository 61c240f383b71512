"""The progress of `ingest`, as it is seen without a terminal: messages only, each once."""

from pathlib import Path

from ingest.cli.ingest_progress import IngestProgress
from ingest.cli.progress_bar import ProgressBar
from ingest.dispatch.outcomes import JobConverted, StepCommitted
from ingest.watching.watcher import DumpState
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly, listings, plan_all


def test_the_bar_follows_jobs_up_to_the_bytes_of_the_dump(dumps: DumpLibrary, store: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    found, plans, commits = listings(dump), plan_all(dump, store), ingest_directly(dump, store)
    drawn = ProgressBar()
    with IngestProgress(drawn) as progress:
        progress.observe(DumpState(found, found, ()))
        bar = drawn.drawn.tasks[0]
        assert bar.total == sum(listing.nbytes for listing in found.values())
        for plan, summary in zip(plans, commits, strict=True):
            for job in plan.jobs:
                progress.observe(JobConverted(plan, job))
            progress.observe(StepCommitted(plan, summary, 1.0))
        assert bar.completed == bar.total
        assert bar.fields["files"] == sum(len(listing.files) for listing in found.values())
