"""`dump-ingest divergence`: where replicas stop to agree."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.cli.common import (
    EXIT_DIFFERENT,
    EXIT_FAILED,
    ConfigOption,
    JsonOption,
    PartialOption,
    RankOption,
    StepOption,
    StoreArgument,
    print_json,
    print_table,
    printable,
    say,
    the_store,
)

if TYPE_CHECKING:
    from ingest.questions.divergence import Difference, Divergence, Missing, Odd

NAME = "divergence"
_MAX_VALUES = 4
#: In this order, the statistics that tell most.
_TELLING = ("nan_count", "pos_inf_count", "neg_inf_count", "count", "l2_norm", "max", "min", "mean", "std")


def command(
    store: StoreArgument = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            "-g",
            metavar="RANKS",
            help="Ranks that are replicas, such as 0-7 or 0,2,4; may be repeated. Default: what agrees.",
            show_default=False,
        ),
    ] = None,
    rank: RankOption = None,
    step: StepOption = None,
    name: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only tensors with such a name, as 'AllReduce.*'.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Print no more than this many rows of a table; 0: all.")
    ] = 20,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find tensors on which replicas should agree and do not: the first step and tensor, and the odd rank.

    By digests alone; no tensor is read. Exits with 5 when something differs or is missing.

    [bold]dump-ingest divergence run.zarr[/]
    [bold]dump-ingest divergence run.zarr --group 0-3 --group 4-7[/]
    """
    from ingest.questions.divergence import divergence, parse_groups

    opened = the_store(store, config)
    found = divergence(
        opened,
        parse_groups(group) if group else None,
        rank=rank,
        step=step,
        name=name,
        include_partial=include_partial,
    )
    if json:
        print_json(found.to_dict())
    else:
        _print(found, limit)
    for left_out in found.left_out:
        say(str(left_out), before="[yellow]left out:[/] ")
    for note in found.notes:
        say(note, before="[dim]note:[/] ")
    if not found.agree:
        raise typer.Exit(EXIT_DIFFERENT)
    if not found.groups:
        say(
            "nothing could be compared: no two ranks agree on a parameter or on the output of a collective",
            before="[bold red]error:[/] ",
        )
        say("  Name the replicas with --group.")
        raise typer.Exit(EXIT_FAILED)


def _print(found: Divergence, limit: int) -> None:
    from ingest.reader.ranges import format_ranges

    if found.agree and found.groups:
        _line(f"replicas agree: ranks {format_ranges(found.ranks)}, steps {format_ranges(found.steps)}")
    suspects = {odd.ranks[0] for odd in found.odd if odd.has_majority}
    for odd in found.odd:
        _print_odd(odd, suspects)
    if found.differences:
        _line("")
        _print_differences(found.differences, limit)
    if found.missing:
        _line("" if found.odd else "replicas do not hold the same:")
        _print_missing(found.missing, limit)
    if found.groups:
        _line("")
        _print_groups(found, limit)


def _line(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")


def _print_odd(odd: Odd, suspects: set[int]) -> None:
    from ingest.reader.ranges import format_ranges

    first = odd.first
    if odd.has_majority:
        agreeing = f"rank{'s' * (len(odd.others) > 1)} {format_ranges(odd.others)} agree{'s' * (len(odd.others) == 1)}"
        _line(f"rank {odd.ranks[0]} is off since step {odd.first_step} ({agreeing})")
    else:
        elsewhere = suspects & set(odd.ranks)
        more = f"; off elsewhere: rank {format_ranges(elsewhere)}" if elsewhere else ""
        _line(
            f"one of ranks {format_ranges(odd.ranks)} is off since step {odd.first_step} "
            f"(no majority says which{more})"
        )
    _line(f"  first   {first.name}  ({first.why}{_by(first)})")
    if odd.source:
        _line(f"  file    {odd.source}")
    if odd.values:
        names = [name for name in _TELLING if name in odd.values] or list(odd.values)
        shown = ", ".join(
            f"{name} {_exact(odd.values[name][0])} instead of {_exact(odd.values[name][1])}"
            if odd.has_majority
            else f"{name} {_exact(odd.values[name][0])} or {_exact(odd.values[name][1])}"
            for name in names[:_MAX_VALUES]
        )
        _line(f"  values  {shown}")
    healed = f"agrees again after step {odd.last_step}" if odd.healed else f"up to step {odd.last_step}"
    _line(
        f"  since   {odd.tensors} tensor{'s' * (odd.tensors != 1)} in {odd.steps} "
        f"step{'s' * (odd.steps != 1)}, {healed}"
    )


def _exact(value: float) -> str:
    """Write a number with all its digits: a flipped bit may change none but the last."""
    return repr(value).removesuffix(".0")


def _by(row: Difference) -> str:
    if row.by == "statistics":
        return ", by statistics: no elements were dumped"
    return ", bits differ and no statistic does: other NaNs, -0 for 0, or another order" * row.same_statistics


def _print_differences(rows: tuple[Difference, ...], limit: int) -> None:
    from ingest.reader.ranges import format_ranges

    shown = rows[:limit] if limit else rows
    print_table(
        ("rank", "first", "last", "steps", "healed", "why", "name"),
        (
            (
                format_ranges(row.ranks) if row.has_majority else " or ".join(map(str, row.ranks)),
                str(row.first_step),
                str(row.last_step),
                str(row.steps),
                "yes" if row.healed else "no",
                row.why
                + (" (statistics)" * (row.by == "statistics"))
                + (" (bits only)" * row.same_statistics),
                row.name,
            )
            for row in shown
        ),
        right=("first", "last", "steps"),
    )
    _say_rest(len(rows), len(shown), "differences")


def _print_missing(rows: tuple[Missing, ...], limit: int) -> None:
    from ingest.reader.ranges import format_ranges

    shown = rows[:limit] if limit else rows
    print_table(
        ("rank", "state", "what", "first", "last", "steps", "others", "name"),
        (
            (
                format_ranges(row.ranks),
                row.state,
                row.what,
                "-" if row.first_step is None else str(row.first_step),
                "-" if row.last_step is None else str(row.last_step),
                str(row.steps) if row.steps else "-",
                format_ranges(row.others),
                row.name or "-",
            )
            for row in shown
        ),
        right=("first", "last", "steps"),
    )
    _say_rest(len(rows), len(shown), "missing or extra things")


def _print_groups(found: Divergence, limit: int) -> None:
    from ingest.reader.ranges import format_ranges

    shown = found.groups[:limit] if limit else found.groups
    print_table(
        ("group", "how", "tensors", "compared", "agreed", "share"),
        (
            (
                format_ranges(one.ranks),
                one.how,
                str(one.tensors),
                str(one.compared),
                str(one.agreed),
                f"{_floor(one.agreed, one.compared)}%",
            )
            for one in shown
        ),
        right=("tensors", "compared", "agreed", "share"),
    )
    _say_rest(len(found.groups), len(shown), "groups")


def _floor(part: int, whole: int) -> str:
    """Write a percentage that is 100 only where it is all."""
    return f"{part * 1000 // whole / 10:g}" if whole else "-"


def _say_rest(total: int, shown: int, what: str) -> None:
    if shown < total:
        say(f"{total} {what}, the first {shown} shown (--limit 0: all)")
