"""`dump-ingest ls`: what is in a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ingest
from ingest.cli.exits import report_damaged
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
from ingest.cli.printing import print_json, print_line, print_rows, say, step_text
from ingest.cli.watch_explain import print_steps
from ingest.reader.text import counted
from ingest.units import human_bytes
from workers.errors import DamagedStore

if TYPE_CHECKING:
    from ingest.reader.damage import Damage
    from workers.model import StepKey

#: What heads each table, and what stands below.
_Columns = Mapping[str, Callable[[Any], object]]
_PLACE: _Columns = {"rank": itemgetter("rank"), "step": lambda row: step_text(row["step"])}
_FILES: _Columns = {
    **_PLACE,
    "kind": itemgetter("kind"),
    "bytes": lambda row: human_bytes(row["nbytes"]),
    "source": itemgetter("source"),
    "problem": itemgetter("problem"),
}
_OVERFLOWS: _Columns = {
    **_PLACE,
    "unit": itemgetter("unit"),
    "stream": itemgetter("stream"),
    "task": itemgetter("task"),
    "operator": lambda row: f"{row['op_type']}.{row['op_name']}" if row["op_name"] else "not in the dump",
    "source": itemgetter("source"),
}
_MISSING: _Columns = {
    "what": attrgetter("what"),
    "name": attrgetter("name"),
    "rank": lambda item: "all" if item.rank is None else str(item.rank),
    "reason": attrgetter("reason"),
}
_STEPS: _Columns = {
    "rank": itemgetter("rank"),
    "mesh": lambda row: _mesh_text(row) or "-",
    "step": lambda row: step_text(row["step"]),
    "status": lambda row: row["status"] + ("" if row["has_tensors"] else ", no tensors"),
    "tensors": lambda row: str(row["tensors"] + row["statistics_only"]),
    "files": itemgetter("files"),
    "NaN": itemgetter("nan_count"),
    "Inf": lambda row: str(row["pos_inf_count"] + row["neg_inf_count"]),
    "overflows": itemgetter("overflows"),
    "problems": itemgetter("problems"),
    "raw": lambda row: human_bytes(row["raw_bytes"]),
    "stored": lambda row: human_bytes(row["stored_bytes"]),
    "committed (UTC)": lambda row: row["committed_at"][:19].replace("T", " "),
}
_WATCHERS: _Columns = {
    "watcher": attrgetter("url"),
    "state": lambda of: of.problem or "answers",
    "ranks": lambda of: None if of.problem else len(of.ranks),
    "settled": lambda of: None if of.problem else counted(of.settled, "step"),
    "pending": lambda of: (
        None if of.problem else counted(sum(rank.pending_steps for rank in of.ranks), "step")
    ),
    "bytes": lambda of: None if of.problem else human_bytes(sum(rank.pending_bytes for rank in of.ranks)),
    "lag": lambda of: None if of.problem else f"{max((rank.lag_s for rank in of.ranks), default=0):.0f} s",
    "disk, free": lambda of: None if of.problem or not of.disk else human_bytes(of.disk.free_bytes),
}


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
    opened = open_store(store, config, mesh=mesh)
    if watchers:
        _print_watchers(ingest.watchers(opened, watchers), json=json)
        return
    if token:
        damages += _print_token(opened, json=json)
    elif missing:
        items = ingest.missing(opened, rank, damages=damages)
        none = "no dump configuration in the store requests anything that is missing"
        print_rows(items, _MISSING, as_json=json, none=none)
    steps = [] if token or missing else opened.select(rank, step, damages=damages)
    damaged: dict[StepKey, str] = {}
    if tensors:
        print_tensors(_rows(steps, lambda step: step.tensors(), damaged), json=json)
    elif files or problems:
        rows = _rows(steps, lambda step: file_rows(step, problems=problems), damaged)
        none = _none("problem" if problems else "file that is not a tensor", len(steps) - len(damaged))
        print_rows(rows, _FILES, as_json=json, none=none, right=("bytes",))
    elif overflows:
        rows = _rows(steps, overflow_rows, damaged)
        none = _none("overflow record", len(steps) - len(damaged))
        print_rows(rows, _OVERFLOWS, as_json=json, none=none, right=("stream", "task"))
    elif not (token or missing):
        opened.coordinates({opened.key.rank for opened in steps})  # all at once
        rows = list(map(step_row, steps))
        shown = [name for name in _STEPS if name != "mesh" or any(map(_mesh_text, rows))]
        spare = ("files", "raw", "committed (UTC)", "mesh", "overflows", "stored", "Inf")
        columns = {name: _STEPS[name] for name in shown}
        print_rows(rows, columns, as_json=json, right=[*_STEPS][4:-1], spare=spare)
        _say_mixed(rows)
    found = (f"{key}: {reason.removeprefix(f'{key}: ')}" for key, reason in damaged.items())
    report_damaged([*damages, *found])


def _none(what: str, steps: int) -> str:
    """Say that there is none of it, and in how many steps: those that could be read."""
    return f"no {what} in {counted(steps, 'step')}"


def _rows(steps: Sequence[ingest.Step], rows_of: Callable[[ingest.Step], Any], damaged: Any) -> list[Any]:
    """Return the rows of all steps; add each step whose index is damaged to `damaged`, and go on."""
    rows: list[Any] = []
    for step in steps:
        try:
            rows += rows_of(step)
        except DamagedStore as exc:
            damaged[step.key] = exc.message
    return rows


def _print_watchers(watchers: Sequence[ingest.LiveWatcher], *, json: bool) -> None:
    """Print a row for each watcher, and one for each step that is not settled."""
    none = "the watchers that answer write to other stores"
    print_rows(watchers, _WATCHERS, as_json=json, none=none, right=[*_WATCHERS][2:])
    if not json and (steps := [row for watcher in watchers for row in watcher.steps]):
        print_line("")
        print_steps(steps, None, None, json=False)


def _print_token(store: ingest.DumpStore, *, json: bool) -> Sequence[Damage]:
    """Print the word, or what the page says of a store that answers; return what is damaged."""
    from ingest.page.moment import Moment  # deferred: numba, zarr: 0.5 s
    from ingest.page.rendering import clock  # deferred: as above

    moment = Moment.of(store)
    if json:
        print_json({"token": moment.token, "clock": clock(moment.read_at), "away": ""})
    else:
        print_line(moment.token)
    return moment.damages


def _mesh_text(row: Mapping[str, Any]) -> str:
    """Write what `step_row` has in `coordinates`."""
    from ingest.reader.parallel.mesh import Coordinate, format_coordinates  # deferred: as in `command`

    return format_coordinates({axis: Coordinate(*place) for axis, place in row["coordinates"].items()})


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
