"""`dump-ingest heatmap`: one statistic over ranks and steps."""

from __future__ import annotations

from typing import Annotated

import typer

import ingest
from ingest.cli.exits import exit_if_damaged
from ingest.cli.files import write_and_say
from ingest.cli.opening import open_store, store_and_maybe
from ingest.cli.options import (
    ConfigOption,
    CsvOption,
    HtmlOption,
    JsonOption,
    PartialOption,
    PatternArgument,
    PngOption,
    RanksOption,
    StatOption,
    StepOption,
    StoreArgument,
)
from ingest.cli.printing import print_json, say_left_out
from ingest.cli.tensor_options import Conditions, choice_text, takes_tensor_options


@takes_tensor_options
def command(
    store: StoreArgument = None,
    pattern: PatternArgument = None,
    stat: StatOption = None,
    aggregate: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="How to combine several tensors: max, min, sum or mean. "
            "Default: sum for counts, min for min, max for the rest.",
            show_default=False,
        ),
    ] = None,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    chosen: Conditions,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many ranks; 0: all.")] = 128,
    png: PngOption = None,
    html: HtmlOption = None,
    csv: CsvOption = None,
    values_only: Annotated[
        bool,
        typer.Option(
            "--values-only",
            help="Print a line with rank, step and value for each, and count nothing: less is read.",
            show_default=False,
        ),
    ] = False,
    cells: Annotated[
        str | None,
        typer.Option(
            metavar="ROWSxCOLUMNS",
            help="Merge ranks and steps into at most this many cells, each with its worst value, as the page "
            "does, with partial steps; --stat is then non_finite, findings, overflows, ... or a statistic.",
            show_default=False,
        ),
    ] = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show a statistic of one tensor, or of several together, over ranks and steps.

    [bold]··[/] is zero, [bold]!![/] marks NaN or Inf, [bold]--[/] a step without such a tensor.
    Counts have a logarithmic scale; [bold]██[/] counts all elements.

    [bold]dump-ingest heatmap run.zarr --stat nan_count[/]   all tensors
    [bold]dump-ingest heatmap run.zarr 'AllReduce.*' --stat norm --aggregate mean --png norms.png[/]
    """
    # deferred: numba, numpy and pandas take 0.5 s to import
    from ingest.cli import heatmap_cells, heatmap_field, heatmap_values
    from ingest.questions.heatmap_rows import heatmap_rows
    from ingest.questions.statistic_names import statistic_for

    if not chosen:
        store, pattern = store_and_maybe(store, pattern, config)
    if cells is not None:
        heatmap_values.refuse_beside(
            "--cells",
            {
                "--aggregate": aggregate,
                "--png": png,
                "--html": html,
                "--csv": csv,
                "--values-only": values_only,
                "conditions": chosen,
            },
        )
        heatmap_cells.print_cells(
            open_store(store, config), pattern, stat, cells, as_json=json, rank=rank, step=step
        )
        return
    statistic = statistic_for(stat, chosen)  # a wrong name is reported before anything is read
    if values_only:
        heatmap_values.refuse_beside(
            "--values-only",
            {"--aggregate": aggregate, "--png": png, "--html": html, "--csv": csv, "conditions": chosen},
        )
        heatmap_values.print_values(
            open_store(store, config),
            pattern,
            statistic,
            as_json=json,
            rank=rank,
            step=step,
            include_partial=include_partial,
        )
        return
    field = ingest.heatmap(
        open_store(store, config),
        pattern,
        statistic,
        aggregate=aggregate,
        rank=rank,
        step=step,
        include_partial=include_partial,
        **chosen,
    )
    what = choice_text(pattern, chosen)
    title = f"{statistic} of {what}"
    if field.attrs["tensors"] > 1:
        like = f" like {what}" if pattern or chosen else ""
        title = f"{field.attrs['aggregate']} of {statistic} of {field.attrs['tensors']} tensors{like}"
    if json:
        print_json(heatmap_rows(field))
    else:
        heatmap_field.print_field(title, field, limit)
    if csv:
        write_and_say(csv, field.to_dataframe(name="value").reset_index().to_csv(index=False))
    if png or html:
        heatmap_field.write_plots(title, field, png=png, html=html)
    say_left_out(field.attrs["left_out"])
    exit_if_damaged(field.attrs["damaged"])
