"""`dump-ingest anomalies`: the findings of anomaly rules."""

from __future__ import annotations

from typing import Annotated

import typer

import ingest
from ingest.cli.exits import exit_if_damaged
from ingest.cli.opening import open_store
from ingest.cli.options import ConfigOption, JsonOption, RankOption, RuleOption, StepOption, StoreArgument
from ingest.cli.printing import counted, err, limit_of, limited, print_json, print_table, say

_MAX_FINDINGS = 50
_MAX_REASONS = 10


def command(
    store: StoreArgument = None,
    rank: RankOption = None,
    step: StepOption = None,
    rule: RuleOption = None,
    severity: Annotated[
        str | None,
        typer.Option(metavar="SEVERITY", help="The mildest severity to list: info, warning or critical."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"Print at most N findings; 0: all. Default: {_MAX_FINDINGS} on a terminal, else all.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the findings of anomaly rules, the most severe first.

    Findings of the same severity are in order of steps. This command evaluates no rules: that happens when a
    step is committed and, for rules over several steps or ranks, in `consolidate`. `rules test` evaluates
    rules on stored steps.

    [bold]dump-ingest anomalies run.zarr[/]
    [bold]dump-ingest anomalies run.zarr --severity critical --rank 3 --json[/]
    """
    answer = ingest.anomalies(open_store(store, config), rank, step, rule=rule, severity=severity)
    shown = limited(answer.findings, 0 if json and limit is None else limit_of(limit, _MAX_FINDINGS))
    if json:
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
    _say_totals(answer, len(shown))
    exit_if_damaged(answer.damaged)


def _say_totals(answer: ingest.Anomalies, shown: int) -> None:
    total = sum(answer.totals.values())
    message = counted(total, "finding")
    if answer.by_severity:
        message += ": " + ", ".join(f"{count} {severity}" for severity, count in answer.by_severity.items())
    if shown < total:
        message += f"; the first {shown} shown"
    err.print(message)
    for reason in answer.not_evaluated[:_MAX_REASONS]:
        say(reason, label="not evaluated")
    if len(answer.not_evaluated) > _MAX_REASONS:
        say(f"and {len(answer.not_evaluated) - _MAX_REASONS} more", label="not evaluated")
