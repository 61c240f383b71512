"""`dump-ingest layout`: how the ranks of a run hold its tensors."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

import ingest
from ingest.cli.exits import EXIT_DIFFERENT, report_left_out
from ingest.cli.opening import open_store
from ingest.cli.options import ConfigOption, JsonOption, MeshOption, PartialOption, StoreArgument
from ingest.cli.printing import (
    limited,
    print_json,
    print_line,
    print_table,
    say,
    say_rest,
    short_name,
)
from ingest.reader.ranges import format_ranges
from ingest.reader.text import counted, shape_text
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.questions.placement.by_marginals import LayoutByMarginals
    from ingest.questions.placement.layout_answer import RunLayout


def command(
    store: StoreArgument = None,
    *,
    step: Annotated[
        int | None,
        typer.Option("--step", "-n", metavar="N", min=0, help="Only this step.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many rows of a table; 0: all.")] = 40,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="STORE@RANK,STEP",
            help="Say how the ranks hold the tensors of this one, from marginals alone: also after gc.",
            show_default=False,
        ),
    ] = None,
    tensor: Annotated[
        str, typer.Option(metavar="PATTERN", help="With --reference: only tensors with such names.")
    ] = "*",
    whole: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The tensor of the reference that these make up.", show_default=False
        ),
    ] = None,
    mesh: MeshOption = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show how the ranks of a run hold its tensors, and name ranks that hold what they should not.

    Exits with 5 if values show a mistake: a missing or doubled reduction, a wrong group, a wrong shard, a
    bias on every rank, an optimizer state out of step; each once, where it is first.

    [bold]dump-ingest layout run.zarr[/]
    [bold]dump-ingest layout run.zarr --step 3 --mesh dp=2,tp=4[/]
    [bold]dump-ingest layout tp2.zarr --reference tp1.zarr@0,3 --tensor 'MatMul*'[/]
    """
    if reference is not None:
        by_marginals = ingest.layout_by_marginals(
            open_store(store, config, mesh=mesh), reference, tensor, of=whole, step=step
        )
        if json:
            print_json(by_marginals.to_dict())
        else:
            _print_held(by_marginals, limit)
        return
    if whole is not None or tensor != "*":
        raise UsageError("--tensor and --whole need --reference STORE@RANK,STEP")
    answer = ingest.layout(open_store(store, config, mesh=mesh), step, include_partial=include_partial)
    if json:
        print_json(answer.to_dict())
    else:
        _print(answer, limit)
    report_left_out(answer.left_out)
    if answer.findings:
        raise typer.Exit(EXIT_DIFFERENT)


def _print_held(answer: LayoutByMarginals, limit: int) -> None:
    shown = limited(answer.tensors, limit)
    print_table(
        ("tensor", "shape", "pieces of ranks", "layout", "known", "error"),
        (
            (
                short_name(held.name),
                shape_text(held.shape),
                "; ".join(map(format_ranges, held.groups)),
                held.placement or "?",
                held.exactness or held.why,
                "-" if math.isnan(held.error) else f"{held.error:.1e}",
            )
            for held in shown
        ),
        right=("error",),
    )
    say_rest(len(answer.tensors), len(shown), "tensors")


def _print(answer: RunLayout, limit: int) -> None:
    kinds = limited(answer.kinds, limit)
    print_table(
        ("tensors like", "ranks", "layout", "known by", "tensors"),
        (
            (kind.name, format_ranges(kind.ranks), kind.placement, kind.why, str(kind.tensors))
            for kind in kinds
        ),
        right=("tensors",),
        spare=("tensors", "known by"),
    )
    say_rest(len(answer.kinds), len(kinds), "kinds of tensors")
    if answer.replicas:
        groups = " ".join(f"--group {format_ranges(group).replace(' ', '')}" for group in answer.replicas)
        command = f"dump-ingest divergence {shlex.quote(answer.store)} {groups}"
        say(f"ranks with the same parameters: {command}")
    if answer.removed:
        say(
            f"{counted(answer.removed, 'tensor')} that differ from rank to rank: their elements are removed. "
            "--reference STORE@RANK,STEP compares them by marginals with a step that has them whole",
            label="note",
        )
    if not answer.findings:
        return
    print_line("")
    findings = limited(answer.findings, limit)
    print_table(
        ("step", "ranks", "finding", "level", "after", "tensor", "why"),
        (
            (
                str(finding.step),
                format_ranges(finding.ranks),
                finding.kind,
                finding.level,
                str(finding.follows),
                finding.name,
                finding.text,
            )
            for finding in findings
        ),
        right=("after",),
        spare=("after",),
    )
    say_rest(len(answer.findings), len(findings), "findings")
