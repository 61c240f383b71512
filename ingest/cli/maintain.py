"""The commands that maintain a store: `verify`, `repair`, `consolidate`, `sketch`, `gc` and `export`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec import structs

import ingest
from ingest.cli.exits import (
    EXIT_DAMAGE,
    EXIT_INTERRUPTED,
    EXIT_PARTLY,
    end_if_damaged,
    end_now,
    stop_on_signals,
)
from ingest.cli.options import (
    Conditions,
    ConfigOption,
    Flags,
    JsonOption,
    MeshOption,
    RankOption,
    RanksOption,
    StepOption,
    StoreArgument,
    load_settings_with_store,
    open_store,
    size_of,
    store_and,
    takes_settings,
    takes_tensor_options,
)
from ingest.cli.printing import is_terminal, print_json, print_line, say, status
from ingest.reader.text import counted, plain
from ingest.units import human_bytes
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey

if TYPE_CHECKING:
    from ingest.reader.catalog import Damage
    from ingest.reader.choice import Choice
    from ingest.reader.export import Exported
    from ingest.reader.verifying import StoreDamage
    from ingest.repairing.work import RepairReport, StepRepair
    from workers.tasks.consolidate import Sketched


def verify_command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Read everything back, recompute every digest and statistic, and name what is damaged.

    Exits with 3 if anything is damaged; `dump-ingest repair` makes it again.
    """
    # deferred: numpy, numba and zarr take 0.4 s to import
    from ingest.reader.verifying import Verified, uncommitted, verify, verify_copies, verify_surroundings

    opened = open_store(store, config)
    keys, notes = None, []
    if rank or step:
        unread: list[Damage] = []
        chosen = opened.select(rank, step, damages=unread)
        keys = [*(step.key for step in chosen), *(damage.key for damage in unread)]
    total = Verified()

    def keep_total(so_far: Verified) -> None:
        nonlocal total
        total = so_far

    with status("verifying"):
        damages: list[Damage | StoreDamage] = list(verify(opened, keys, keep_total))
        if keys is None:
            damages += verify_surroundings(opened.objects)
            damages += verify_copies(opened.objects)
            notes = uncommitted(opened.objects)
    if json:
        print_json(list(map(_json_row, damages)))
    else:
        for damage in damages:
            print_line(str(damage))
    say(
        f"{counted(total.steps, 'step')}, {counted(total.files, 'file')}, {human_bytes(total.nbytes)} read; "
        f"{len(damages)} damaged"
    )
    for key in notes:
        say(
            f"{key} has objects but no commit, for more than a day: an ingest was interrupted, or the commit "
            "was deleted. `ingest` takes the step again, `gc` removes the objects",
            label="note",
        )
    if damages:
        say(
            f"`dump-ingest repair {shlex.quote(opened.url)}` shows from what it can be restored", label="hint"
        )
        raise typer.Exit(EXIT_DAMAGE)


def _json_row(damage: Damage | StoreDamage) -> dict[str, Any]:
    return {
        "rank": damage.key.rank if damage.key else None,
        "step": damage.key.step if damage.key else None,
        "source": damage.source,
        "reason": damage.reason,
    }


#: Lines of one kind that are printed for a step; --json has all.
_MAX_LINES = 20


