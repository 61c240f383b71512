"""`dump-ingest rules`: anomaly rules, whether they are right, and what they would have found."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from ingest.findings.backtest import BacktestResult
    from workers.rules.load import LoadedRules

app = typer.Typer(help="List, check and try anomaly rules.", no_args_is_help=True)
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--rules", metavar="FILE", help="File of rules. Default: the `rules` setting.", readable=False
    ),
]
_FILE = typer.Argument(metavar="[FILE]", help="File of rules. Default: the `rules` setting.", readable=False)


@app.command("list")
def list_rules(rules: FileOption = None, config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the rules in effect, those that are switched off, too."""
    loaded = _loaded(rules, config)
    rows = [
        {
            "name": rule.name,
            "kind": rule.kind,
            "severity": rule.severity,
            "enabled": rule.enabled,
            "origin": loaded.origins[rule.name],
            "description": rule.description,
        }
        for rule in loaded.rules
    ]
    if json:
        print_json(rows)
        return
    columns = ("name", "kind", "severity", "enabled", "origin", "description")
    print_table(columns, [[_text(row[column]) for column in columns] for row in rows])
    err.print(f"rule set {loaded.enabled.digest}")


@app.command("show")
def show(
    name: Annotated[list[str] | None, typer.Argument(help="Rules, by name or glob. Default: all.")] = None,
    rules: FileOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Print rules as they would stand in a file, with what is not given in it at its default."""
    import yaml

    from workers.rules.load import rules_like

    loaded = _loaded(rules, config)
    names = rules_like(name or ["*"], [rule.name for rule in loaded.rules])
    shown: list[dict[str, Any]] = []
    for rule in (one for one in loaded.rules if one.name in names):
        values = rule.model_dump(mode="json")
        # A span as it is written, and nothing that says nothing.
        values["rank"] = [f"{first}-{last}" for first, last in rule.rank]
        shown.append({field: value for field, value in values.items() if value not in ("", [], None)})
    if json:
        print_json(shown)
    else:
        typer.echo(yaml.safe_dump({"rules": shown}, sort_keys=False, width=100, allow_unicode=True), nl=False)


@app.command("validate")
def validate(file: Annotated[Path | None, _FILE] = None, config: ConfigOption = None) -> None:
    """Check a file of rules; exits with 2 and names the line when something is wrong."""
    loaded = _loaded(file, config)
    on = len(loaded.enabled.rules)
    err.print(
        f"The rules are valid: {on} on, {len(loaded.rules) - on} off; rule set {loaded.enabled.digest}."
    )


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of a file of rules, with a description of every field."""
    from workers.rules.schema import file_schema

    typer.echo(jsonlib.dumps(file_schema(), indent=2))


@app.command("test")
def try_rules(
    store: StoreArgument = None,
    rules: FileOption = None,
    rank: RankOption = None,
    step: StepOption = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this rule, or those of a glob; may be repeated."),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate rules over what is stored: how often each would have fired, and on what. Writes nothing.

    [bold]dump-ingest rules test run.zarr --rules rules.yml[/]
    """
    from ingest.findings.backtest import backtest

    loaded = _loaded(rules, config)
    found = backtest(the_store(store, config), loaded.enabled, rank, step, rule=rule)
    if json:
        print_json(found.to_dict())
    else:
        columns = ("rule", "severity", "findings", "ranks", "steps", "first")
        print_table(columns, [_row(one) for one in found.rules], right=("findings",))
    err.print(f"{found.steps} steps of single ranks looked at")
    for one in found.rules:
        for reason in one.failed[:3]:
            say(f"{one.rule}: {reason}", before="[bold red]failed:[/] ")
    for left in found.left_out:
        say(str(left), before="[yellow]left out:[/] ")


def _row(one: BacktestResult) -> list[str]:
    first = ""
    if one.first:
        finding = one.first[0]
        where = f"step {finding.step}" if finding.rank is None else f"rank {finding.rank} step {finding.step}"
        first = f"{where}: {finding.name + ': ' if finding.name else ''}{finding.reason}"
    return [one.rule, one.severity, str(one.findings), one.ranks or "-", one.steps or "-", first or "-"]


def _loaded(file: Path | None, config: Path | None) -> LoadedRules:
    from ingest.settings import load
    from workers.rules.load import load_rules

    return load_rules(file if file is not None else load(config).settings.rules)


def _text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
