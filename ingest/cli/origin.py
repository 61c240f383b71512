"""`dump-ingest origin`: the operator that went wrong first, over all ranks and steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import ingest
from ingest.cli.exits import exit_if_damaged
from ingest.cli.opening import open_store
from ingest.cli.options import (
    ConfigOption,
    JsonOption,
    PartialOption,
    RankOption,
    StepOption,
    StoreArgument,
)
from ingest.cli.printing import (
    counted,
    number_text,
    print_json,
    print_line,
    print_table,
    say,
    say_left_out,
    shape_text,
)
from ingest.reader.ranges import format_ranges
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.questions.origin import OriginOperator, OriginTensor

#: How many items of a list are printed; `--json` has more.
_FEW = 3
_MAX_CODE = 120


def command(
    store: StoreArgument = None,
    rank: RankOption = None,
    step: StepOption = None,
    cause: Annotated[
        str,
        typer.Option(
            metavar="CAUSE",
            help="What to look for: nan, inf, overflow, or auto: NaN or Inf, else an overflow.",
        ),
    ] = "auto",
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            "-w",
            metavar="CONDITION",
            help='Look for tensors that fulfil this condition instead, such as "max > 6e4".',
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Print the whole spread within its step instead: text, or dot for Graphviz.",
            show_default=False,
        ),
    ] = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Name the first operator that produced NaN or Inf from clean inputs, and how it spread.

    [bold]dump-ingest origin run.zarr[/]
    [bold]dump-ingest origin run.zarr --where "abs(max) > 6e4"[/]   the first output outside a limit
    """
    if graph not in (None, "text", "dot"):
        raise UsageError(
            f"--graph {graph}: there is no such format", hint="Formats: text, dot; or --json with either."
        )
    opened = open_store(store, config)
    answer = ingest.origin(opened, rank, step, cause=cause, where=where, include_partial=include_partial)
    if json:
        print_json(answer.to_dict() | ({"spread_graph": answer.spread.graph.to_dict()} if graph else {}))
    elif graph is not None:
        for text in answer.spread.graph.to_dot() if graph == "dot" else answer.spread.graph.to_text():
            print_line(text)
    else:
        _print_answer(answer, cause, where)
    say_left_out(answer.left_out)
    if answer.found and not json and graph is None:
        _say_next(answer, store or opened.url)
    exit_if_damaged([left for left in answer.left_out if left.is_damaged])


def _print_answer(answer: ingest.OriginAnswer, cause: str, where: str | None) -> None:
    if not answer.found:
        print_line(_nothing_found(cause, where))
    else:
        print_line(_headline(answer))
        if answer.source is not None:
            print_line(f"  {answer.source.file}:{answer.source.line}  {answer.source.code[:_MAX_CODE]}")
        if answer.inputs or answer.outputs:
            print_line("")
            _print_tensors([*answer.inputs, *answer.outputs])
        _print_section("How it spread", _spread_lines(answer))
    _print_section(
        "Where else it may have begun",
        _first(
            2 * _FEW,
            [
                f"{_operator_text(operator)}, rank {operator.rank}: {operator.reason}"
                for operator in answer.alternatives
            ],
        ),
    )
    _print_section("Notes", answer.notes)


def _nothing_found(cause: str, where: str | None) -> str:
    if where is not None:
        return f"No tensor fulfils {where}."
    what = {"nan": "No NaN", "inf": "No Inf", "overflow": "No overflow record"}
    return f"{what.get(cause, 'No NaN, Inf or overflow record')} that matters in the examined steps."


