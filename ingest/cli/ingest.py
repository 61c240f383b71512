"""`dump-ingest ingest`: take one dump into a store, once."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from ingest.cli.common import (
    EXIT_DAMAGE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PARTLY,
    ConfigOption,
    JsonOption,
    StoreOption,
    err,
    load_settings,
    print_json,
    print_table,
    say,
    step_name,
    stop_on_signals,
)
from ingest.units import human_bytes

if TYPE_CHECKING:
    from ingest.service.report import Report
    from workers.errors import DumpIngestError
    from workers.events import Event
    from workers.store.model import CommitSummary

NAME = "ingest"
_MAX_ROWS = 24
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Dask scheduler (tcp://host:8786) or scheduler file. Default: own workers."
    ),
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Worker processes, without --scheduler.")]
ReplaceOption = Annotated[
    bool | None,
    typer.Option(
        "--replace",
        help="Replace steps that came from another dump; `ingest` also takes again what gc removed.",
        show_default=False,
    ),
]
RankMapOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE=RANK,...",
        help="Ranks of device ids, where paths name only devices.",
        show_default=False,
    ),
]
DeviceLayoutOption = Annotated[
    bool | None,
    typer.Option(
        "--keep-device-layout", help="Store tensors in the accelerator's own layout.", show_default=False
    ),
]
AfterCommitOption = Annotated[
    str | None,
    typer.Option(
        metavar="keep|delete",
        help="What becomes of committed dump files. They are read back and compared before they are deleted.",
    ),
]
KeepLastOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="With delete: the newest N steps of each rank stay. Default: 1."),
]
KeepAnomalousOption = Annotated[
    bool | None,
    typer.Option(
        "--keep-anomalous",
        help="With delete: steps with NaN, Inf, overflows or findings stay.",
        show_default=False,
    ),
]
QuietOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help="How long the last step must not have changed."),
]


def command(
    dump: Annotated[
        # Not checked by typer: the answer to a directory of another user says what to do.
        Path,
        typer.Argument(help="The directory that holds rank_0, rank_1, ...", readable=False),
    ],
    store: StoreOption = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = None,
    replace: ReplaceOption = None,
    rank_map: RankMapOption = None,
    keep_device_layout: DeviceLayoutOption = None,
    after_commit: AfterCommitOption = None,
    keep_last: KeepLastOption = None,
    keep_anomalous: KeepAnomalousOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With delete: only say what would be deleted.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Take a dump into a store, and say what was in it.

    Steps that are in the store already are left alone; run it again after anything went wrong.

    [bold]dump-ingest ingest /data/dump --store s3://bucket/run.zarr[/]
    """
    from ingest.cli.sources import refuse_idle, say_sources, sources_row
    from ingest.wiring import SHORT_QUIET_S, ingest_dump

    loaded = load_settings(
        config,
        store=store,
        scheduler=scheduler,
        workers=workers,
        quiet_s=quiet,
        replace=replace,
        rank_map=rank_map,
        keep_device_layout=keep_device_layout,
        after_commit=after_commit,
        keep_last=keep_last,
        keep_anomalous=keep_anomalous,
    )
    settings = loaded.settings
    if loaded.origins["quiet_s"] == "default":
        settings = settings.model_copy(update={"quiet_s": SHORT_QUIET_S})
    deletes = settings.after_commit == "delete"
    refuse_idle(settings, keep_last=keep_last, keep_anomalous=keep_anomalous, dry_run=dry_run)
    stop = stop_on_signals()
    started = time.monotonic()
    with _Progress() as progress:
        report = ingest_dump(
            dump,
            settings.store or "",
            settings=settings,
            stop=stop,
            observers=[progress.observe],
            dry_run=dry_run,
        )
    seconds = time.monotonic() - started
    if json:
        from ingest.reader.rows import summary_row

        rows = [summary_row(summary) for summary in sorted(report.commits, key=lambda s: s.key.order)]
        print_json({"steps": rows, **sources_row(report, dry_run=dry_run)} if deletes else rows)
    else:
        _print_report(report, settings.store or "", seconds)
        if deletes:
            say_sources(report, dry_run=dry_run)
    _complain(report)
    if report.not_consolidated:
        say(
            f"the consolidated view is not up to date: {report.not_consolidated.message} "
            "(`dump-ingest consolidate` brings it up to date)",
            before="[yellow]note:[/] ",
        )
    if stop.is_set():
        err.print("Interrupted. What is committed stays; run the same command again for the rest.")
        raise typer.Exit(EXIT_INTERRUPTED)
    if report.failures or report.stopped_by:
        raise typer.Exit(EXIT_PARTLY if report.commits or report.unchanged else EXIT_FAILED)
    if any(error.reason == "damaged_store" for error in report.read_back_failures.values()):
        raise typer.Exit(EXIT_DAMAGE)
    if report.read_back_failures or any(summary.status != "complete" for summary in report.commits):
        raise typer.Exit(EXIT_PARTLY)


