"""What `dump-ingest divergence --links` prints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import typer

import ingest
from ingest.cli.exits import EXIT_DIFFERENT, report_left_out
from ingest.cli.printing import limited, print_json, print_line, print_wrapped, say, say_rest
from ingest.reader.text import counted

if TYPE_CHECKING:
    from ingest.questions.divergence.broken_links import BrokenLink


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
