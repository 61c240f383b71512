"""Tensors by name, operator and statistics; and why there may be none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import getitem
from typing import Annotated, Any, TypeVar, Unpack

from ingest.questions.question import (
    Mode,
    Note,
    Option,
    Question,
    Ranks,
    Rows,
    Steps,
)
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import named_ranges
from ingest.reader.dump_store import DumpStore
from ingest.reader.step import COLUMNS
from ingest.reader.tensor import TENSOR_FIELDS, Tensor
from ingest.reader.tensor_filter import FilterFields, checked_role
from ingest.reader.text import counted
from workers.arrays.filter import Filter
from workers.arrays.statistics import COUNT_FIELDS, FIELDS
from workers.errors import DamagedStore, UsageError
from workers.rules.names import fits, hint_of_case, near

_Row = TypeVar("_Row")
#: Steps whose names are compared to say why nothing may be found, and names of which none is near.
_STEPS, _SHOWN_NAMES = 8, 10
#: All that is known of a tensor, and what is shown of it unasked.
KNOWN = tuple(dict.fromkeys((*TENSOR_FIELDS, *FIELDS)))
_NUMBERS = ("nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "mean", "std")
SHOWN = ("rank", "step", "graph", "name", "dtype", "shape", *_NUMBERS)
#: Columns that have other headings.
_HEADINGS = {"nan_count": "NaN", "pos_inf_count": "+Inf", "neg_inf_count": "-Inf"}
#: Columns that a narrow terminal may lack, the first of them first.
_SPARE = ("graph", "std", "mean", "dtype", "shape", "min", "neg_inf_count", "pos_inf_count", "max")
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")


def value_of(tensor: Tensor, column: str) -> Any:
    """Return the value of a tensor in a column, as in its JSON."""
    value = getattr(tensor.statistics if column in FIELDS else tensor, column)
    return int(value) if column in COUNT_FIELDS and not math.isnan(value) else value


def rows_of(
    store: str,
    rows: Sequence[Any],
    shown: Sequence[str] = SHOWN,
    keys: Sequence[str] = KNOWN,
    value: Callable[[Any, str], Any] = value_of,
    **more: Any,
) -> Rows:
    """Return tensors, or rows of the consolidated view, in a table of some of their columns.

    Args:
        store: the URL of the store.
        rows: the tensors.
        shown: the columns that people read.
        keys: the columns that JSON has.
        value: returns what a row has in a column.
        more: what `Rows` has besides.
    """

    def cell(column: str, row: Any) -> object:
        told = value(row, column)
        return "run" if column == "step" and told is None else told

    heading = {name: name for name in shown} | (_HEADINGS if shown == SHOWN else {})
    places = ("rank", "step")
    numbers = [name for row in rows[:1] for name in shown if isinstance(value(row, name), int | float)]
    return Rows(
        store,
        rows,
        {heading[name]: partial(cell, name) for name in shown},
        right=[heading[name] for name in numbers if name not in places],
        spare=[heading[name] for name in _SPARE] if shown == SHOWN else (),
        as_json=lambda row: {name: value(row, name) for name in keys},
        **more,
    )


def find(
    store: DumpStore,
    rank: Ranks = None,
    step: Steps = None,
    *,
    sort: Annotated[
        str | None,
        Option("Sort by these columns, by -COLUMN from high to low: --sort=-l2_norm.", "COLUMN,..."),
    ] = None,
    columns: Annotated[
        str | None, Option("Print these columns; see the keys of --json.", "COLUMN,...")
    ] = None,
    undecided: Annotated[
        bool, Option("Those that may fulfil --where instead: bounds of sketches do not decide it.")
    ] = False,
    include_partial: Annotated[bool, Option("With --consolidated: include partial steps.")] = False,  # noqa: ARG001
    **conditions: Unpack[FilterFields],
) -> Rows:
    """Find tensors, in order of step, rank and execution.

    If a step is damaged, it is named, the others are searched, and the exit code is 3.

    Raises:
        UsageError: a rank, step, condition or column does not exist.
    """
    order, wanted = _columns("--sort", sort, KNOWN), _columns("--columns", columns, KNOWN)
    damages: list[Damage] = []
    found = store.tensors(rank=rank, step=step, **conditions, damages=damages)
    others = () if undecided else found.undecided
    rows = _in_order(found.undecided if undecided else found, order, value_of)
    notes = _of_undecided(len(others))
    if not rows and not others:
        notes += [Note(text, "hint") for text in hints(store, rank, step, conditions)]
    # How sure it is that they fulfil the condition, if that leaves any undecided.
    exactness = "bounded" if undecided else "exact" * bool(others)
    return rows_of(
        store.url,
        rows,
        wanted or SHOWN,
        wanted or (*KNOWN, *["exactness"] * bool(exactness)),
        lambda tensor, column: exactness if column == "exactness" else value_of(tensor, column),
        more=tuple(notes),
        damaged=damages,
        headline=counted(len(rows), "tensor"),
    )


def _find_consolidated(
    store: DumpStore,
    _: object,
    *,
    where: str = "",
    step: Any = None,
    include_partial: bool = False,
    sort: str | None = None,
    columns: str | None = None,
) -> Rows:
    if not where:
        raise UsageError("--consolidated takes a condition", hint='Such as --where "nan_count > 0".')
    matches = store.consolidated().find(where, step=step, include_partial=include_partial)
    known, about = list(map(str, matches.columns)), matches.attrs
    rows = _in_order(matches.to_dict("records"), _columns("--sort", sort, known), getitem)
    wanted = _columns("--columns", columns, known)
    return rows_of(
        store.url,
        rows,
        wanted or ["rank", "step", "graph", "name", *(name for name in known if name in FIELDS)],
        wanted or known,
        getitem,
        more=tuple(_of_undecided(about["undecided"], "without --consolidated, --undecided lists")),
        left_out=tuple(about["left_out"]),
        damaged=[left for left in about["left_out"] if left.is_damaged],
        headline=f"{counted(len(rows), 'tensor')}; as of {about['consolidated_at']}",
    )


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


def _of_undecided(others: int, how: str = "--undecided lists") -> list[Note]:
    text = f"these certainly fulfil the condition, and {counted(others, 'other')} may: {how} what bounds of "
    return [Note(f"{text}sketches do not decide", "bounded")] if others else []


def hints(store: Catalog, rank: Any, step: Any, chosen: Mapping[str, Any]) -> Iterator[str]:
    """Yield possible reasons why no tensor fulfils the conditions: what those of a few steps have instead."""
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
    known: dict[str, dict[str, None]] = {label: {} for label in ("name", "op_type", "role", "io", "graph")}
    for opened in store.select(rank, step, damages=[])[-_STEPS:]:
        with suppress(DamagedStore):  # named already
            for tensor in opened.tensors():
                for label, values in known.items():
                    values[getattr(tensor, label)] = None
    return {label: list(filter(None, values)) for label, values in known.items()}


QUESTION = Question(
    find,
    (
        'find run.zarr --where "nan_count > 0"',
        'find run.zarr --role gradient --where "max > 100"',
        "find run.zarr --sort=-l2_norm --limit 10 --columns name,l2_norm",
        'find run.zarr --op-type MatMul --where "max > 6e4 or l2_norm > 1e6"',
    ),
    limit=100,
    is_listing=True,
    takes_mesh=True,
    modes=(
        Mode(
            "consolidated",
            Option("Search the consolidated view: quick over many ranks and steps, as current as the view."),
            default=False,
            ask=_find_consolidated,
            takes=frozenset({"where", "step", "include_partial", "sort", "columns"}),
        ),
    ),
)