def _print_report(report: Report, store: str, seconds: float) -> None:
    commits = sorted(report.commits, key=lambda summary: summary.key.order)
    if report.unchanged:
        count = sum(1 for key in report.unchanged if key.step is not None)
        err.print(f"{count} steps were in the store already, unchanged.")
    if report.removed:
        err.print(f"{len(report.removed)} steps were removed by gc; --replace takes them again.")
    if not commits:
        return
    shown = commits if len(commits) <= _MAX_ROWS else [s for s in commits if _is_special(s)][:_MAX_ROWS]
    rows = [_row(f"{s.key.rank}", step_name(s.key.step), s.status, [s]) for s in shown]
    if len(shown) < len(commits):
        rest = [summary for summary in commits if summary not in shown]
        rows.append(_row("", f"{len(rest)} more", "", rest))
    rows.append(_row("all", str(len({s.key.step for s in commits} - {None})), _worst(commits), commits))
    numbers = ("tensors", "files", "raw", "stored", "duplicates", "NaN", "Inf", "overflows", "problems")
    print_table(("rank", "step", "status", *numbers), rows, right=numbers)
    raw = sum(summary.raw_bytes for summary in commits)
    err.print(f"{human_bytes(raw)} in {seconds:.1f} s")
    if any(summary.anomalous_tensors for summary in commits):
        err.print()
        say(f"NaN and Inf:  dump-ingest origin {shlex.quote(store)}")
    if any(summary.overflows for summary in commits):
        say(f"Overflows:    dump-ingest ls {shlex.quote(store)} --overflows")


def _is_special(summary: CommitSummary) -> bool:
    return summary.status != "complete" or bool(summary.anomalous_tensors or summary.overflows)


def _worst(commits: list[CommitSummary]) -> str:
    return "partial" if any(summary.status == "partial" for summary in commits) else "complete"


def _row(rank: str, step: str, status: str, commits: list[CommitSummary]) -> list[str]:
    def total(field: str) -> int:
        return sum(getattr(summary, field) for summary in commits)

    return [
        rank,
        step,
        status,
        str(total("tensors") + total("statistics_only")),
        str(total("files")),
        human_bytes(total("raw_bytes")),
        human_bytes(total("stored_bytes")),
        str(total("duplicates")),
        str(total("nan_count")),
        str(total("pos_inf_count") + total("neg_inf_count")),
        str(total("overflows")),
        str(total("quarantined") + total("unparsed") + total("disagreements")),
    ]


