"""What `ingest` prints while it runs and at its end, and the exit code that follows from it.

What was asked for and is not in the store is named; with `--after-commit delete`, what was deleted in the
dump, and why the rest stays.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import typer

import ingest
from ingest.cli.exits import (
    EXIT_DAMAGE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PARTLY,
    report_error,
    say_damaged,
)
from ingest.cli.printing import print_json, print_table, say, step_text
from ingest.disk import DiskSeen
from ingest.dispatch.submitter import JobConverted, StepCommitted, TaskRetried
from ingest.questions.missing import MissingItem, MissingItems
from ingest.reader.step import summary_row
from ingest.reader.text import counted, counted_steps, files_with_problems, plain, printable
from ingest.service.one_shot import Report
from ingest.settings import Settings
from ingest.steps.committed import FilesNotTaken
from ingest.steps.events import SourceKept
from ingest.steps.watcher import DumpState
from ingest.units import human_bytes
from workers.errors import DumpIngestError
from workers.events import Event
from workers.store.model import SEVERITIES, CommitSummary

if TYPE_CHECKING:
    from rich.progress import Progress

    from workers.tasks.model import ShardJob


#: How many steps the table lists, and how many numbers a message lists.
_MAX_ROWS = 24
_MAX_NUMBERS = 20
_MAX_BESIDE = 4
#: The headings of numbers, and which of them are bytes.
_NUMBERS = ("tensors", "files", "raw", "stored", "duplicates", "NaN", "Inf", "overflows", "problems")
_BYTES = (2, 3)


def print_report(report: Report, settings: Settings, seconds: float, *, dry_run: bool, json: bool) -> None:
    """Print what was committed, what was deleted in the dump, and every problem.

    Args:
        report: what one run of `ingest` came to.
        settings: the settings of that run.
        seconds: how long it took.
        dry_run: whether nothing was deleted in the dump.
        json: whether to print JSON instead of a table.
    """
    deletes = settings.after_commit == "delete"
    commits = sorted(report.commits, key=lambda summary: summary.key.order)
    if json:
        rows = [summary_row(summary) for summary in commits]
        print_json({"steps": rows, **_sources_row(report, dry_run=dry_run)} if deletes else rows)
    else:
        _say_skipped(report)
        if commits:
            _print_commits(commits)
            _say_totals(commits, settings.store or "", seconds)
        if deletes:
            say_sources(report, dry_run=dry_run)
    _say_damaged(report, settings.store or "")
    _say_problems(report)
    _say_notes(report, settings.store or "")
    _report_errors(report)
    if report.not_consolidated:
        say(
            f"the consolidated view is not up to date: {report.not_consolidated.message} "
            "(`dump-ingest consolidate` updates it)",
            label="note",
        )


def exit_as(report: Report, *, interrupted: bool) -> None:
    """End the command with the exit code for what it came to; return if all is well.

    Raises:
        Exit: interrupted, failed, partly done, or damage was found.
    """
    if interrupted:
        say("Interrupted. What is committed stays; run the same command again for the rest.")
        raise typer.Exit(EXIT_INTERRUPTED)
    if report.failures or report.stopped_by:
        raise typer.Exit(EXIT_PARTLY if report.has_something else EXIT_FAILED)
    if report.damaged or any(error.reason == "damaged_store" for error in report.read_back_failures.values()):
        raise typer.Exit(EXIT_DAMAGE)
    if report.read_back_failures or _is_partial(report):
        raise typer.Exit(EXIT_PARTLY)


def _is_partial(report: Report) -> bool:
    return any(problem.left_out for problem in report.problems) or any(
        summary.status != "complete" for summary in report.commits
    )


def _say_skipped(report: Report) -> None:
    if report.unchanged:
        damaged = {damage.key for damage in report.damaged}
        steps = {key for key in report.unchanged if key.step is not None and key not in damaged}
        say(f"{counted_steps(steps) if steps else 'run files'} unchanged: already in the store.")
    if report.removed:
        say(f"{counted_steps(report.removed)} removed by gc earlier; --replace restores them.")


def _say_damaged(report: Report, store: str) -> None:
    say_damaged(report.damaged[:_MAX_ROWS])
    if report.damaged:
        count = counted(len(report.damaged), "step")
        say(
            f"{count} damaged in the store: `dump-ingest repair {shlex.quote(store)}` shows what can be made "
            "again from the dump, and --apply does it",
            label="error",
            style="bold red",
        )


def _print_commits(commits: Sequence[CommitSummary]) -> None:
    shown = commits if len(commits) <= _MAX_ROWS else list(filter(_is_special, commits))[:_MAX_ROWS]
    rows = [
        _row(str(summary.key.rank), step_text(summary.key.step), summary.status, [summary])
        for summary in shown
    ]
    if len(shown) < len(commits):
        rest = [summary for summary in commits if summary not in shown]
        rows.append(_row("", f"{len(rest)} more", "", rest))
    steps = {summary.key.step for summary in commits} - {None}
    status = "partial" if "partial" in {summary.status for summary in commits} else "complete"
    rows.append(_row("all", str(len(steps)), status, commits))
    print_table(("rank", "step", "status", *_NUMBERS), rows, right=_NUMBERS)


def _is_special(summary: CommitSummary) -> bool:
    return summary.status != "complete" or bool(summary.anomalous_tensors or summary.overflows)


def _row(rank: str, step: str, status: str, commits: Iterable[CommitSummary]) -> list[str]:
    columns = [
        (
            of.tensors + of.statistics_only,
            of.files,
            of.raw_bytes,
            of.stored_bytes,
            of.duplicates,
            of.nan_count,
            of.pos_inf_count + of.neg_inf_count,
            of.overflows,
            of.problems,
        )
        for of in commits
    ]
    totals = map(sum, zip(*columns, strict=True))
    return [rank, step, status, *(human_bytes(n) if at in _BYTES else str(n) for at, n in enumerate(totals))]


def _say_totals(commits: Sequence[CommitSummary], store: str, seconds: float) -> None:
    nbytes = sum(summary.raw_bytes for summary in commits)
    say(f"{human_bytes(nbytes)} in {seconds:.1f} s")
    if any(summary.anomalous_tensors for summary in commits):
        say("")
        say(f"NaN and Inf:  dump-ingest origin {shlex.quote(store)}")
    if any(summary.overflows for summary in commits):
        say(f"Overflows:    dump-ingest ls {shlex.quote(store)} --overflows")


def _say_problems(report: Report) -> None:
    for problem in report.problems:
        say(printable(str(problem)) + (f" ({problem.hint})" if problem.hint else ""), label="problem")
    for summary in report.commits:
        if summary.status != "complete" or summary.unparsed:
            files = files_with_problems(summary) or "not all files could be taken"
            say(
                f"{summary.key}: {summary.status}, {files}; `dump-ingest ls STORE --problems` lists them",
                label="problem",
            )
        if summary.disagreements:
            say(
                f"{summary.key}: the dumped statistics of {counted(summary.disagreements, 'tensor')} do not "
                "match the elements; `dump-ingest ls STORE --problems` lists them",
                label="problem",
            )


def _say_ranks_from(report: Report) -> None:
    for source in ("device id", "process id"):
        if numbers := report.ranks_from.get(source):
            verb = f"is a {source}" if len(numbers) == 1 else f"are {source}s"
            hint = " (--rank-map 0=8,1=9 gives the ranks)" if source == "device id" else ""
            say(f"the paths name no ranks: {_listed(numbers)} {verb}{hint}", label="note")


def _say_notes(report: Report, store: str) -> None:
    _say_ranks_from(report)
    counts = [(commit.tensors, commit.statistics_only, commit.overflows) for commit in report.commits]
    # All that the store has of the dump is files that were taken for no tensors.
    if counts and not any(map(any, counts)) and not report.unchanged and not _is_partial(report):
        say(
            "no tensors, only files; if they are tensors in a tree of your own, `dump-ingest doctor DUMP` "
            "proposes a pattern for --layout",
            label="note",
        )
    if report.beside:
        others = ", ".join(map(str, report.beside[:_MAX_BESIDE]))
        rest = len(report.beside) - _MAX_BESIDE
        more = f" and {rest} more" * (rest > 0)
        say(
            f"only the dump in {report.root} was taken; beside it, tensor files are in {others}{more} "
            "(name each directory to ingest it into a store of its own)",
            label="note",
        )
    _say_findings(report, store)
    if report.missing_steps:
        steps = _listed(report.missing_steps)
        say(f"the dump's configuration requests steps that no rank has (yet): {steps}", label="note")
    for kept in report.kept:
        say(
            f"{kept.key}: {counted(kept.gone, 'file')} disappeared from the dump; the commit stays",
            label="note",
        )
    for again in report.dumped_again:
        say(
            f"{again.key}: dumped again, without {counted(again.gone, 'file')} of its commit, which is "
            "replaced (`gc` deletes it)",
            label="note",
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_MAX_NUMBERS]))


def _say_findings(report: Report, store: str) -> None:
    counts: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for summary in report.commits:
        counts.update(summary.findings_by_severity)
        failed.update(summary.failed_rules)
    for step in report.series:
        for rule, count in step.result.totals.items():
            counts[step.result.severities[rule]] += count
        failed.update(step.result.failed)
    if counts:
        parts = ", ".join(
            f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity]
        )
        say(f"{parts}; by cause: dump-ingest anomalies {shlex.quote(store)}", label="findings of rules")
    for rule, reason in failed.items():
        say(f"the rule {rule} could not be evaluated: {reason}", label="problem")


def _report_errors(report: Report) -> None:
    """Print each kind of error once: the first of its kind, and how many more there are.

    Files that are in no store are named, step by step.
    """
    if report.stopped_by:
        report_error(report.stopped_by)
    errors = [*report.failures.values(), *report.read_back_failures.values()]
    not_taken = [error for error in errors if isinstance(error, FilesNotTaken)]
    for named in not_taken[:_MAX_ROWS]:
        say(named.message, label="not taken", style="bold red")
    kinds: dict[tuple[str, str], list[DumpIngestError]] = {}
    for error in (*not_taken[_MAX_ROWS:], *(error for error in errors if error not in not_taken)):
        kinds.setdefault((error.reason, error.hint), []).append(error)
    for first, *more in kinds.values():
        message = first.message + f" (and {len(more)} more)" * bool(more)
        report_error(DumpIngestError(message, hint=first.hint))
    if not_taken:
        say(f"  {not_taken[0].hint}")


#: Why files stay, by the value of `KeepReason`.
_REASONS = {
    "newest": "the newest of their rank (--keep-last)",
    "anomalous": "an anomaly on a rank of this dump (--keep-anomalous)",
    "undecided": "another rank of this dump has not committed them yet (--keep-anomalous)",
    "partial": "partial commits: the dump may hold the only copy",
    "no_tensors": "the store has them without their tensors",
    "checkpoint": "they are checkpoints, from which the job restarts",
    "elsewhere": "committed from another dump or host",
    "no_commit": "no readable commit in the store",
    "not_stored": "files that the commit does not have as they are now",
    "not_understood": "files that are not understood; the store has them as files",
    "changed": "changed while they were read back",
    "denied": "no permission to write to the dump",
    "read_back_failed": "could not be read back from the store",
}
#: Reasons without details: the words say everything, or an error message does.
_WITHOUT_DETAIL = frozenset(["newest", "anomalous", "read_back_failed"])


def say_sources(report: Report, *, dry_run: bool) -> None:
    """Print to stderr what was deleted, and why the rest stays."""
    files, nbytes = (
        sum(getattr(deleted, name) for deleted in report.deleted) for name in ("files", "nbytes")
    )
    would = "Would delete" if dry_run else "Deleted"
    steps = len({deleted.key for deleted in report.deleted})
    say(
        f"{would} {counted(files, 'dump file')} ({human_bytes(nbytes)}) of {counted(steps, 'step')}; "
        "the store has every byte."
        if files
        else f"{would} nothing in the dump."
    )
    by_reason: dict[str, list[SourceKept]] = {}
    for kept in report.source_kept:
        by_reason.setdefault(kept.reason.value, []).append(kept)
    for reason, steps_kept in by_reason.items():
        first = steps_kept[0]
        example = "" if reason in _WITHOUT_DETAIL else f"; {first.key}: {printable(first.detail)}"
        count = counted(sum(kept.files for kept in steps_kept), "file")
        where = counted(len(steps_kept), "step")
        say(f"{count} of {where}: {_REASONS[reason]}{example}", label="stays")


def _sources_row(report: Report, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "deleted": [
            {**plain(deleted.key), "files": deleted.files, "bytes": deleted.nbytes}
            for deleted in report.deleted
        ],
        "kept": [
            {**plain(kept.key), "reason": kept.reason.value, "files": kept.files, "detail": kept.detail}
            for kept in report.source_kept
        ],
    }


#: How many items are named.
_MAX_ITEMS = 5
#: Ranks of which one index is read: what is not dumped on one of them is rarely dumped on others.
_MAX_RANKS = 8


def say_missing(report: Report, settings: Settings) -> None:
    """Print what the configuration of the dump asked for and is not in the store, with the reasons.

    Reads the index of one step of up to eight ranks, if something was committed and the dump has a file that
    may be its configuration.
    """
    if not report.commits or report.stopped_by is not None or not report.may_have_configuration:
        return
    url = str(settings.store)
    try:
        store = ingest.open_store(url, **settings.store_arguments)
        items = ingest.missing(store, most_ranks=_MAX_RANKS, damages=[])
    except DumpIngestError as exc:
        say(f"cannot tell what the dump lacks: {exc.message}", label="note")
        return
    if report.missing_steps:  # these are named above
        items = MissingItems(item for item in items if item.what != "step" or item.rank is not None)
    if items:
        command = f"dump-ingest ls {shlex.quote(url)} --missing"
        say(f"the dump lacks items that its configuration requests; `{command}` lists them", label="note")
    _say_items(items)


def _say_items(items: Sequence[MissingItem]) -> None:
    for item in items[:_MAX_ITEMS]:
        rank = "" if item.rank is None else f" on rank {item.rank}"
        what = "steps" if item.what == "step" and not item.name.isdecimal() else item.what
        say(f"  {what} {item.name}{rank}" + (f": {item.reason}" if item.reason else ""))
    if items[_MAX_ITEMS:]:
        say(f"  and {len(items) - _MAX_ITEMS} more")


#: Over how many seconds speed and remaining time are taken: all of them, because results come in bursts.
_SPEED_OVER_S = 1e9


def progress_bar() -> Progress:
    """Return a bar of bytes and files for stderr, which draws nothing if that is not a terminal."""
    # deferred: takes 0.04 s, for terminals only
    from rich import progress
    from rich.console import Console

    err = Console(stderr=True, highlight=False)
    return progress.Progress(
        progress.TextColumn("[bold]{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[files]} files"),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
        speed_estimate_period=_SPEED_OVER_S,
    )


class IngestProgress:
    """A progress bar, if there is one; messages about retries and a full disk in any case."""

    def __init__(self, bar: Progress | None = None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("listing", total=None, files=0)
        self._done_bytes = self._done_files = self._committed_bytes = 0
        self._printed: set[str] = set()
        """The kinds of messages that were printed: each is printed once."""

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def observe(self, event: Event) -> None:
        """Move the bar, or print a message."""
        match event:
            case DumpState():
                pending = sum(listing.nbytes for listing in event.pending.values())
                total = max(self._committed_bytes + pending, self._done_bytes)
                self._update(total=total, description="ingesting")
            case StepCommitted(plan=plan, summary=summary):
                self._committed_bytes += summary.raw_bytes
                # Jobs do not count the bytes around tensors, and two of them may have tensors of one file.
                around = summary.raw_bytes - sum(job.nbytes for job in plan.jobs)
                self._done_bytes = max(self._done_bytes + around, self._committed_bytes)
                self._done_files += _files(plan.jobs) - sum(_files([job]) for job in plan.jobs)
                self._update(completed=self._done_bytes, files=self._done_files)
            case JobConverted(job=job):
                self._done_bytes += job.nbytes
                self._done_files += _files([job])
                self._update(completed=self._done_bytes, files=self._done_files)
            case TaskRetried(error=error):
                self._say_once(error.reason, error.message, label="retrying")
            case DiskSeen(leave_out_tensors=reason) if reason:
                message = f"{reason}: steps are stored without tensors"
                self._say_once("disk", message, label="disk nearly full")

    def _update(self, **changes: Any) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **changes)

    def _say_once(self, kind: str, message: str, *, label: str) -> None:
        if kind not in self._printed:
            self._printed.add(kind)
            say(message, label=label)


def _files(jobs: Iterable[ShardJob]) -> int:
    return len({entry.source for job in jobs for entry in job.entries.values()})
