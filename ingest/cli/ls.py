"""`dump-ingest ls`: what is in a store."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import ingest
from ingest.cli.exits import exit_if_damaged, say_damaged
from ingest.cli.find import print_tensors
from ingest.cli.opening import open_store
from ingest.cli.options import (
    ConfigOption,
    JsonOption,
    MeshOption,
    RanksOption,
    StepOption,
    StoreArgument,
    WatchersOption,
)
from ingest.cli.printing import print_json, print_line, print_table, say, step_text
from ingest.cli.watch_explain import print_rows
from ingest.reader.text import counted
from ingest.units import human_bytes
from workers.errors import DamagedStore
from workers.model import StepKey

if TYPE_CHECKING:
    from ingest.reader.damage import Damage

_Row = TypeVar("_Row")


def command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    tensors: Annotated[bool, typer.Option("--tensors", "-t", help="List the tensors of the steps.")] = False,
    files: Annotated[bool, typer.Option("--files", help="List the files that are not tensors.")] = False,
    problems: Annotated[
        bool,
        typer.Option(
            "--problems", help="List quarantined files, and files with names that are not understood."
        ),
    ] = False,
    overflows: Annotated[
        bool, typer.Option("--overflows", help="List the overflow records and the operators that overflowed.")
    ] = False,
    missing: Annotated[
        bool,
        typer.Option(
            "--missing", help="List what the configuration of the dump asked for and is not in the store."
        ),
    ] = False,
    watchers: WatchersOption = "",
    token: Annotated[
        bool,
        typer.Option(
            "--token",
            help="Print a word that changes when a step is committed, changed, removed or evaluated.",
        ),
    ] = False,
    mesh: MeshOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the committed steps, or the tensors, files, problems or overflow records in them.

    If a step is damaged, it is named, the others are listed, and the exit code is 3.

    [bold]dump-ingest ls s3://bucket/run.zarr[/]             every step
    [bold]dump-ingest ls run.zarr -r 1 -n 8 --tensors[/]     the tensors of rank 1, step 8
    [bold]dump-ingest ls run.zarr --watchers node1:9108[/]   what is still to come
    """
    from ingest.reader.rows import file_rows, overflow_rows, step_row  # deferred: numba, zarr: 0.5 s

    damages: list[Damage] = []
    opened_store = open_store(store, config, mesh=mesh)
    if watchers or token or missing:
        if watchers:
            _print_watchers(ingest.watchers(opened_store, watchers), json=json)
        elif token:
            _print_token(opened_store, json=json)
        else:
            _print_missing(ingest.missing(opened_store, rank, damages=damages), json=json)
            say_damaged(damages)
            exit_if_damaged(damages)
        return
    steps = opened_store.select(rank, step, damages=damages)
    damaged = {damage.key: damage.reason for damage in damages}
    if tensors:
        print_tensors(_rows(steps, lambda opened: opened.tensors(), damaged), json=json)
    elif files or problems:
        what = "problem" if problems else "file that is not a tensor"
        rows = _rows(steps, lambda opened: file_rows(opened, problems=problems), damaged)
        _print_files(rows, none=_none(what, steps, damaged), json=json)
    elif overflows:
        rows = _rows(steps, overflow_rows, damaged)
        _print_overflows(rows, none=_none("overflow record", steps, damaged), json=json)
    else:
        opened_store.coordinates({opened.key.rank for opened in steps})  # all at once
        rows = [step_row(opened) for opened in steps]
        _print_steps(rows, json=json)
        _say_mixed(rows)
    say_damaged(f"{key}: {reason.removeprefix(f'{key}: ')}" for key, reason in damaged.items())
    exit_if_damaged(damaged.values())


def _print_missing(items: ingest.MissingItems, *, json: bool) -> None:
    if json:
        print_json(list(items.rows()))
    elif not items:
        say("no dump configuration in the store requests anything that is missing")
    else:
        rows = (
            (item.what, item.name, "all" if item.rank is None else str(item.rank), item.reason)
            for item in items
        )
        print_table(("what", "name", "rank", "reason"), rows)


def _print_watchers(watchers: Sequence[ingest.LiveWatcher], *, json: bool) -> None:
    """Print a row for each watcher, and one for each step that is not settled."""
    if json:
        print_json([watcher.to_dict() for watcher in watchers])
        return
    if not watchers:
        say("the watchers that answer write to other stores")
        return
    numbers = ("ranks", "settled", "pending", "bytes", "lag", "disk, free")
    print_table(("watcher", "state", *numbers), map(_watcher_cells, watchers), right=numbers)
    if steps := [row for watcher in watchers for row in watcher.steps]:
        print_line("")
        print_rows(steps, json=False)


