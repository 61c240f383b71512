"""`dump-ingest anomalies`: what rules have found."""

from __future__ import annotations

from typing import Annotated

import typer

from ingest.cli.common import (
    ConfigOption,
    JsonOption,
    RankOption,
    StepOption,
    StoreArgument,
    err,
    print_json,
    print_table,
    say,
    the_store,
)

NAME = "anomalies"
_SHOWN = 50
_SAID = 10


def command(
    store: StoreArgument = None,
    rank: RankOption = None,
    step: StepOption = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this rule, or those of a glob; may be repeated."),
    ] = None,
    severity: Annotated[
        str | None, typer.Option(metavar="SEVERITY", help="The mildest: info, warning or critical.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Print no more than this many; 0: all.")] = _SHOWN,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List what rules have found: the worst first, then the first.

    Nothing is evaluated here: rules are when a step is committed, and over several steps or ranks by
    `consolidate`. `rules test` evaluates them over what is stored.

    [bold]dump-ingest anomalies run.zarr[/]
    [bold]dump-ingest anomalies run.zarr --severity critical --rank 3 --json[/]
    """
    from ingest.findings.anomalies import anomalies

    found = anomalies(the_store(store, config), rank, step, rule=rule, severity=severity)
    shown = found.findings[:limit] if limit else found.findings
    if json:
        print_json([one.to_dict() for one in shown])
    elif shown:
        columns = ("severity", "rule", "rank", "step", "name", "what")
        rows = [
            (
                one.severity,
                one.rule,
                "-" if one.rank is None else str(one.rank),
                str(one.step),
                one.name or "-",
                one.reason,
            )
            for one in shown
        ]
        print_table(columns, rows)
    total = sum(found.totals.values())
    parts = ", ".join(f"{count} {severity}" for severity, count in found.by_severity.items())
    said = f"{total} finding{'s' * (total != 1)}" + (f": {parts}" if parts else "")
    err.print(said + (f"; the first {len(shown)} shown" if len(shown) < total else ""))
    for reason in found.not_evaluated[:_SAID]:
        say(reason, before="[yellow]not evaluated:[/] ")
    if len(found.not_evaluated) > _SAID:
        err.print(f"[yellow]not evaluated:[/] and {len(found.not_evaluated) - _SAID} more")
