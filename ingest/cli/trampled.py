"""`dump-ingest trampled`: tensors that changed within a step although nobody wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

import ingest
from ingest.cli.exits import EXIT_DIFFERENT, report_left_out
from ingest.cli.opening import open_store
from ingest.cli.options import (
    ConfigOption,
    JsonOption,
    PartialOption,
    RanksOption,
    StepOption,
    StoreArgument,
)
from ingest.cli.printing import print_json, print_line, say

if TYPE_CHECKING:
    from ingest.questions.trampled import TrampledTensors


def command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find tensors that changed within a step although nobody wrote them: trampled memory.

    For dumps that have a tensor several times in a step: the watch mode of ACL and TorchAir, recomputation.
    Exits with 5 if it finds any.

    [bold]dump-ingest trampled run.zarr --step 8[/]
    """
    answer = ingest.trampled(open_store(store, config), rank, step, include_partial=include_partial)
    if json:
        print_json(list(answer.rows()))
    else:
        _print(answer)
    report_left_out(answer.left_out)
    if answer:
        raise typer.Exit(EXIT_DIFFERENT)


def _print(answer: TrampledTensors) -> None:
    for tensor in answer:
        print_line(
            f"rank {tensor.rank}, step {tensor.step}: {tensor.name} is {tensor.kind}: {tensor.later} differs"
        )
        if tensor.difference is not None:
            print_line(f"  {tensor.difference}")
        if tensor.between:
            more = f" and {tensor.others} more" if tensor.others else ""
            print_line(f"  dumped in between: {', '.join(tensor.between)}{more}")
    if not answer:
        say("no tensor changed without being written")
