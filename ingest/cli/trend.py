"""`dump-ingest trend`: one statistic over the steps, a line for each tensor and rank."""

from __future__ import annotations

from typing import Annotated

import typer

import ingest
from ingest.cli.exits import exit_if_damaged
from ingest.cli.files import write_and_say
from ingest.cli.opening import open_store, store_and
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
from ingest.cli.printing import limited, print_json, say_left_out, say_rest
from ingest.cli.tensor_options import Conditions, choice_text, takes_tensor_options


@takes_tensor_options
def command(
    store: StoreArgument = None,
    pattern: PatternArgument = None,
    stat: StatOption = None,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    chosen: Conditions,
    limit: Annotated[
        int, typer.Option(min=0, help="Draw at most this many lines, in table and plot; 0: all.")
    ] = 64,
    png: PngOption = None,
    html: HtmlOption = None,
    csv: CsvOption = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show how a statistic of tensors develops over the steps, by tensor and rank.

    [bold]![/] marks NaN or Inf, [bold]-[/] a step in which the rank lacks the tensor.

    [bold]dump-ingest trend run.zarr '*Adam*.input.0' --stat norm[/]
    [bold]dump-ingest trend run.zarr --role loss[/]
    [bold]dump-ingest trend run.zarr 'Log.*' --stat min --rank 1 --html log.html[/]
    """
    # deferred: numba, numpy and pandas take 0.5 s to import
    from ingest.cli import trend_lines
    from ingest.questions.statistic_names import statistic_for

    if not chosen:
        store, pattern = store_and(store, pattern, config, placeholder="PATTERN")
    statistic = statistic_for(stat, chosen)  # a wrong name is reported before anything is read
    frame = ingest.trend(
        open_store(store, config),
        pattern,
        statistic,
        rank=rank,
        step=step,
        include_partial=include_partial,
        **chosen,
    )
    lines = trend_lines.lines_of(frame)
    shown, steps = limited(lines, limit), sorted(set(frame["step"].tolist()))
    title = f"{statistic} of {choice_text(pattern, chosen)}"
    if json:
        print_json(trend_lines.json_rows(frame))
    else:
        trend_lines.print_lines(title, shown, steps)
        say_rest(len(lines), len(shown), "lines")
    if csv:
        write_and_say(csv, frame.to_csv(index=False))
    if png or html:
        trend_lines.write_plots(title, shown, steps, statistic, png=png, html=html)
    say_left_out(frame.attrs["left_out"])
    exit_if_damaged(frame.attrs["damaged"])
