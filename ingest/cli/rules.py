"""`dump-ingest rules`: anomaly rules, checks of them, and what they would have found."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ingest
from ingest.cli.options import (
    ConfigOption,
    JsonOption,
    RanksOption,
    RuleOption,
    StepOption,
    StoreArgument,
    load_settings,
    open_store,
)
from ingest.cli.printing import print_json, say
from ingest.cli.question import end_as, print_answer
from ingest.questions.question import Rows
from workers.store.strict_json import dumps

if TYPE_CHECKING:
    from workers.rules.load import LoadedRules

app = typer.Typer(help="List, check and test anomaly rules.", no_args_is_help=True, add_completion=False)
_FileOption = Annotated[
    Path | None,
    typer.Option(
        "--rules", metavar="FILE", help="File of rules. Default: the `rules` setting.", readable=False
    ),
]


@app.command("list")
def list_rules(rules: _FileOption = None, config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the rules in effect, including those that are switched off."""
    loaded = _load_rules(rules, config)
    names = ("name", "kind", "severity", "enabled", "origin", "description")
    rows = [
        {name: loaded.origins[rule.name] if name == "origin" else getattr(rule, name) for name in names}
        for rule in loaded.rules
    ]
    columns: dict[str, Callable[[Any], object]] = {name: itemgetter(name) for name in names}
    columns["enabled"] = lambda row: "yes" if row["enabled"] else "no"
    print_answer(Rows("", rows, columns, headline=f"rule set {loaded.enabled.digest}"), as_json=json)


@app.command("show")
def show(
    name: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Rules, by name or glob. Default: all.")
    ] = None,
    rules: _FileOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Print rules as YAML that a file of rules could hold, including fields at their default."""
    import yaml  # deferred: takes 0.02 s to import

    from workers.rules.load import rules_like  # deferred: pydantic and numpy take 0.2 s to import

    loaded = _load_rules(rules, config)
    names = rules_like(name or ["*"], [rule.name for rule in loaded.rules])
    shown: list[dict[str, Any]] = []
    for rule in loaded.rules:
        if rule.name in names:
            fields = rule.model_dump(mode="json")
            fields["rank"] = [f"{first}-{last}" for first, last in rule.rank]  # as it is written in a file
            shown.append({field: value for field, value in fields.items() if value not in ("", [], None)})
    if json:
        print_json(shown)
    else:
        typer.echo(yaml.safe_dump({"rules": shown}, sort_keys=False, width=100, allow_unicode=True), nl=False)


@app.command("validate")
def validate(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File of rules. Default: the `rules` setting.", readable=False),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Check a file of rules; if something is wrong, name the line and exit with 2."""
    loaded = _load_rules(file, config)
    on = len(loaded.enabled.rules)
    say(f"The rules are valid: {on} on, {len(loaded.rules) - on} off; rule set {loaded.enabled.digest}.")


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of a file of rules, with a description of every field."""
    from workers.rules.schema import file_schema  # deferred: pydantic and numpy take 0.2 s to import

    typer.echo(dumps(file_schema(), indent=2))


@app.command("test")
def backtest(
    store: StoreArgument = None,
    rules: _FileOption = None,
    rank: RanksOption = None,
    step: StepOption = None,
    rule: RuleOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate rules on stored steps without writing: how often each would have fired, and where.

    [bold]dump-ingest rules test run.zarr --rules rules.yml[/]
    """
    loaded = _load_rules(rules, config)
    answer = ingest.test_rules(open_store(store, config), loaded.enabled, rank, step, rule=rule)
    print_answer(answer, as_json=json)
    end_as(answer)


def _load_rules(file: Path | None, config: Path | None) -> LoadedRules:
    from workers.rules.load import load_rules  # deferred: pydantic and numpy take 0.2 s to import

    return load_rules(file if file is not None else load_settings(config).settings.rules)
