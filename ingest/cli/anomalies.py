"""`dump-ingest anomalies`: the incidents of a store, or the findings of anomaly rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ingest
from ingest.cli.exits import exit_if_damaged
from ingest.cli.opening import open_store
from ingest.cli.options import ConfigOption, JsonOption, RanksOption, RuleOption, StepOption, StoreArgument
from ingest.cli.printing import limit_of, limited, print_json, print_rows, print_wrapped, say, say_left_out
from ingest.reader.plain import plain
from ingest.reader.text import counted
from workers.errors import UsageError

if TYPE_CHECKING:
    from workers.store.model import Finding

_MAX_ROWS = 50
_MAX_REASONS = 10
_FINDINGS: Mapping[str, Callable[[Finding], object]] = {
    "severity": attrgetter("severity"),
    "rule": attrgetter("rule"),
    "rank": attrgetter("rank"),
    "step": attrgetter("step"),
    "name": lambda finding: finding.name or "-",
    "what": attrgetter("reason"),
}


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
    # Either; both have totals by severity, what no rule has seen, and what is damaged.
    answer: Any
    if findings or rule:
        answer = ingest.anomalies(opened, rank, step, rule=rule, severity=severity)
        total, shown = sum(answer.totals.values()), limited(answer.findings, most)
        if json or shown:
            print_rows(shown, _FINDINGS, as_json=json)
    else:
        answer = ingest.incidents(opened, rank, step, severity=severity, incident=incident)
        total, shown = len(answer.incidents), limited(answer.incidents, most)
        if json:
            print_json(plain(shown))
        else:
            for line in "\n\n".join(map(str, shown)).splitlines():
                print_wrapped(line)
    _say_rest(answer, "finding" if findings or rule else "incident", total, len(shown))


def _say_rest(answer: Any, noun: str, total: int, shown: int) -> None:
    """Say how many there are, what was not evaluated, and what is damaged; end the command then."""
    left_out = getattr(answer, "left_out", ())
    say_left_out(left_out)
    severities = ", ".join(f"{count} {name}" for name, count in answer.by_severity.items())
    rest = f"; the first {shown} shown" if shown < total else ""
    say(f"{counted(total, noun)}{': ' if severities else ''}{severities}{rest}")
    reasons = [*answer.not_evaluated, *(answer.damaged if noun == "incident" else ())]
    more = [f"and {len(reasons) - _MAX_REASONS} more"] if len(reasons) > _MAX_REASONS else []
    for reason in (*reasons[:_MAX_REASONS], *more):
        say(reason, label="not evaluated")
    exit_if_damaged([*answer.damaged, *(left for left in left_out if left.is_damaged)])
