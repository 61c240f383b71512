"""`dump-ingest export`: original files back into a directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ingest
from ingest.cli.exits import EXIT_DAMAGE, EXIT_PARTLY, report_damaged
from ingest.cli.options import (
    Conditions,
    ConfigOption,
    JsonOption,
    MeshOption,
    RanksOption,
    StepOption,
    StoreArgument,
    open_store,
    store_and,
    takes_tensor_options,
)
from ingest.cli.printing import print_json, say
from ingest.reader.text import counted, plain
from ingest.units import human_bytes
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey

if TYPE_CHECKING:
    from ingest.reader.catalog import Damage
    from ingest.reader.choice import Choice
    from ingest.reader.export import Exported


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
    parquet: Annotated[
        bool,
        typer.Option(
            "--parquet",
            help="Write tables of steps, statistics, findings and incidents instead: DIRECTORY/*.parquet.",
            show_default=False,
        ),
    ] = False,
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
    instead, put together from the pieces of all ranks; with --parquet, tables for SQL.

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
    if parquet:
        if chosen or is_whole:
            raise UsageError(
                "--parquet writes all tensors of the chosen ranks and steps", hint="Omit the rest."
            )
        written = ingest.export_tables(opened, target, rank, step, overwrite=overwrite, damages=damages)
        _say_tables(written, json=json)
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
    report_damaged(damages)
    if code:
        raise typer.Exit(code)


def _say_tables(tables: Mapping[Path, int], *, json: bool) -> None:
    if json:
        print_json([{"path": str(path), "rows": count} for path, count in tables.items()])
    for path, count in tables.items():
        say(f"{path}: {counted(count, 'row')}")


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
