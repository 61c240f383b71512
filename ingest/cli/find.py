"""`dump-ingest find`: tensors by name, operator and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ingest
from ingest.cli.exits import exit_if_damaged, say_damaged
from ingest.cli.opening import open_store
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
from ingest.cli.printing import (
    limit_of,
    limited,
    print_json,
    print_table,
    say,
    say_left_out,
    short_name,
    step_text,
)
from ingest.reader.text import counted, number_text, shape_text
from workers.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from ingest.cli.find_columns import SortColumn
    from ingest.reader.damage import Damage


#: Tensors that are printed on a terminal unless the user says how many.
_MAX_TENSORS = 100


@takes_tensor_options
def command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    chosen: Conditions,
    consolidated: Annotated[
        bool,
        typer.Option(
            "--consolidated",
            help="Search the consolidated view: quick over many ranks and steps, as current as the view.",
        ),
    ] = False,
    include_partial: Annotated[
        bool, typer.Option("--include-partial", help="With --consolidated: include partial steps.")
    ] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,...", help="Sort by these columns, by -COLUMN from high to low: --sort=-l2_norm."
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="Print these columns; see the keys of --json.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"Print at most N tensors; 0: all. Default: {_MAX_TENSORS} on a terminal, else all.",
            show_default=False,
        ),
    ] = None,
    undecided: Annotated[
        bool,
        typer.Option(
            "--undecided", help="Those that may fulfil --where instead: bounds of sketches do not decide it."
        ),
    ] = False,
    mesh: MeshOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find tensors, in order of step, rank and execution.

    If a step is damaged, it is named, the others are searched, and the exit code is 3.

    [bold]dump-ingest find run.zarr --where "nan_count > 0"[/]
    [bold]dump-ingest find run.zarr --role gradient --where "max > 100"[/]
    [bold]dump-ingest find run.zarr --sort=-l2_norm --limit 10 --columns name,l2_norm[/]
    [bold]dump-ingest find run.zarr --op-type MatMul --where "max > 6e4 or l2_norm > 1e6"[/]
    """
    from ingest.cli.find_columns import TENSOR_COLUMNS, in_order, parse_columns, parse_order  # numba: 0.3 s
    from ingest.cli.find_hints import hints  # deferred: the same

    limit = limit_of(limit, _MAX_TENSORS, as_json=json)
    opened = open_store(store, config, mesh=mesh)
    if consolidated:
        _check_consolidated(chosen, has_more=rank is not None or undecided)
        matches = opened.consolidated().find(chosen["where"], step=step, include_partial=include_partial)
        _print_consolidated(matches, sort, columns, limit=limit, json=json)
        return
    shown_columns = None if columns is None else parse_columns(columns, TENSOR_COLUMNS)
    order = [] if sort is None else parse_order(sort, TENSOR_COLUMNS)
    damages: list[Damage] = []
    tensors = opened.tensors(rank=rank, step=step, **chosen, damages=damages)
    others = tensors.undecided
    if undecided:
        tensors, others = ingest.Tensors(others), ()
    shown = limited(in_order(tensors, order), limit)
    if shown_columns is None:
        print_tensors(shown, json=json, exactness=_exactness(others, undecided=undecided))
    else:
        _print_columns(shown, shown_columns, json=json)
    if not json:
        say(_total(len(tensors), len(shown)))
    _say_undecided(len(others))
    if not tensors and not others:
        for text in hints(opened, rank, step, chosen):
            say(text, label="hint")
    say_damaged(damages)
    exit_if_damaged(damages)


def _say_undecided(others: int, how: str = "--undecided lists") -> None:
    if others:
        say(
            f"bounded: these certainly fulfil the condition, and {counted(others, 'other')} may: "
            f"{how} what bounds of sketches do not decide",
            label="note",
        )


def _exactness(others: Sequence[ingest.Tensor], *, undecided: bool) -> str:
    """Return how sure it is that tensors fulfil the condition; "" if it leaves nothing undecided."""
    if undecided:
        return "bounded"
    return "exact" if others else ""