def _headline(answer: ingest.OriginAnswer) -> str:
    operator = f"{answer.op_type} ({answer.op_name})" if answer.op_name else "an operator that was not dumped"
    place = f"rank {answer.rank}, step {answer.step}" + (f", graph {answer.graph}" if answer.graph else "")
    if answer.how == "recorded":
        return f"The first overflow was recorded in {operator} on {place}"
    if answer.cause == "where":
        if answer.came_in is not None:
            return f"First with {answer.what}: {answer.came_in}, on {place}; no dumped operator wrote it"
        return f"First with {answer.what}: an output of {operator} on {place}"
    if answer.came_in is not None:
        return f"{answer.what} came in with {answer.came_in}, on {place}; no dumped operator wrote it"
    if answer.how == "born":
        return f"{answer.what} was born in {operator} on {place}"
    return f"{answer.what} came through {operator} to {place}; its source is not known"


def _print_tensors(tensors: Sequence[OriginTensor]) -> None:
    numbers = ("NaN", "+Inf", "-Inf", "min", "max", "mean", "std")
    fields = ("nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "mean", "std")
    print_table(
        ("tensor", "dtype", "shape", *numbers),
        (
            (
                f"{tensor.io} {tensor.slot}" if tensor.slot >= 0 else tensor.io,
                tensor.dtype,
                shape_text(tensor.shape),
                *(number_text(getattr(tensor.statistics, field)) for field in fields),
            )
            for tensor in tensors
        ),
        right=numbers,
    )


def _spread_lines(answer: ingest.OriginAnswer) -> Iterator[str]:
    spread = answer.spread
    if spread.next:
        assumed = (
            " (by order of execution; their inputs were not dumped)" if spread.next[0].is_assumed else ""
        )
        yield f"next: {'; '.join(_first(_FEW, map(_operator_text, spread.next)))}{assumed}"
    if spread.operators:
        ranks = f"rank{'s' * (len(spread.ranks) != 1)} {format_ranges(spread.ranks)}"
        yield f"{counted(spread.operators, 'operator')} in step {answer.step}, on {ranks}"
    elif answer.how in ("born", "came in"):
        yield "to no other operator in this step"
    yield from _first(
        _FEW,
        (
            f"through {collective.op_type} ({collective.op_name}) "
            f"from rank {format_ranges(collective.from_ranks)} to rank {format_ranges(collective.to_ranks)}"
            + (" (assumed)" if collective.is_assumed else "")
            for collective in spread.collectives
        ),
    )
    if spread.ends:
        yield f"in the end: {'; '.join(_first(_FEW, spread.ends))}"
    yield from _first(
        _FEW,
        (
            f"step {later.step}, rank {format_ranges(later.ranks)}"
            + (f": through {', '.join(_first(_FEW, later.through))}" if later.through else "")
            + (f": born again in {', '.join(_first(_FEW, later.born_again))}" if later.born_again else "")
            for later in spread.steps
        ),
    )


def _first(limit: int, texts: Iterable[str]) -> list[str]:
    """Return the first texts, and how many more there are."""
    listed = list(texts)
    rest = len(listed) - limit
    return [*listed[:limit], f"{rest} more"] if rest > 0 else listed


def _operator_text(operator: OriginOperator) -> str:
    if not operator.op_name:
        return "an operator that was not dumped"
    repeated = f" #{operator.occurrence}" if operator.occurrence else ""
    return f"{operator.op_type} ({operator.op_name}){repeated}"


def _print_section(title: str, lines: Iterable[str]) -> None:
    """Print a title and its lines; nothing if it has none."""
    shown = list(lines)
    if shown:
        print_line("")
        print_line(title)
    for text in shown:
        print_line(f"  {text}")


def _say_next(answer: ingest.OriginAnswer, url: str) -> None:
    """Print the commands that show the values of a clean input and a bad output."""
    bad_outputs = [tensor for tensor in answer.outputs if tensor.is_bad]
    if answer.came_in is not None:
        shown = [tensor for tensor in (*answer.inputs, *bad_outputs) if tensor.is_bad][:1]
    else:
        shown = [*answer.inputs[:1], *bad_outputs[:1]]
    for tensor in shown:
        # A name may contain glob characters; `show` prefers an exact match.
        say(
            f"values: dump-ingest show {shlex.quote(url)} {shlex.quote(tensor.name)} "
            f"--rank {answer.rank} --step {answer.step}"
        )