@takes_settings(
    "rank_map",
    "layout",
)
def repair_command(
    store: StoreArgument = None,
    dump: Annotated[
        list[Path] | None,
        typer.Option(
            "--dump",
            metavar="DIR",
            help="A dump to take lost data from, besides those that the commits name; may be repeated.",
            show_default=False,
        ),
    ] = None,
    *,
    flags: Flags,
    rank: RankOption = None,
    step: StepOption = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Commit steps again, as partial, without the tensors and files that are found nowhere.",
        ),
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Write. Without it, nothing is changed.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make damaged or missing objects again: from the dump, or from copies in the store.

    Reads and checks everything, as `verify` does. Without --apply, it prints what it would write and where it
    would take it from.

    Exits with 0 if nothing is damaged or everything was repaired, and with 3 if damage remains.

    [bold]dump-ingest repair run.zarr[/]                            what is damaged
    [bold]dump-ingest repair run.zarr --apply[/]                    mend it
    [bold]dump-ingest repair run.zarr --dump /mnt/backup --apply[/] with a copy of the dump
    """
    # deferred: numba, numpy and zarr take 0.5 s to import
    from ingest.repairing import repair
    from ingest.wiring.stores import grid_of
    from workers.rules.schema import load_rules

    settings = load_settings_with_store(config, store=store, **flags).settings
    with status("checking") as shown:
        report = repair(
            settings.store or "",
            dump or (),
            rank=rank,
            step=step,
            apply=apply,
            accept_loss=accept_loss,
            grid=grid_of(settings),
            rules=load_rules(settings.rules).enabled,
            host=settings.host,
            rank_map=settings.rank_map,
            layout=settings.layout,
            progress=lambda key: shown.update(f"checking {key}"),
            **settings.store_arguments,
        )
    if json:
        print_json(report.to_dict())
    else:
        for outcome in report.repairs:
            _print_repair(outcome, applied=report.applied)
    _say_end(report, accept_loss=accept_loss)
    if not report.is_clean:
        raise typer.Exit(EXIT_DAMAGE)


def _print_repair(outcome: StepRepair, *, applied: bool) -> None:
    subject = "store" if outcome.key is None else str(outcome.key)
    _print_lines([f"{subject}: damaged: {damage}" for damage in outcome.damages])
    done = "repaired" if applied else "can be repaired"
    _print_lines([f"{subject}: {done}: {mended.path}, from {mended.origin}" for mended in outcome.mended])
    if outcome.generation:
        verb = "was" if applied else "would be"
        print_line(f"{subject}: {verb} committed again as generation {outcome.generation}")
    _print_lines([f"{subject}: lost: {lost.what}: {lost.reason}" for lost in outcome.lost])
    _print_lines([f"{subject}: still damaged: {reason}" for reason in outcome.remains])


def _print_lines(lines: list[str]) -> None:
    for line in lines[:_MAX_LINES]:
        print_line(line)
    if len(lines) > _MAX_LINES:
        print_line(f"  and {len(lines) - _MAX_LINES} more; --json has all")


def _say_end(report: RepairReport, *, accept_loss: bool) -> None:
    damaged = [outcome for outcome in report.repairs if outcome.key is not None]
    say(f"{counted(report.checked, 'step')} checked; {len(damaged)} damaged")
    has_lost = any(outcome.lost for outcome in report.repairs)
    if report.repairs and not report.applied:
        say("Nothing was changed. Add --apply to carry this out.")
    if has_lost and not accept_loss:
        say(
            "What is lost was found neither in a dump nor in the store. Name a copy of the dump with "
            "--dump DIR; --accept-loss keeps the rest of such steps, as partial.",
            label="note",
        )


@takes_settings(
    "scheduler",
    "workers",
    "expected_ranks",
)
def consolidate_command(
    store: StoreArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep going until SIGTERM.")] = False,
    poll: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="With --follow: how often to look for commits.")
    ] = 5.0,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="With --follow: how long a step waits for ranks that have not committed it.",
        ),
    ] = 60.0,
    finish: Annotated[
        bool | None,
        typer.Option(
            "--finish",
            help="With --follow: on SIGTERM, take every commit first, as it is: the job has ended.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read every commit again, not only new and announced ones.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build the view from scratch.")] = False,
    *,
    flags: Flags,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --follow: where to serve /metrics."),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Update the consolidated view: one array per statistic over step, rank and tensor.

    `ingest` does this at its end. Next to `watch`, run it with --follow, one process for all hosts. The view
    holds nothing that is not in the steps themselves: you may stop, kill or restart this at any time.
    Histograms and marginals are added to old steps by [bold]dump-ingest sketch[/], not here.

    Exits with 3 if a step is damaged.

    [bold]dump-ingest consolidate run.zarr[/]
    [bold]dump-ingest consolidate s3://bucket/run.zarr --follow --metrics 0.0.0.0:9109[/]
    """
    # deferred: dask, numba and zarr take 1.1 s to import
    from ingest.cli.consolidate_follow import say_consolidated
    from ingest.wiring.consolidation import open_consolidator

    settings = load_settings_with_store(
        config,
        store=store,
        consolidator_metrics=metrics,
        finish=finish,
        **flags,
    ).settings
    if follow:
        stop = stop_on_signals(settings.drain_s)
        from ingest.cli.consolidate_follow import Following  # deferred: logs and metrics take 0.1 s to import

        Following(settings, poll_s=poll, patience_s=patience, rebuild=rebuild, json=json).run(stop)
        if stop.is_interrupt:
            end_now(EXIT_INTERRUPTED)
        return
    with open_consolidator(settings) as consolidator:
        consolidated = consolidator.once(check=check, rebuild=rebuild)
        say_consolidated(consolidated, consolidator, json=json)
    if consolidated.damaged:
        raise typer.Exit(EXIT_DAMAGE)