def _total(tensors: int, shown: int) -> str:
    return counted(tensors, "tensor") + (
        f", the first {shown} shown (--limit 0: all)" if shown < tensors else ""
    )


def _print_columns(tensors: Sequence[ingest.Tensor], columns: Sequence[str], *, json: bool) -> None:
    """Print chosen columns of tensors."""
    from ingest.cli.find_columns import cell_text, value_of  # deferred: numba takes 0.3 s to import

    rows = [[value_of(tensor, column) for column in columns] for tensor in tensors]
    if json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    numbers = [
        column
        for place, column in enumerate(columns)
        if column not in ("rank", "step") and rows and isinstance(rows[0][place], int | float)
    ]

    def shown(column: str, value: Any) -> str:
        return step_text(value) if column == "step" else short_name(cell_text(value))

    cells = (list(map(shown, columns, row)) for row in rows)
    print_table(columns, cells, right=numbers)


def _check_consolidated(chosen: Conditions, *, has_more: bool) -> None:
    if chosen.keys() != {"where"} or has_more:
        raise UsageError(
            "--consolidated takes --where and --step alone",
            hint="Put the rest into the condition: "
            "--where \"nan_count > 0 and rank == 3 and op_type == 'Log'\".",
        )


def _sorted(matches: pd.DataFrame, order: Sequence[SortColumn]) -> pd.DataFrame:
    is_ascending = [not column.is_descending for column in order]
    return matches.sort_values([column.name for column in order], ascending=is_ascending, kind="stable")


def _print_matches(shown: pd.DataFrame, chosen: Sequence[str] | None) -> None:
    from workers.arrays.statistics import FIELDS  # deferred: numba takes 0.3 s to import

    statistics = [column for column in map(str, shown.columns) if column in FIELDS]
    headings = chosen or ["rank", "step", "graph", "name", *statistics]
    rows = [[_cell(row[column]) for column in headings] for row in shown.to_dict("records")]
    print_table(headings, rows, right=statistics)


def _print_consolidated(
    matches: pd.DataFrame, sort: str | None, columns: str | None, *, limit: int, json: bool
) -> None:
    """Print what the consolidated view holds of the tensors that fulfil a condition."""
    from ingest.cli.find_columns import parse_columns, parse_order  # deferred: numba takes 0.3 s to import

    known = list(map(str, matches.columns))
    if sort is not None:
        matches = _sorted(matches, parse_order(sort, known))
    chosen = None if columns is None else parse_columns(columns, known)
    shown = matches.head(limit) if limit else matches
    if json:
        print_json([{key: row[key] for key in chosen or known} for row in shown.to_dict("records")])
    else:
        _print_matches(shown, chosen)
        say(f"{_total(len(matches), len(shown))}; as of {matches.attrs['consolidated_at']}")
    say_left_out(matches.attrs["left_out"])
    _say_undecided(matches.attrs["undecided"], "without --consolidated, --undecided lists")


def _cell(value: float | str) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def print_tensors(tensors: Sequence[ingest.Tensor], *, json: bool, exactness: str = "") -> None:
    """Print tensors with their statistics; JSON with how sure it is that they were meant, if that is said."""
    if json:
        more = {"exactness": exactness} if exactness else {}
        print_json([tensor.to_dict() | more for tensor in tensors])
        return
    numbers = ("NaN", "+Inf", "-Inf", "min", "max", "mean", "std")
    print_table(
        ("rank", "step", "graph", "name", "dtype", "shape", *numbers),
        (_row(tensor) for tensor in tensors),
        right=numbers,
        spare=("graph", "std", "mean", "dtype", "shape", "min", "-Inf", "+Inf", "max"),
    )


def _row(tensor: ingest.Tensor) -> tuple[str, ...]:
    s = tensor.statistics
    counts = (s.nan_count, s.pos_inf_count, s.neg_inf_count)
    return (
        str(tensor.rank),
        step_text(tensor.step),
        tensor.graph,
        short_name(tensor.name),
        tensor.dtype,
        shape_text(tensor.shape),
        *(number_text(value) for value in (*counts, s.min, s.max, s.mean, s.std)),
    )
