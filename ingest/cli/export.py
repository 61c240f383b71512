"""`dump-ingest export`: original files back into a directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ingest
from ingest.cli.exits import EXIT_DAMAGE, EXIT_PARTLY, exit_if_damaged, say_damaged
from ingest.cli.opening import open_store, store_and
from ingest.cli.options import (
    Conditions,
    ConfigOption,
    JsonOption,
    MeshOption,
    RanksOption,
    StepOption,
    StoreArgument,
    takes_tensor_options,
)
from ingest.cli.printing import print_json, say
from ingest.reader.text import counted
from ingest.units import human_bytes
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey

if TYPE_CHECKING:
    from ingest.reader.choice import Choice
    from ingest.reader.damage import Damage
    from ingest.reader.files.export import Exported


@takes_tensor_options
def command(
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
    # deferred: numpy, numba and zarr take 0.4 s to import
    from ingest.reader.damage import Damage
    from ingest.reader.files.export import export

    store, target = store_and(store, directory, config, placeholder="DIRECTORY")
    opened = open_store(store, config, mesh=mesh)
    if parquet:
        if chosen or unsharded or placement or layout_map is not None:
            raise UsageError(
                "--parquet writes all tensors of the chosen ranks and steps", hint="Omit the rest."
            )
        _export_tables(opened, target, rank, step, overwrite=overwrite, json=json)
        return
    if unsharded or placement or layout_map is not None:
        if rank is not None:
            raise UsageError("--unsharded takes all ranks", hint="Omit --rank.")
        export_whole(opened, target, step, chosen, placement, layout_map, overwrite=overwrite, json=json)
        return
    files: list[Exported] = []
    removed: dict[StepKey, str] = {}
    damages: list[Damage] = []
    for key, rows in _chosen_rows(opened, rank, step, chosen, damages).items():
        opened_step = opened.step(key.rank, key.step)
        try:
            files += export(opened_step, Path(target), rows, overwrite=overwrite)
        except DamagedStore as exc:  # its index
            damages.append(Damage(key, "", exc.message))
        removed[key] = str(opened_step.commit.without_tensors or "")
    if json:
        print_json([_json_row(file) for file in files])
    _say_exported([file for file in files if not file.problem], target)
    damaged = _say_problems(files, removed)
    say_damaged(damages)
    exit_if_damaged(damages)
    if any(file.problem for file in files):
        raise typer.Exit(EXIT_DAMAGE if damaged else EXIT_PARTLY)


def _export_tables(
    store: ingest.DumpStore, target: str, rank: Choice, step: list[int] | None, *, overwrite: bool, json: bool
) -> None:
    damages: list[Damage] = []
    rows = ingest.export_tables(store, target, rank, step, overwrite=overwrite, damages=damages)
    if json:
        print_json([{"path": str(path), "rows": count} for path, count in rows.items()])
    for path, count in rows.items():
        say(f"{path}: {counted(count, 'row')}")
    say_damaged(damages)
    exit_if_damaged(damages)


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
        from ingest.cli.find_hints import hints  # deferred: imports numpy, as above

        say("no tensor fulfils the conditions", label="warning")
        for hint in hints(store, rank, step, chosen):
            say(hint, label="hint")
    return dict(rows)


def _say_exported(files: Sequence[Exported], target: str) -> None:
    nbytes = sum(file.nbytes for file in files)
    say(f"{counted(len(files), 'file')}, {human_bytes(nbytes)} in {target}")


def _json_row(file: Exported) -> dict[str, Any]:
    return {
        "rank": file.key.rank,
        "step": file.key.step,
        "source": file.source,
        "path": str(file.path),
        "nbytes": file.nbytes,
        "problem": file.problem,
    }


def _say_problems(files: Sequence[Exported], removed: Mapping[StepKey, str]) -> bool:
    """Print why files were not exported; return whether any of them is damaged, not just removed by gc."""
    damaged = [file for file in files if file.problem and file.problem != removed[file.key]]
    for file in damaged:
        say(f"{file.key}: {file.source}: {file.problem}", label="not exported", style="bold red")
    for key, reason in removed.items():
        count = sum(file.key == key and file.problem == reason for file in files) if reason else 0
        if count:
            say(f"{key}: {counted(count, 'file')}: {reason}", label="not exported")
    return bool(damaged)


#: Tensors that are named with the reason why they were not exported.
_MAX_SAID = 3


def export_whole(
    store: ingest.DumpStore,
    directory: str,
    step: list[int] | None,
    chosen: Conditions,
    placement: str,
    layout_map: Path | None,
    *,
    overwrite: bool,
    json: bool,
) -> None:
    """Write whole tensors, say what was not written and why, and exit with 3 or 4 in that case.

    Raises:
        UsageError: two ways of telling the layout are given, a file exists, or nothing is chosen.
        DamagedStore: an index is damaged.
    """
    damages: list[Damage] = []
    exported = ingest.export_unsharded(
        store,
        directory,
        step,
        placement=_placement_of(placement, layout_map),
        overwrite=overwrite,
        damages=damages,
        **chosen,
    )
    if json:
        print_json([whole.to_dict() for whole in exported])
    written = [whole for whole in exported if not whole.problem]
    failed = [whole for whole in exported if whole.problem]
    if not exported:
        say("no tensor fulfils the conditions", label="warning")
    _say_written(written, directory)
    _say_failed(failed)
    say_damaged(damages)
    exit_if_damaged(damages)
    if failed:
        raise typer.Exit(_exit_code(failed))


def _say_written(written: Sequence[ingest.ExportedWhole], directory: str) -> None:
    files = len({whole.path for whole in written})
    nbytes = human_bytes(sum(whole.nbytes for whole in written))
    say(f"{counted(len(written), 'tensor')}, {nbytes} in {counted(files, 'file')} in {directory}")


def _exit_code(failed: Sequence[ingest.ExportedWhole]) -> int:
    return EXIT_DAMAGE if any(whole.is_damaged for whole in failed) else EXIT_PARTLY


def _say_failed(failed: Sequence[ingest.ExportedWhole]) -> None:
    """Print which tensors were not written, once for each step and reason."""
    by_reason: dict[tuple[int, str], list[str]] = {}
    for whole in failed:
        by_reason.setdefault((whole.step, whole.problem), []).append(whole.name)
    for (step, problem), names in by_reason.items():
        shown = ", ".join(names[:_MAX_SAID]) + ", ..." * (len(names) > _MAX_SAID)
        which = f"{counted(len(names), 'tensor')} of step {step} ({shown})"
        say(f"{which}: {problem}", label="not exported", style="bold red")
    if any(not whole.is_damaged for whole in failed):
        say("  Name the layout with --placement or --layout-map; `dump-ingest layout` shows what is known.")


def _placement_of(placement: str, layout_map: Path | None) -> str | Callable[[str], str]:
    """Return the placement of all tensors, or a function that returns that of one.

    Raises:
        UsageError: both are given, or the map cannot be read.
    """
    if layout_map is None:
        return placement
    if placement:
        raise UsageError("--placement and --layout-map both say how ranks hold tensors", hint="Give one.")
    from ingest.questions.compare import load_layout_map  # deferred: numpy and zarr take 0.4 s to import

    return load_layout_map(layout_map).placement_of
