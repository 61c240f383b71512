"""`dump-ingest anomalies`: the incidents of a store, or the findings of anomaly rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

import ingest
from ingest.cli.exits import exit_if_damaged, exit_if_left_out_damaged
from ingest.cli.opening import open_store
from ingest.cli.options import ConfigOption, JsonOption, RanksOption, RuleOption, StepOption, StoreArgument
from ingest.cli.printing import (
    counted,
    limit_of,
    limited,
    print_json,
    print_line,
    print_table,
    print_wrapped,
    say,
    say_left_out,
)
from workers.errors import UsageError

_MAX_ROWS = 50
_MAX_REASONS = 10


def command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    rule: RuleOption = None,
    severity: Annotated[
        str | None,
        typer.Option(metavar="SEVERITY", help="The mildest severity to list: info, warning or critical."),
    ] = None,
    incident: Annotated[
        str,
        typer.Option("--id", metavar="ID", help="Only the incident with this id.", show_default=False),
    ] = "",
    findings: Annotated[
        bool, typer.Option("--findings", help="List every finding of every rule instead of incidents.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"Print at most N incidents or findings; 0: all. Default: {_MAX_ROWS} on a terminal.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List what went wrong, once for each cause: the worst first, then the earliest.

    One NaN is one incident: where it was born, its ranks and steps, and which rules fired. `--findings` and
    `--rule` list what rules found about each tensor. This command evaluates no rules: that happens when a
    step is committed and, for rules over several steps or ranks, in `consolidate`.

    [bold]dump-ingest anomalies run.zarr[/]
    [bold]dump-ingest anomalies run.zarr --id 70c5417a96269594[/]
    [bold]dump-ingest anomalies run.zarr --findings --severity critical --rank 3 --json[/]
    """
    if incident and (findings or rule):
        raise UsageError(
            "--id is about incidents, --findings and --rule are not", hint="Leave out one of them."
        )
    opened = open_store(store, config)
    most = limit_of(limit, _MAX_ROWS, as_json=json)
    if findings or rule:
        _list_findings(ingest.anomalies(opened, rank, step, rule=rule, severity=severity), most, as_json=json)
    else:
        _list_incidents(
            ingest.incidents(opened, rank, step, severity=severity, incident=incident), most, as_json=json
        )


def _list_incidents(answer: ingest.Incidents, limit: int, *, as_json: bool) -> None:
    shown = limited(answer.incidents, limit)
    if as_json:
        print_json([incident.to_dict() for incident in shown])
    else:
        for number, incident in enumerate(shown):
            if number:
                print_line("")
            for line in str(incident).split("\n"):
                print_wrapped(line)
    say_left_out(answer.left_out)
    _say_totals("incident", len(answer.incidents), answer.by_severity, len(shown))
    _say_not_evaluated((*answer.not_evaluated, *answer.damaged))
    exit_if_damaged(answer.damaged)
    exit_if_left_out_damaged(answer.left_out)


def _list_findings(answer: ingest.Anomalies, limit: int, *, as_json: bool) -> None:
    shown = limited(answer.findings, limit)
    if as_json:
        print_json([finding.to_dict() for finding in shown])
    elif shown:
        columns = ("severity", "rule", "rank", "step", "name", "what")
        rows = [
            (
                finding.severity,
                finding.rule,
                "-" if finding.rank is None else str(finding.rank),
                str(finding.step),
                finding.name or "-",
                finding.reason,
            )
            for finding in shown
        ]
        print_table(columns, rows)
    _say_totals("finding", sum(answer.totals.values()), answer.by_severity, len(shown))
    _say_not_evaluated(answer.not_evaluated)
    exit_if_damaged(answer.damaged)


def _say_totals(noun: str, total: int, by_severity: Mapping[str, int], shown: int) -> None:
    message = counted(total, noun)
    if by_severity:
        message += ": " + ", ".join(f"{count} {severity}" for severity, count in by_severity.items())
    if shown < total:
        message += f"; the first {shown} shown"
    say(message)


def _say_not_evaluated(reasons: Sequence[str]) -> None:
    for reason in reasons[:_MAX_REASONS]:
        say(reason, label="not evaluated")
    if len(reasons) > _MAX_REASONS:
        say(f"and {len(reasons) - _MAX_REASONS} more", label="not evaluated")
