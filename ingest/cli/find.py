"""`dump-ingest find`: tensors by name, operator and statistics."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, getitem
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import ingest
from ingest.cli.exits import report_damaged
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
from ingest.cli.printing import limit_of, limited, print_rows, say, say_left_out, short_name, step_text
from ingest.reader.text import cell_text, counted
from workers.errors import DamagedStore, UsageError
from workers.rules.names import fits, hint_of_case, near

if TYPE_CHECKING:
    import pandas as pd

    from ingest.reader.catalog import Catalog
    from ingest.reader.damage import Damage

_Row = TypeVar("_Row")
#: Steps whose names are compared to say why nothing may be found, and names of which none is near.
_STEPS, _SHOWN_NAMES = 8, 10
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
    from ingest.reader.tensor import TENSOR_FIELDS  # deferred: numpy and zarr take 0.4 s
    from workers.arrays.statistics import FIELDS  # deferred: numba takes 0.3 s

    limit = limit_of(limit, _MAX_TENSORS, as_json=json)
    opened = open_store(store, config, mesh=mesh)
    if consolidated:
        if chosen.keys() != {"where"} or rank is not None or undecided:
            raise UsageError(
                "--consolidated takes --where and --step alone",
                hint="Put the rest into the condition: "
                "--where \"nan_count > 0 and rank == 3 and op_type == 'Log'\".",
            )
        matches = opened.consolidated().find(chosen["where"], step=step, include_partial=include_partial)
        _print_consolidated(matches, sort, columns, limit=limit, json=json)
        return
    known = list(dict.fromkeys((*TENSOR_FIELDS, *FIELDS)))
    order, wanted = _columns("--sort", sort, known), _columns("--columns", columns, known)
    damages: list[Damage] = []
    tensors = opened.tensors(rank=rank, step=step, **chosen, damages=damages)
    others = tensors.undecided
    if undecided:
        tensors, others = ingest.Tensors(others), ()
    found = limited(_in_order(tensors, order, value_of), limit)
    if wanted:
        print_columns([{name: value_of(one, name) for name in wanted} for one in found], wanted, json=json)
    else:
        # How sure it is that they fulfil the condition, if that leaves any undecided.
        print_tensors(found, json=json, exactness="bounded" if undecided else "exact" * bool(others))
    if not json:
        say(_total(len(tensors), len(found)))
    _say_undecided(len(others))
    if not tensors and not others:
        for text in hints(opened, rank, step, chosen):
            say(text, label="hint")
    report_damaged(damages)


def _print_consolidated(
    matches: pd.DataFrame, sort: str | None, columns: str | None, *, limit: int, json: bool
) -> None:
    """Print what the consolidated view holds of the tensors that fulfil a condition."""
    from workers.arrays.statistics import FIELDS  # deferred: as in `command`

    known, about = list(map(str, matches.columns)), matches.attrs
    rows = _in_order(matches.to_dict("records"), _columns("--sort", sort, known), getitem)
    shown = limited(rows, limit)
    wanted = _columns("--columns", columns, known)
    told = ["rank", "step", "graph", "name", *(name for name in known if name in FIELDS)]
    taken = [{name: row[name] for name in wanted or known} for row in shown]
    print_columns(taken, wanted or (known if json else told), json=json)
    if not json:
        say(f"{_total(len(rows), len(shown))}; as of {about['consolidated_at']}")
    say_left_out(about["left_out"])
    _say_undecided(about["undecided"], "without --consolidated, --undecided lists")


def _columns(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Return the columns of a list such as `name,max`, or `-l2_norm,name` to sort by; [] without one.

    Raises:
        UsageError: one of them does not exist, or the list is empty.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in (name.removeprefix("-" * (option == "--sort")) for name in names):
        if name not in known:
            nearest = near(name, known)
            hint = f"Did you mean {' or '.join(nearest[:3])}?" if nearest else f"Columns: {', '.join(known)}."
            raise UsageError(f"{option}: {name!r} is not a column", hint=hint)
    if text is not None and not names:
        raise UsageError(f"{option} names no column", hint=f"For example: {option}=step,name,max")
    return names


def _in_order(
    rows: Sequence[_Row], order: Sequence[str], value: Callable[[_Row, str], Any]
) -> Sequence[_Row]:
    """Return rows by these columns; unknown values come last, and equal ones stay in their order."""
    for column in reversed(order):
        values = {id(row): value(row, column.removeprefix("-")) for row in rows}
        unknown = [row for row in rows if values[id(row)] is None or values[id(row)] != values[id(row)]]
        left_out = set(map(id, unknown))
        known = (row for row in rows if id(row) not in left_out)
        rows = sorted(known, key=lambda row: values[id(row)], reverse=column.startswith("-")) + unknown
    return rows


def value_of(tensor: ingest.Tensor, column: str) -> Any:
    """Return the value of a tensor in a column, as in its JSON."""
    from workers.arrays.statistics import COUNT_FIELDS, FIELDS  # deferred: numba takes 0.3 s

    value = getattr(tensor.statistics if column in FIELDS else tensor, column)
    return int(value) if column in COUNT_FIELDS and not math.isnan(value) else value


def _total(tensors: int, shown: int) -> str:
    rest = f", the first {shown} shown (--limit 0: all)" if shown < tensors else ""
    return counted(tensors, "tensor") + rest


def _say_undecided(others: int, how: str = "--undecided lists") -> None:
    if others:
        say(
            f"bounded: these certainly fulfil the condition, and {counted(others, 'other')} may: "
            f"{how} what bounds of sketches do not decide",
            label="note",
        )


def print_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, json: bool) -> None:
    """Print these columns of some rows."""

    def text_of(column: str) -> Callable[[Mapping[str, Any]], str]:
        write = step_text if column == "step" else lambda value: short_name(cell_text(value))
        return lambda row: write(row[column])

    first = rows[0] if rows else {}
    right = [name for name, value in first.items() if isinstance(value, int | float)]
    right = [name for name in right if name not in ("rank", "step")]
    print_rows(rows, {column: text_of(column) for column in columns}, as_json=json, right=right)


def print_tensors(tensors: Sequence[ingest.Tensor], *, json: bool, exactness: str = "") -> None:
    """Print tensors with their statistics; JSON with how sure it is that they were meant, if that is said."""
    numbers = dict(zip(("NaN", "+Inf", "-Inf", "min", "max", "mean", "std"), _STATISTICS, strict=True))
    columns: dict[str, Callable[[Any], object]] = {
        "rank": attrgetter("rank"),
        "step": lambda tensor: step_text(tensor.step),
        "graph": attrgetter("graph"),
        "name": lambda tensor: short_name(tensor.name),
        "dtype": attrgetter("dtype"),
        "shape": attrgetter("shape"),
        **{heading: attrgetter(f"statistics.{name}") for heading, name in numbers.items()},
    }
    more = {"exactness": exactness} if exactness else {}
    rows: Sequence[Any] = [tensor.to_dict() | more for tensor in tensors] if json else tensors
    spare = ("graph", "std", "mean", "dtype", "shape", "min", "-Inf", "+Inf", "max")
    print_rows(rows, columns, as_json=json, right=[*numbers], spare=spare)


_STATISTICS = ("nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "mean", "std")
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")


def hints(store: Catalog, rank: Any, step: Any, chosen: Conditions) -> Iterator[str]:
    """Yield possible reasons why no tensor fulfils the conditions: what those of a few steps have instead."""
    from ingest.reader.ranges import named_ranges  # deferred: with numpy, as in `command`
    from ingest.reader.step import COLUMNS  # deferred: the same
    from ingest.reader.tensor_filter import checked_role  # deferred: the same
    from workers.arrays.filter import Filter  # deferred: the same

    known = _labels(store, rank, step)
    where = chosen.get("where")
    used = Filter(where, COLUMNS).names if where else frozenset[str]()
    texts = [first or second for first, second in _QUOTED.findall(where or "")]
    for label, there in known.items():
        wanted = checked_role(chosen["role"]) if label == "role" and "role" in chosen else chosen.get(label)
        for text in [wanted] if isinstance(wanted, str) else texts * (label in used):
            if label == "name" and not any(map(fits(text), there)):
                yield (
                    hint_of_case(text, there)
                    or f"No tensor is named like {text}; near: {_listed(text, there)}"
                )
            elif label != "name" and text not in there:
                same = [value for value in there if value.lower() == text.lower()]
                others = f"case matters: {same[0]}" if same else f"near: {_listed(text, there)}"
                yield f"No tensor has the {label} {text}; {others}"
    if used & {"rank", "step"}:
        yield f"The store has {named_ranges('rank', store.ranks)} and {named_ranges('step', store.steps)}."


def _listed(wanted: str, there: Sequence[str]) -> str:
    return ", ".join(near(wanted, there) or there[:_SHOWN_NAMES]) or "none"


def _labels(store: Catalog, rank: Any, step: Any) -> dict[str, list[str]]:
    """Return the names, types, roles and so on of the tensors of a few steps, in their order."""
    known: dict[str, dict[str, None]] = {label: {} for label in ("name", "op_type", "role", "io", "graph")}
    for opened in store.select(rank, step, damages=[])[-_STEPS:]:
        with suppress(DamagedStore):  # named already
            for tensor in opened.tensors():
                for label, values in known.items():
                    values[getattr(tensor, label)] = None
    return {label: list(filter(None, values)) for label, values in known.items()}
