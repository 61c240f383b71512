"""`dump-ingest compare`: two stores, runs, ranks, steps or dumps, tensor by tensor."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.cli.exits import EXIT_DAMAGE, EXIT_DIFFERENT, EXIT_PARTLY, report_left_out
from ingest.cli.options import (
    Conditions,
    ConfigOption,
    JsonOption,
    LayoutOption,
    PartialOption,
    SchedulerOption,
    load_settings,
    takes_tensor_options,
)
from ingest.cli.printing import check_writable, print_json, say, write_file
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.questions.compare.result import Comparison


@takes_tensor_options
def compare_command(
    a: Annotated[
        str, typer.Argument(metavar="A", help="STORE, STORE@RANK, STORE@RANK,STEP, or a dump directory.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The reference, in the same form.")],
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="YAML file that pairs names of A with names of B.",
            readable=False,
        ),
    ] = None,
    thresholds: Annotated[
        Path | None,
        typer.Option(
            "--thresholds",
            "-t",
            metavar="FILE",
            help="YAML file of allowed differences.",
            readable=False,
        ),
    ] = None,
    fixed_limits: Annotated[
        bool,
        typer.Option(
            "--fixed-limits",
            help="Judge by one limit for each type, instead of limits that are derived for each tensor.",
            show_default=False,
        ),
    ] = False,
    suggest_map: Annotated[
        Path | None,
        typer.Option(
            "--suggest-map",
            metavar="FILE",
            help="Where names differ between two versions of a framework: write the guesses, for --map.",
            show_default=False,
        ),
    ] = None,
    *,
    chosen: Conditions,
    top: Annotated[int, typer.Option(min=0, help="Print at most this many tensors, the worst first.")] = 10,
    all_tensors: Annotated[
        bool, typer.Option("--all", help="Print all tensors, equal ones included, in order of execution.")
    ] = False,
    over_steps: Annotated[
        bool,
        typer.Option(
            "--over-steps",
            help="Print how the relative error of a rank's tensors grows over the steps; reads no elements.",
            show_default=False,
        ),
    ] = False,
    stat: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --over-steps: the statistic: max, std, mean, ... Default: l2_norm.",
            show_default=False,
        ),
    ] = None,
    elements: Annotated[
        bool,
        typer.Option(
            "--elements/--no-elements",
            help="Read elements where digests differ, or judge by statistics alone, which is fast.",
        ),
    ] = True,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with all figures.", show_default=False)
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="token",
            help="A is a trainer, B the engine that samples: match rows by token ids, modules by weights.",
            show_default=False,
        ),
    ] = None,
    include_partial: PartialOption = False,
    ignore_unmatched: Annotated[
        bool,
        typer.Option(
            "--ignore-unmatched", help="Do not count tensors and steps on one side only as differences."
        ),
    ] = False,
    across_layouts: Annotated[
        bool | None,
        typer.Option(
            "--across-layouts/--rank-by-rank",
            help="Put tensors together from all ranks, or compare rank by rank. Default: by their numbers.",
            show_default=False,
        ),
    ] = None,
    layout_map: Annotated[
        Path | None,
        typer.Option(
            "--layout-map",
            metavar="FILE",
            help="YAML file that says how ranks hold tensors, where that is open.",
            readable=False,
        ),
    ] = None,
    layout: LayoutOption = None,
    scheduler: SchedulerOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Start this many worker processes. Default: threads.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two steps, ranks, runs or dumps, tensor by tensor.

    B is the reference. Exits with 0 if every tensor is within its limits, with 5 if not, and with 4 if none
    differs, but not all could be compared.

    [bold]dump-ingest compare run.zarr@0,2 run.zarr@1,2[/]      two ranks, in step 2
    [bold]dump-ingest compare new.zarr s3://b/old.zarr[/]       all ranks and steps
    [bold]dump-ingest compare new.zarr@0 old.zarr@0 --over-steps[/]
    [bold]dump-ingest compare run.zarr /data/dump[/]              a store and its dump
    [bold]dump-ingest compare tp4.zarr tp1.zarr[/]                four ranks against one
    [bold]dump-ingest compare train.zarr rollout.zarr --by token[/]
    """
    # deferred: numba, numpy and zarr take 0.6 s to import; `ingest.compare` imports Dask, too, in 1.4 s
    from ingest.cli.compare_report import growth_between, print_comparison, print_growth, say_summary
    from ingest.dispatch.runners import start_workers
    from ingest.questions.compare.mapping import load_mapping
    from ingest.questions.compare.run import compare
    from ingest.questions.compare.thresholds import load_thresholds
    from ingest.questions.placement.layout_map import load_layout_map

    settings = load_settings(config, layout=layout, scheduler=scheduler, workers=workers).settings
    if a.rstrip("/") == b.rstrip("/"):
        say(f"A and B are both {a}", label="note")
    shown = None if all_tensors else top
    if by is not None:
        given: dict[str, object] = {"--map": mapping, "--thresholds": thresholds, "--layout-map": layout_map}
        given |= {"--html": html, "--suggest-map": suggest_map, "--stat": stat, "--over-steps": over_steps}
        _by_token((a, b), by, given | chosen, top=shown, as_json=json)
        return
    files = {"--html": html, "--suggest-map": suggest_map}
    if over_steps:
        unused = files | {"--map": mapping, "--thresholds": thresholds, "--layout-map": layout_map}
        for option in (option for option, path in unused.items() if path is not None):
            raise UsageError(f"{option} has no effect with --over-steps", hint="Leave one of the two out.")
        growth = growth_between(a, b, chosen, settings.store_arguments, stat)
        print_growth(growth, top=shown, as_json=json)
        report_left_out(growth.left_out)
        raise typer.Exit(EXIT_DIFFERENT if growth.by_onset() else 0)
    if stat is not None:
        raise UsageError("--stat is about the error over the steps", hint="Add --over-steps.")
    names = load_mapping(mapping) if mapping else None
    limits = load_thresholds(thresholds) if thresholds else None
    placements = load_layout_map(layout_map) if layout_map else None
    for option, path in files.items():
        if path is not None:
            check_writable(path, option)  # before anything is compared
    with ExitStack() as at_end:
        client = None
        if scheduler is not None or workers is not None:
            running = start_workers(settings, when_needed=True)
            at_end.callback(running.close)
            client = running.connect
        comparison = compare(
            a,
            b,
            mapping=names,
            thresholds=limits,
            include_partial=include_partial,
            ignore_unmatched=ignore_unmatched,
            keep_equal=all_tensors,
            fixed_limits=fixed_limits,
            elements=elements,
            client=client,
            layout=settings.layout,
            across_layouts=across_layouts,
            layout_map=placements,
            storage_options=settings.store_arguments,
            **chosen,
        )
    _write_files(comparison, html, suggest_map)
    if json:
        print_json(comparison.to_dict())
    else:
        print_comparison(comparison, top=shown)
    say_summary(comparison, top=None if json else shown)
    raise typer.Exit(_exit_code(comparison))


