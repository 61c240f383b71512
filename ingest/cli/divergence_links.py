"""What `dump-ingest divergence --links` prints."""

from __future__ import annotations

import typer

import ingest
from ingest.cli.exits import EXIT_DIFFERENT, exit_if_left_out_damaged
from ingest.cli.printing import counted, limited, print_json, print_line, say, say_left_out, say_rest


def report_links(answer: ingest.BrokenLinks, limit: int, *, json: bool) -> None:
    """Print the answer for a store with a single rank, and exit with 5 if a link is broken.

    Args:
        answer: the answer.
        limit: how many links are printed; 0 for all.
        json: print JSON instead.
    """
    if json:
        print_json({"broken_links": answer.to_dict()})
    else:
        print_links(answer, limit)
    say_left_out(answer.left_out)
    exit_if_left_out_damaged(answer.left_out)
    if answer.links:
        raise typer.Exit(EXIT_DIFFERENT)


def print_links(answer: ingest.BrokenLinks, limit: int) -> None:
    """Print each broken link with what differs."""
    if not answer.compared:
        say("the dump does not have a graph (.ir files), so no link was compared", label="note", style="dim")
    elif not answer.links:
        print_line(f"links hold: {counted(answer.compared, 'edge')} of the graph")
    shown = limited(answer.links, limit)
    for link in shown:
        print_line(f"rank {link.rank} step {link.step}: {link.input} holds other bytes than its source")
        readers = counted(link.other_readers, "other reader")
        print_line(f"  source  {link.output}  ({readers} with its bytes)")
        if link.bits is not None:
            print_line(f"  differs {link.bits}")
    say_rest(len(answer.links), len(shown), "broken links")