def _complain(report: Report) -> None:
    from ingest.cli.app import report as report_error

    for problem in report.problems:
        say(f"{problem}" + (f" ({problem.hint})" if problem.hint else ""), before="[yellow]problem:[/] ")
    for summary in report.commits:
        if summary.status != "complete" or summary.unparsed:
            say(
                f"{summary.key}: {summary.status}, {summary.quarantined} files quarantined, "
                f"{summary.unparsed} with names that are not understood; "
                "`dump-ingest ls STORE --problems` names them",
                before="[yellow]problem:[/] ",
            )
        if summary.disagreements:
            say(
                f"{summary.key}: the dump's own statistics of {summary.disagreements} tensors are not those "
                "of their elements; `dump-ingest ls STORE --problems` names them",
                before="[yellow]problem:[/] ",
            )
    for source in ("device id", "process id"):
        if numbers := report.ranks_from.get(source):
            shown = ", ".join(map(str, numbers[:20]))
            say(
                f"the paths name no ranks: {shown} {'is a' if len(numbers) == 1 else 'are'} {source}"
                f"{'' if len(numbers) == 1 else 's'}"
                + (" (--rank-map 0=8,1=9 gives the ranks)" if source == "device id" else ""),
                before="[yellow]note:[/] ",
            )
    _say_findings(report)
    if report.missing_steps:
        shown = ", ".join(map(str, report.missing_steps[:20]))
        err.print(f"[yellow]note:[/] the dump's configuration asks for steps that no rank has (yet): {shown}")
    for kept in report.kept:
        err.print(
            f"[yellow]note:[/] {kept.key}: {kept.gone} of its files gone from the dump; its commit stays"
        )
    for error in ([report.stopped_by] if report.stopped_by else []) + _distinct(
        [*report.failures.values(), *report.read_back_failures.values()]
    ):
        report_error(error)


def _say_findings(report: Report) -> None:
    """Say what rules found, and which could not be evaluated."""
    counts: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for summary in report.commits:
        counts.update(summary.findings_by_severity)
        failed.update(summary.failed_rules)
    for one in report.series:
        for rule, count in one.found.totals.items():
            counts[one.found.severities[rule]] += count
        failed.update(one.found.failed)
    if counts:
        parts = ", ".join(f"{count} {severity}" for severity, count in counts.items())
        say(f"{parts}; `dump-ingest anomalies` lists them", before="[yellow]rules found:[/] ")
    for rule, reason in failed.items():
        say(f"the rule {rule} could not be evaluated: {reason}", before="[yellow]problem:[/] ")


def _distinct(errors: Iterable[DumpIngestError]) -> list[DumpIngestError]:
    """Return one error of each kind, the first, and say how many more there are."""
    kinds: dict[tuple[str, str], list[DumpIngestError]] = {}
    for error in errors:
        kinds.setdefault((error.reason, error.hint), []).append(error)
    return [
        type(first)(first.message + (f" (and {len(more)} more)" if more else ""), hint=first.hint)
        for first, *more in kinds.values()
    ]


class _Progress:
    """A progress bar on stderr, where that is a terminal."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[files]} files"),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=err,
            disable=not err.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("listing", total=None, files=0)
        self._done_bytes = self._done_files = self._committed_bytes = 0
        self._said: set[str] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def observe(self, event: Event) -> None:
        """Move the bar."""
        from ingest.disk.pressure import DiskSeen
        from ingest.dispatch.outcomes import JobConverted, StepCommitted, TaskRetried
        from ingest.watching.watcher import DumpState

        match event:
            case DumpState():
                pending = sum(listing.nbytes for listing in event.pending.values())
                total = max(self._committed_bytes + pending, self._done_bytes)
                self._bar.update(self._task, total=total, description="ingesting")
            case StepCommitted(summary=summary):
                self._committed_bytes += summary.raw_bytes
            case JobConverted(job=job):
                self._done_bytes += job.nbytes
                self._done_files += len(job.entries)
                self._bar.update(self._task, completed=self._done_bytes, files=self._done_files)
            case TaskRetried(error=error) if error.reason not in self._said:
                self._said.add(error.reason)
                say(error.message, before="[yellow]retrying:[/] ")
            case DiskSeen(leave_out_tensors=reason) if reason and "disk" not in self._said:
                self._said.add("disk")
                say(f"{reason}: steps are stored without tensors", before="[yellow]disk nearly full:[/] ")
