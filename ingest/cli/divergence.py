"""`dump-ingest divergence`: where replicas stop agreeing."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

import ingest
from ingest.cli.exits import EXIT_DIFFERENT, EXIT_FAILED, exit_if_left_out_damaged, report_left_out
from ingest.cli.opening import open_store
from ingest.cli.options import (
    Conditions,
    ConfigOption,
    JsonOption,
    MeshOption,
    PartialOption,
    RanksOption,
    StepOption,
    StoreArgument,
    takes_tensor_options,
)
from ingest.cli.printing import (
    limited,
    print_json,
    print_line,
    print_table,
    print_wrapped,
    say,
    say_left_out,
    say_rest,
)
from ingest.reader.ranges import format_ranges
from ingest.reader.text import counted
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.questions.divergence import BrokenOperator, Difference, Missing, Odd
    from ingest.questions.divergence.broken_links import BrokenLink
    from ingest.reader.snapshot import LeftOut

_MAX_VALUES = 4
#: Statistics to print, the most telling first.
_TELLING = ("nan_count", "pos_inf_count", "neg_inf_count", "count", "l2_norm", "max", "min", "mean", "std")


@takes_tensor_options
def command(
    store: StoreArgument = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            "-g",
            metavar="RANKS",
            help="Replicas, such as 0-7 or 0,2,4; may be repeated. Default: by the mesh, or inferred.",
            show_default=False,
        ),
    ] = None,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    chosen: Conditions,
    links: Annotated[
        bool,
        typer.Option(
            "--links",
            help="Also find inputs with other bytes than the outputs they come from; one rank will do.",
            show_default=False,
        ),
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many rows of a table; 0: all.")] = 20,
    mesh: MeshOption = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find tensors on which replicas disagree: the first step and tensor, and the odd rank.

    It compares digests. If these suggest that ranks hold a tensor as they should not (a wrong shard, a
    missing reduction, a bias on every rank, an optimizer state out of step), it reads some tensors of it.

    Exits with 5 if something differs, is missing, or is held wrongly.

    [bold]dump-ingest divergence run.zarr[/]
    [bold]dump-ingest divergence run.zarr --group 0-3 --group 4-7[/]
    [bold]dump-ingest divergence run.zarr --links[/]   also between operators of one rank
    """
    from ingest.questions.divergence import parse_groups  # deferred: numpy and zarr take 0.4 s to import

    opened = open_store(store, config, mesh=mesh)
    broken = None
    if links:
        name = _only_name(chosen)
        broken = ingest.broken_links(opened, rank, step, include_partial=include_partial, name=name)
    if broken is not None and len({key.rank for key in opened.listed(rank, step)}) == 1:
        report_links(broken, limit, json=json)
        return
    answer = ingest.divergence(
        opened,
        parse_groups(group) if group else None,
        rank=rank,
        step=step,
        include_partial=include_partial,
        **chosen,
    )
    if json:
        print_json(answer.to_dict() | ({} if broken is None else {"broken_links": broken.to_dict()}))
    else:
        _print_with_links(answer, broken, limit)
    left_out = tuple(dict.fromkeys([*answer.left_out, *(() if broken is None else broken.left_out)]))
    say_left_out(left_out)
    _say_notes(answer.notes)
    _exit_as(answer, left_out, has_broken_links=broken is not None and bool(broken.links))


def _only_name(chosen: Conditions) -> str | None:
    """Return the name to which `--links` is limited.

    Raises:
        UsageError: other conditions are given.
    """
    name = chosen.get("name")
    if chosen.keys() - {"name"} or not isinstance(name, str | None):
        raise UsageError(
            "--links can be limited by --name alone", hint="Give the other conditions without it."
        )
    return name


def _exit_as(answer: ingest.Divergence, left_out: Sequence[LeftOut], *, has_broken_links: bool) -> None:
    """End with the exit code of an answer; return if replicas agree."""
    from ingest.questions.divergence import NOTHING_COMPARED  # deferred: see `command`

    is_different = has_broken_links or not answer.agree
    is_empty = not is_different and not answer.groups
    if is_empty:
        say(NOTHING_COMPARED, label="error", style="bold red")
        say("  Name the replicas with --group.")
    exit_if_left_out_damaged(left_out)
    if is_different:
        raise typer.Exit(EXIT_DIFFERENT)
    if is_empty:
        raise typer.Exit(EXIT_FAILED)


