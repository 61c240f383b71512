"""The progress of `ingest`, as it is seen without a terminal: messages only, each once."""

from dataclasses import replace
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


def test_a_commit_completes_its_step_and_a_file_of_several_tensors_is_one(
    dumps: DumpLibrary, store: Path
) -> None:
    """Jobs do not count the bytes around tensors, and each of two jobs may have tensors of one file."""
    dump = dumps["nan-log-2rank"] / "dump"
    made = next(plan for plan in plan_all(dump, store) if plan.jobs)
    plan = replace(made, jobs=(made.jobs[0], made.jobs[0]))
    summary = ingest_directly(dump, store)[0]
    drawn = ProgressBar()
    with IngestProgress(drawn) as progress:
        for job in plan.jobs:
            progress.observe(JobConverted(plan, job))
        progress.observe(StepCommitted(plan, replace(summary, key=plan.key, raw_bytes=10**9), 1.0))
        bar = drawn.drawn.tasks[0]
        assert bar.fields["files"] == len({entry.source for entry in made.jobs[0].entries.values()})
        assert bar.completed == 10**9
