"""`dump-ingest origin`: which operator was the first to go wrong, over all ranks and steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.cli.common import (
    ConfigOption,
    JsonOption,
    PartialOption,
    RankOption,
    StepOption,
    StoreArgument,
    number,
    print_json,
    print_table,
    printable,
    say,
    the_store,
)

if TYPE_CHECKING:
    from ingest.questions.origin import OriginAnswer, OriginOperator, OriginTensor

NAME = "origin"
#: What is told of many; `--json` has more.
_FEW = 3
_CODE = 120


def command(
    store: StoreArgument = None,
    rank: RankOption = None,
    step: StepOption = None,
    cause: Annotated[
        str,
        typer.Option(
            metavar="CAUSE", help="nan, inf, overflow, or auto: NaN or Inf, and without those an overflow."
        ),
    ] = "auto",
    where: Annotated[
        str | None,
        typer.Option(
            "--where", "-w", metavar="CONDITION", help='What is wrong instead, such as "max > 6e4".'
        ),
    ] = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Name the first operator whose outputs hold NaN or Inf while its inputs were clean, and how it spread.

    [bold]dump-ingest origin run.zarr[/]
    [bold]dump-ingest origin run.zarr --where "abs(max) > 6e4"[/]   the first one outside of a rule
    """
    from ingest.questions.origin import origin

    opened = the_store(store, config)
    answer = origin(opened, rank, step, cause=cause, where=where, include_partial=include_partial)
    if json:
        print_json(answer.to_dict())
    else:
        _print(answer, cause, where)
    for one in answer.left_out:
        say(str(one), before="[yellow]left out:[/] ")
    if answer.found and not json:
        _say_next(answer, store or opened.url)


def _print(answer: OriginAnswer, cause: str, where: str | None) -> None:
    if not answer.found:
        _line(_nothing(cause, where))
    else:
        _line(_headline(answer))
        if answer.source is not None:
            _line(f"  {answer.source.file}:{answer.source.line}  {answer.source.code[:_CODE]}")
        if answer.inputs or answer.outputs:
            _line("")
            _print_tensors([*answer.inputs, *answer.outputs])
        _section("How it spread", _spread(answer))
    _section(
        "Where else it may have begun",
        _few([f"{_operator(one)}, rank {one.rank}: {one.reason}" for one in answer.alternatives], 2 * _FEW),
    )
    _section("Notes", answer.notes)


def _nothing(cause: str, where: str | None) -> str:
    if where is not None:
        return f"No tensor fulfils {where}."
    what = {"nan": "No NaN", "inf": "No Inf", "overflow": "No overflow record"}
    return (
        f"{what.get(cause, 'No NaN, Inf or overflow record')} that matters in the steps that were looked at."
    )


def _headline(answer: OriginAnswer) -> str:
    operator = f"{answer.op_type} ({answer.op_name})" if answer.op_name else "an operator that was not dumped"
    place = f"rank {answer.rank}, step {answer.step}" + (f", graph {answer.graph}" if answer.graph else "")
    if answer.how == "recorded":
        return f"The first overflow was recorded in {operator} on {place}"
    if answer.cause == "where":
        if answer.came_in is not None:
            return f"First with {answer.what}: {answer.came_in}, on {place}; no operator of the dump wrote it"
        return f"First with {answer.what}: an output of {operator} on {place}"
    if answer.came_in is not None:
        return (
            f"{answer.what} came in with {answer.came_in}, on {place}; no operator of the dump has written it"
        )
    if answer.how == "born":
        return f"{answer.what} was born in {operator} on {place}"
    return f"{answer.what} came through {operator} to {place}; who put it in is not known"


def _print_tensors(tensors: Sequence[OriginTensor]) -> None:
    numbers = ("NaN", "+Inf", "-Inf", "min", "max", "mean", "std")
    print_table(
        ("tensor", "dtype", "shape", *numbers),
        (
            (
                f"{one.io} {one.slot}" if one.slot >= 0 else one.io,
                one.dtype,
                "x".join(map(str, one.shape)) or "()",
                *(
                    number(value)
                    for value in (
                        one.statistics.nan_count,
                        one.statistics.pos_inf_count,
                        one.statistics.neg_inf_count,
                        one.statistics.min,
                        one.statistics.max,
                        one.statistics.mean,
                        one.statistics.std,
                    )
                ),
            )
            for one in tensors
        ),
        right=numbers,
    )


def _spread(answer: OriginAnswer) -> Iterator[str]:
    from ingest.reader.ranges import format_ranges

    spread = answer.spread
    if spread.next:
        assumed = (
            " (by order of execution; what they read was not dumped)" if spread.next[0].is_assumed else ""
        )
        yield f"next: {'; '.join(_few([_operator(one) for one in spread.next], _FEW))}{assumed}"
    if spread.operators:
        where = (
            f"rank {format_ranges(spread.ranks)}"
            if len(spread.ranks) == 1
            else f"ranks {format_ranges(spread.ranks)}"
        )
        yield f"{spread.operators} operator{'s' * (spread.operators != 1)} in step {answer.step}, on {where}"
    elif answer.how in ("born", "came in"):
        yield "to no other operator in this step"
    for text in _few(
        [
            f"through {one.op_type} ({one.op_name}) from rank {format_ranges(one.from_ranks)} to rank "
            f"{format_ranges(one.to_ranks)}" + (" (assumed)" if one.is_assumed else "")
            for one in spread.collectives
        ],
        _FEW,
    ):
        yield text
    if spread.ends:
        yield f"in the end: {'; '.join(_few(list(spread.ends), _FEW))}"
    for text in _few(
        [
            f"step {one.step}, rank {format_ranges(one.ranks)}"
            + (f": through {', '.join(_few(list(one.through), _FEW))}" if one.through else "")
            + (f": born again in {', '.join(_few(list(one.born_again), _FEW))}" if one.born_again else "")
            for one in spread.steps
        ],
        _FEW,
    ):
        yield text


def _few(texts: Sequence[str], most: int) -> list[str]:
    """Return the first of many, and how many more there are."""
    rest = len(texts) - most
    return [*texts[:most], f"{rest} more"] if rest > 0 else list(texts)


def _operator(one: OriginOperator) -> str:
    repeated = f" #{one.occurrence}" if one.occurrence else ""
    return f"{one.op_type} ({one.op_name}){repeated}" if one.op_name else "an operator that was not dumped"


def _section(title: str, lines: Sequence[str] | Iterator[str]) -> None:
    shown = list(lines)
    if shown:
        _line("")
        _line(title)
    for text in shown:
        _line(f"  {text}")


def _line(text: str) -> None:
    typer.echo(printable(text))


def _say_next(answer: OriginAnswer, url: str) -> None:
    """Say what to type to see the values."""
    import shlex

    wrong = [one for one in answer.outputs if one.is_bad]
    if answer.came_in is not None:
        shown = [one for one in (*answer.inputs, *wrong) if one.is_bad][:1]
    else:
        shown = [*answer.inputs[:1], *wrong[:1]]
    for one in shown:
        # A name may hold what a glob means something by; exact names win.
        say(
            f"values: dump-ingest show {shlex.quote(url)} {shlex.quote(one.name)} "
            f"--rank {answer.rank} --step {answer.step}"
        )