def _say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        say(note, label="note", style="dim")


def _print_with_links(answer: ingest.Divergence, broken: ingest.BrokenLinks | None, limit: int) -> None:
    if broken is not None:
        print_links(broken, limit)
    _print_answer(answer, limit)


def _print_answer(answer: ingest.Divergence, limit: int) -> None:
    if answer.agree and answer.groups:
        print_wrapped(
            f"replicas agree: ranks {format_ranges(answer.ranks)}, steps {format_ranges(answer.steps)}"
        )
    _print_misplaced(answer, limit)
    for broken in limited(answer.broken, limit):
        _print_broken(broken)
    say_rest(len(answer.broken), len(limited(answer.broken, limit)), "operators that broke")
    _print_odd_ranks(answer.odd)
    if answer.differences:
        print_line("")
        _print_differences(answer.differences, limit)
    if answer.missing:
        print_wrapped("" if answer.odd else "replicas do not hold the same tensors:")
        _print_missing(answer.missing, limit)
    if answer.groups:
        print_line("")
        _print_groups(answer, limit)


def _print_misplaced(answer: ingest.Divergence, limit: int) -> None:
    """Print what ranks hold and should not, with what shows it, and the command that shows the layout."""
    shown = limited(answer.misplaced, limit)
    for finding in shown:
        print_wrapped(str(finding))
        print_wrapped(f"  {finding.level}   {finding.text}")
        if finding.follows:
            print_wrapped(
                f"  after   {counted(finding.follows, 'more tensor')} with the same cause, or differing"
            )
    if shown:
        store = shlex.quote(answer.store)
        print_line(f"  see     dump-ingest layout {store} --step {answer.misplaced[0].step}")
    say_rest(len(answer.misplaced), len(shown), "findings of layout")


def _print_broken(broken: BrokenOperator) -> None:
    """Print an operator with equal inputs and unequal outputs."""
    several = len(broken.ranks) > 1
    which = f"rank{'s' * several} {format_ranges(broken.ranks)}"
    where = f"on {which}" if broken.has_majority else f"on one of {which} (no majority says which)"
    print_wrapped(f"{broken.op_type} ({broken.op_name}) broke in step {broken.step} {where}")
    equal = "its input is equal" if broken.inputs == 1 else f"its {broken.inputs} inputs are equal"
    print_wrapped(f"  {equal}, and {', '.join(broken.outputs)} differ{'s' * (len(broken.outputs) == 1)}")
    if broken.bits is not None:
        print_wrapped(f"  {broken.bits}")


def _print_odd_ranks(odd_ranks: Collection[Odd]) -> None:
    suspects = {odd.ranks[0] for odd in odd_ranks if odd.has_majority}
    for odd in odd_ranks:
        _print_odd(odd, suspects)


def _print_odd(odd: Odd, suspects: Collection[int]) -> None:
    """Print how a rank differs from the rest of its group.

    Args:
        odd: the rank, or all ranks that it may be.
        suspects: ranks that a majority showed to be odd in other tensors.
    """
    first = odd.first
    print_wrapped(_odd_headline(odd, suspects))
    print_wrapped(f"  first   {first.name}  ({first.why}{_basis(first)})")
    if odd.source:
        print_wrapped(f"  file    {odd.source}")
    if odd.values:
        print_wrapped(f"  values  {_values_text(odd)}")
    if odd.evidence:
        cause = f"{odd.cause} ({odd.level})" if odd.cause else "cause not determined (open)"
        print_wrapped(f"  cause   {cause}: {odd.evidence}")
    end = f"agrees again after step {odd.last_step}" if odd.healed else f"up to step {odd.last_step}"
    print_wrapped(f"  since   {counted(odd.tensors, 'tensor')} in {counted(odd.steps, 'step')}, {end}")


def _values_text(odd: Odd) -> str:
    names = [name for name in _TELLING if name in odd.values] or list(odd.values)
    instead = "instead of" if odd.has_majority else "or"
    return ", ".join(
        f"{name} {_exact(odd.values[name][0])} {instead} {_exact(odd.values[name][1])}"
        for name in names[:_MAX_VALUES]
    )