def _by_token(
    sides: tuple[str, str], by: str, given: dict[str, object], *, top: int | None, as_json: bool
) -> None:
    from ingest.cli.question import end_as, print_answer  # deferred: they import numpy
    from ingest.questions.rollout.by_token import compare_tokens

    if by != "token":
        raise UsageError(f"--by {by}: rows can be matched by token alone", hint="Write --by token.")
    for option in (option for option, value in given.items() if value):
        raise UsageError(f"{option} has no effect with --by token", hint="Leave one of the two out.")
    answer = compare_tokens(*sides)
    print_answer(answer, top or 0, as_json=as_json, every="--all")
    end_as(answer)


def _write_files(comparison: Comparison, html: Path | None, suggest_map: Path | None) -> None:
    # deferred: numba, numpy and zarr take 0.6 s to import
    from ingest.questions.compare.html import to_html
    from ingest.questions.compare.matching import mapping_text

    if html is not None:
        write_file(html, to_html(comparison))
    if suggest_map is not None:
        write_file(suggest_map, mapping_text(comparison.guesses, {"a": comparison.a, "b": comparison.b}))


def _exit_code(comparison: Comparison) -> int:
    if comparison.damaged or any(left.is_damaged for _, left in comparison.left_out):
        return EXIT_DAMAGE
    if comparison.is_undecided:
        return EXIT_PARTLY
    return 0 if comparison.is_within else EXIT_DIFFERENT