def _watcher_cells(watcher: ingest.LiveWatcher) -> tuple[str, ...]:
    if watcher.problem:
        return (watcher.url, watcher.problem, *["-"] * 6)
    return (
        watcher.url,
        "answers",
        str(len(watcher.ranks)),
        counted(watcher.settled, "step"),
        counted(sum(rank.pending_steps for rank in watcher.ranks), "step"),
        human_bytes(sum(rank.pending_bytes for rank in watcher.ranks)),
        f"{max((rank.lag_s for rank in watcher.ranks), default=0):.0f} s",
        human_bytes(watcher.disk.free_bytes) if watcher.disk else "-",
    )


def _print_token(store: ingest.DumpStore, *, json: bool) -> None:
    """Print the word, or what the page says of a store that answers."""
    from ingest.page.moment import Moment  # deferred: numba, zarr: 0.5 s
    from ingest.page.rendering import clock  # deferred: as above

    moment = Moment.of(store)
    if json:
        print_json({"token": moment.token, "clock": clock(moment.read_at), "away": ""})
    else:
        print_line(moment.token)
    say_damaged(moment.damages)
    exit_if_damaged(moment.damages)


def _rows(
    steps: Sequence[ingest.Step],
    rows_of: Callable[[ingest.Step], Iterable[_Row]],
    damaged: dict[StepKey, str],
) -> list[_Row]:
    """Return the rows of all steps; add each step whose index is damaged to `damaged`, and go on."""
    rows: list[_Row] = []
    for step in steps:
        try:
            rows += rows_of(step)
        except DamagedStore as exc:
            damaged[step.key] = exc.message
    return rows


def _none(what: str, steps: Sequence[ingest.Step], damaged: Container[StepKey]) -> str:
    """Say that there is none of it, and in how many steps: those that could be read."""
    return f"no {what} in {counted(sum(step.key not in damaged for step in steps), 'step')}"


def _print_files(rows: Sequence[dict[str, Any]], *, none: str, json: bool) -> None:
    if json:
        print_json(rows)
        return
    if not rows:
        say(none)
        return
    print_table(
        ("rank", "step", "kind", "bytes", "source", "problem"),
        (
            (
                str(row["rank"]),
                step_text(row["step"]),
                row["kind"],
                human_bytes(row["nbytes"]),
                row["source"],
                row["problem"],
            )
            for row in rows
        ),
        right=("bytes",),
    )


def _print_steps(rows: Sequence[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json(rows)
        return
    meshes = [_mesh_text(row["coordinates"]) for row in rows]
    has_mesh = any(meshes)
    numbers = ("tensors", "files", "NaN", "Inf", "overflows", "problems", "raw", "stored")
    print_table(
        ("rank", *(["mesh"] * has_mesh), "step", "status", *numbers, "committed (UTC)"),
        (
            (
                str(row["rank"]),
                *([mesh or "-"] * has_mesh),
                step_text(row["step"]),
                row["status"] + ("" if row["has_tensors"] else ", no tensors"),
                str(row["tensors"] + row["statistics_only"]),
                str(row["files"]),
                str(row["nan_count"]),
                str(row["pos_inf_count"] + row["neg_inf_count"]),
                str(row["overflows"]),
                str(row["problems"]),
                human_bytes(row["raw_bytes"]),
                human_bytes(row["stored_bytes"]),
                row["committed_at"][:19].replace("T", " "),
            )
            for row, mesh in zip(rows, meshes, strict=True)
        ),
        right=numbers,
        spare=("files", "raw", "committed (UTC)", "mesh", "overflows", "stored", "Inf"),
    )


def _mesh_text(coordinates: dict[str, Any]) -> str:
    """Write what `step_row` has in `coordinates`."""
    from ingest.reader.parallel.mesh import Coordinate, format_coordinates  # deferred: as in `command`

    return format_coordinates({axis: Coordinate(*place) for axis, place in coordinates.items()})


def _say_mixed(rows: Sequence[dict[str, Any]]) -> None:
    """Print which ranks have steps from several dumps: a moved one, or another one by mistake."""
    steps_by_root: dict[int, dict[str, list[int]]] = {}
    for row in rows:
        if row["step"] is not None:
            steps_by_root.setdefault(row["rank"], {}).setdefault(row["root"], []).append(row["step"])
    for rank, roots in steps_by_root.items():
        if len(roots) > 1:
            places = ", ".join(
                f"{root} ({counted(len(steps), 'step')}, {min(steps)} to {max(steps)})"
                for root, steps in roots.items()
            )
            say(f"rank {rank} comes from {len(roots)} dump directories: {places}", label="warning")


def _print_overflows(rows: Sequence[dict[str, Any]], *, none: str, json: bool) -> None:
    if json:
        print_json(rows)
        return
    if not rows:
        say(none)
        return
    print_table(
        ("rank", "step", "unit", "stream", "task", "operator", "source"),
        (
            (
                str(row["rank"]),
                step_text(row["step"]),
                row["unit"],
                str(row["stream"]),
                str(row["task"]),
                f"{row['op_type']}.{row['op_name']}" if row["op_name"] else "not in the dump",
                row["source"],
            )
            for row in rows
        ),
        right=("stream", "task"),
    )