def _odd_headline(odd: Odd, suspects: Collection[int]) -> str:
    since = f"is off since step {odd.first_step}"
    if odd.has_majority:
        several = len(odd.others) > 1
        return (
            f"rank {odd.ranks[0]} {since} "
            f"(rank{'s' * several} {format_ranges(odd.others)} agree{'s' * (not several)})"
        )
    elsewhere = {*suspects} & {*odd.ranks}
    suspect = f"; off elsewhere: rank {format_ranges(elsewhere)}" if elsewhere else ""
    return f"one of ranks {format_ranges(odd.ranks)} {since} (no majority says which{suspect})"


def _exact(value: float) -> str:
    """Write a number with all its digits: a flipped bit may change only the last."""
    return repr(value).removesuffix(".0")


def _basis(difference: Difference) -> str:
    if difference.by == "statistics":
        return ", by statistics: no elements were dumped"
    if difference.same_statistics:
        return ", bits differ and no statistic does: other NaNs, -0 for 0, or another order"
    return ""


def _print_differences(differences: Sequence[Difference], limit: int) -> None:
    shown = limited(differences, limit)
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
        spare=("healed", "steps", "last"),
    )
    say_rest(len(differences), len(shown), "differences")


def _print_missing(missing: Sequence[Missing], limit: int) -> None:
    shown = limited(missing, limit)
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
        spare=("steps", "others", "last"),
    )
    say_rest(len(missing), len(shown), "missing or extra things")


def _print_groups(answer: ingest.Divergence, limit: int) -> None:
    shown = limited(answer.groups, limit)
    print_table(
        ("group", "how", "tensors", "compared", "agreed", "share"),
        (
            (
                format_ranges(group.ranks),
                group.how,
                str(group.tensors),
                str(group.compared),
                str(group.agreed),
                f"{_percent(group.agreed, group.compared)}%",
            )
            for group in shown
        ),
        right=("tensors", "compared", "agreed", "share"),
    )
    say_rest(len(answer.groups), len(shown), "groups")


def _percent(part: int, whole: int) -> str:
    """Write a percentage, rounded down: 100 means all."""
    return f"{part * 1000 // whole / 10:g}" if whole else "-"


def report_links(answer: ingest.BrokenLinks, limit: int, *, json: bool) -> None:
    """Print the answer about a single rank, and exit with 5 if a link is broken.

    Args:
        answer: the answer.
        limit: how many links are printed; 0 for all.
        json: print JSON instead.
    """
    if json:
        print_json({"broken_links": answer.to_dict()})
    else:
        print_links(answer, limit)
    report_left_out(answer.left_out)
    if answer.links:
        raise typer.Exit(EXIT_DIFFERENT)


def print_links(answer: ingest.BrokenLinks, limit: int) -> None:
    """Print each broken link with what differs."""
    if not answer.compared:
        say("the dump does not have a graph (.ir files), so no link was compared", label="note", style="dim")
    elif not answer.links:
        print_line(f"links hold: {counted(answer.compared, 'edge')} of the graph")
    shown = limited(answer.links, limit)
    for (rank, step, output), links in groupby(shown, lambda link: (link.rank, link.step, link.output)):
        _print_readers(rank, step, output, [*links])
    say_rest(len(answer.links), len(shown), "broken links")


def _print_readers(rank: int, step: int, output: str, links: Sequence[BrokenLink]) -> None:
    """Print an output whose readers hold other bytes than it, each reader, and which of the two is wrong."""
    others = links[0].other_readers
    print_wrapped(f"rank {rank}, step {step}: {output} was read with other bytes than it holds")
    by_bits = [(bits, [*alike]) for bits, alike in groupby(links, lambda link: link.bits)]
    for bits, alike in by_bits:
        for link in alike:
            print_wrapped(f"  reader   {link.input}")
        if bits is not None:
            print_wrapped(f"  differs  {bits}")
    if others:
        holds = "holds" if others == 1 else "hold"
        print_wrapped(f"  so       {counted(others, 'other reader')} {holds} its bytes: the input is wrong")
    elif len(links) > 1 and len(by_bits) == 1 and by_bits[0][0] is not None:
        print_wrapped("  so       its readers agree: the output, or its dump, is wrong")
    else:
        print_wrapped("  so       no other reader has its bytes: the output, its dump or the input is wrong")