@takes_settings(
    "scheduler",
    "workers",
)
def sketch_command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    flags: Flags,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Add histograms and marginals to steps that were committed without, from the tensors in the store.

    [bold]precision[/], [bold]quantiles[/] and [bold]outliers[/] answer from them, also when the tensors are
    gone. You may stop this at any time, and run it again. Exits with 3 if a step is damaged.

    [bold]dump-ingest sketch run.zarr[/]
    """
    from ingest.wiring.consolidation import sketch  # deferred: dask and numba take 1 s to import

    settings = load_settings_with_store(config, store=store, **flags).settings
    report = sketch(settings.store or "", rank=rank, step=step, settings=settings, progress=_say_step)
    if json:
        print_json(report.to_dict())
    else:
        had = f"; {counted(report.had, 'step')} had them" if report.had else ""
        say(f"sketches added to {counted(len(report.added), 'step')}{had}")
    if report.added:
        view = f"dump-ingest consolidate {shlex.quote(settings.store or '')} --rebuild"
        say(f"`{view}` puts them into the consolidated view", label="hint")
    for left in report.left:
        say(f"{left.key}: {left.left}", label="left out")
    for reason in report.damaged:
        say(reason, label="damaged", style="bold red")
    if report.damaged:
        raise typer.Exit(EXIT_DAMAGE)


def _say_step(sketched: Sketched) -> None:
    if is_terminal() and not sketched.left:
        say(f"{sketched.key}: {counted(sketched.tensors, 'tensor')}")


def gc_command(
    store: StoreArgument = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Remove steps committed longer ago than this: 12h, 30d, 8w."),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Never touch the newest N steps of a rank. Without --older-than, --max-size and "
            "--tensors-around-anomalies: remove all others.",
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Remove the oldest steps until the store fits: 500GiB, 10TiB."),
    ] = None,
    tensors_around_anomalies: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Remove the tensors of steps more than N dumped steps away from any anomaly; keep the rest.",
        ),
    ] = None,
    keep_anomalous: Annotated[
        bool, typer.Option("--keep-anomalous", help="Never remove steps with an anomaly on any rank.")
    ] = False,
    grace: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="How long objects that no commit points to stay after the last write next to them.",
        ),
    ] = "24h",
    recompress: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Remove nothing: encode tensors of steps older than this again, smaller but slower to read.",
        ),
    ] = None,
    rank: RankOption = None,
    step: StepOption = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry the plan out. Without it, nothing is changed.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the plan to this file; with --apply: carry out the plan in this file.",
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove steps, or only their tensors, by age, number, size and distance to anomalies.

    Without --apply, it prints what it would remove and changes nothing. It also removes what crashed ingests
    left behind, and previous generations of steps, after the grace period. You may kill it at any time, and
    run it next to everything else.

    With --rank or --step, it removes exactly these steps: those that went into the store by mistake.

    With --recompress, it removes nothing: old steps that are rarely read take less room afterwards. What they
    took before goes with the next gc after the grace period.

    Exits with 4 if something in the plan was left alone.

    [bold]dump-ingest gc run.zarr --older-than 30d --keep-anomalous[/]          what goes
    [bold]dump-ingest gc run.zarr --older-than 30d --keep-anomalous --apply[/]  remove it
    [bold]dump-ingest gc run.zarr --rank 3 --step 40 --step 41 --apply[/]       two steps
    [bold]dump-ingest gc run.zarr --tensors-around-anomalies 2 --plan p.json[/] to review
    [bold]dump-ingest gc run.zarr --plan p.json --apply[/]                      that plan
    [bold]dump-ingest gc run.zarr --recompress 7d --apply[/]                    smaller
    """
    from ingest.cli import gc_run  # deferred: numba, numpy and zarr take 0.5 s to import
    from ingest.store_gc.plan import GcPolicy, parse_duration  # deferred: the same

    settings = load_settings_with_store(config, store=store).settings
    policy = GcPolicy(
        older_than_s=None if older_than is None else parse_duration(older_than),
        keep_last=keep_last,
        max_bytes=None if max_size is None else size_of("--max-size", max_size),
        tensors_around_anomalies=tensors_around_anomalies,
        keep_anomalous=keep_anomalous,
        grace_s=parse_duration(grace),
        ranks=tuple(rank) if rank else None,
        steps=tuple(step) if step else None,
    )
    if recompress is not None:
        if plan is not None or structs.replace(policy, ranks=None, steps=None) != GcPolicy():
            raise UsageError(
                "--recompress removes nothing: options that choose what goes do not apply",
                hint="Give it with --rank, --step, --apply and --json alone.",
            )
        gc_run.recompress(settings, recompress, ranks=rank, steps=step, apply=apply, json=json)
    elif apply:
        gc_run.carry_out(settings, policy, plan_file=plan, json=json)
    else:
        gc_run.print_plan_of(settings, policy, plan_file=plan, json=json)


@takes_tensor_options
def export_command(
    store: StoreArgument = None,
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="DIRECTORY", help="The target directory; created if missing.", show_default=False
        ),
    ] = None,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    chosen: Conditions,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    unsharded: Annotated[
        bool,
        typer.Option(
            "--unsharded",
            help="Write whole tensors, put together from all ranks: DIRECTORY/step{N}.safetensors.",
            show_default=False,
        ),
    ] = False,
    form: Annotated[
        Literal["files", "parquet", "perfetto", "model-explorer", "tensorboard", "wandb", "mlflow"],
        typer.Option(
            "--as",
            help="What to write: the original files; tables for SQL; a trace of operators; their graph; "
            "or statistics as scalars of a tracker.",
        ),
    ] = "files",
    placement: Annotated[
        str,
        typer.Option(
            metavar="PLACEMENT",
            help="How ranks hold them, such as 'shard 0'; implies --unsharded. Default: as the dump tells.",
            show_default=False,
        ),
    ] = "",
    layout_map: Annotated[
        Path | None,
        typer.Option(
            "--layout-map",
            metavar="FILE",
            help="YAML file that says how ranks hold tensors; implies --unsharded.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    mesh: MeshOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Write the original files back, byte for byte, under the paths they had in the dump.

    Options that choose tensors export these, and no other files. With --unsharded, whole tensors are written
    instead, put together from the pieces of all ranks; with --as, what other programs read.

    Exits with 3 if a file or a step is damaged in the store, and with 4 if files were removed from the store
    by gc, or if it is not known how ranks hold a tensor.

    [bold]dump-ingest export run.zarr out/ --rank 1 --step 2 --where "nan_count > 0"[/]
    [bold]dump-ingest export run.zarr out/ --step 2 --name "Parameter.*" --unsharded[/]
    """
    store, target = store_and(store, directory, config, placeholder="DIRECTORY")
    opened = open_store(store, config, mesh=mesh)
    is_whole = unsharded or bool(placement) or layout_map is not None
    damages: list[Damage] = []
    code = 0
    if form != "files":
        if chosen or is_whole:
            raise UsageError(
                f"--as {form} writes all tensors of the chosen ranks and steps", hint="Omit the rest."
            )
        writers: Mapping[str, tuple[Callable[..., dict[Path, int]], str]] = {
            "parquet": (ingest.export_tables, "row"),
            "perfetto": (ingest.export_trace, "operator"),
            "model-explorer": (ingest.export_graphs, "operator"),
            "tensorboard": (ingest.export_scalars, "scalar"),
            "wandb": (partial(ingest.export_scalars, tracker="wandb"), "scalar"),
            "mlflow": (partial(ingest.export_scalars, tracker="mlflow"), "scalar"),
        }
        write, noun = writers[form]
        written = write(opened, target, rank, step, overwrite=overwrite, damages=damages)
        _say_written(written, noun, json=json)
    elif is_whole:
        if rank is not None:
            raise UsageError("--unsharded takes all ranks", hint="Omit --rank.")
        known = _placement_of(placement, layout_map)
        how: dict[str, Any] = {"placement": known, "overwrite": overwrite, "damages": damages}
        exported = ingest.export_unsharded(opened, target, step, **how, **chosen)
        if json:
            print_json(plain(exported))
        code = _say_whole(exported, target)
    else:
        rows = _chosen_rows(opened, rank, step, chosen, damages)
        code = _export_files(opened, rows, target, damages, overwrite=overwrite, json=json)
    end_if_damaged(damages)
    if code:
        raise typer.Exit(code)


def _say_written(written: Mapping[Path, int], noun: str, *, json: bool) -> None:
    if json:
        print_json([{"path": str(path), f"{noun}s": count} for path, count in written.items()])
    for path, count in written.items():
        say(f"{path}: {counted(count, noun)}")


def _chosen_rows(
    store: ingest.DumpStore,
    rank: Choice,
    step: list[int] | None,
    chosen: Conditions,
    damages: list[Damage],
) -> Mapping[StepKey, list[int] | None]:
    """Return the rows of each step to export; None for all rows, files that are not tensors included."""
    if not chosen:
        return {opened.key: None for opened in store.select(rank, step, damages=damages)}
    rows: dict[StepKey, list[int]] = {}
    for tensor in store.tensors(rank=rank, step=step, **chosen, damages=damages):
        rows.setdefault(StepKey(tensor.rank, tensor.step), []).append(tensor.row)
    if not rows:
        from ingest.questions.find import hints  # deferred: numpy takes 0.1 s

        say("no tensor fulfils the conditions", label="warning")
        for hint in hints(store, rank, step, chosen):
            say(hint, label="hint")
    return dict(rows)


def _export_files(
    store: ingest.DumpStore,
    chosen: Mapping[StepKey, list[int] | None],
    target: str,
    damages: list[Damage],
    *,
    overwrite: bool,
    json: bool,
) -> int:
    # deferred: numpy, numba and zarr take 0.4 s to import
    from ingest.reader.catalog import Damage
    from ingest.reader.export import export

    files: list[Exported] = []
    removed: dict[StepKey, str] = {}
    for key, rows in chosen.items():
        opened = store.step(key.rank, key.step)
        try:
            files += export(opened, Path(target), rows, overwrite=overwrite)
        except DamagedStore as exc:  # its index
            damages.append(Damage(key, "", exc.message))
        removed[key] = str(opened.commit.without_tensors or "")
    if json:
        print_json(
            [
                {
                    **plain(file.key),
                    "source": file.source,
                    "path": str(file.path),
                    "nbytes": file.nbytes,
                    "problem": file.problem,
                }
                for file in files
            ]
        )
    return _say_files(files, removed, target)


def _say_files(files: Sequence[Exported], removed: Mapping[StepKey, str], target: str) -> int:
    written = [file for file in files if not file.problem]
    say(f"{counted(len(written), 'file')}, {human_bytes(sum(file.nbytes for file in written))} in {target}")
    damaged = [file for file in files if file.problem and file.problem != removed[file.key]]
    for file in damaged:
        say(f"{file.key}: {file.source}: {file.problem}", label="not exported", style="bold red")
    for key, reason in removed.items():
        if reason and (count := sum((file.key, file.problem) == (key, reason) for file in files)):
            say(f"{key}: {counted(count, 'file')}: {reason}", label="not exported")
    if len(written) == len(files):
        return 0
    return EXIT_DAMAGE if damaged else EXIT_PARTLY


#: Tensors that are named with the reason why they were not exported.
_MAX_SAID = 3


def _say_whole(exported: Sequence[ingest.ExportedWhole], target: str) -> int:
    if not exported:
        say("no tensor fulfils the conditions", label="warning")
    written = [whole for whole in exported if not whole.problem]
    files = counted(len({whole.path for whole in written}), "file")
    nbytes = human_bytes(sum(whole.nbytes for whole in written))
    say(f"{counted(len(written), 'tensor')}, {nbytes} in {files} in {target}")
    failed = [whole for whole in exported if whole.problem]
    return _say_failed(failed) if failed else 0


def _say_failed(failed: Sequence[ingest.ExportedWhole]) -> int:
    by_reason: dict[tuple[int, str], list[str]] = {}
    for whole in failed:
        by_reason.setdefault((whole.step, whole.problem), []).append(whole.name)
    for (step, problem), names in by_reason.items():
        shown = ", ".join(names[:_MAX_SAID]) + ", ..." * (len(names) > _MAX_SAID)
        which = f"{counted(len(names), 'tensor')} of step {step} ({shown})"
        say(f"{which}: {problem}", label="not exported", style="bold red")
    if not all(whole.is_damaged for whole in failed):
        say("  Name the layout with --placement or --layout-map; `dump-ingest layout` shows what is known.")
    return EXIT_DAMAGE if any(whole.is_damaged for whole in failed) else EXIT_PARTLY


def _placement_of(placement: str, layout_map: Path | None) -> str | Callable[[str], str]:
    if layout_map is None:
        return placement
    if placement:
        raise UsageError("--placement and --layout-map both say how ranks hold tensors", hint="Give one.")
    # deferred: numpy and zarr take 0.4 s to import
    from ingest.questions.placement.layout_map import load_layout_map

    return load_layout_map(layout_map).placement_of
