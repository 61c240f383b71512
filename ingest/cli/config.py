"""`dump-ingest config`: the settings, where they come from, and whether they are right."""

from __future__ import annotations

import json as jsonlib
from typing import Any

import typer

from ingest.cli.common import ConfigOption, JsonOption, err, print_json, print_table

app = typer.Typer(help="Show, check and explain the settings.", no_args_is_help=True)


@app.command("show")
def show(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Print the settings in effect, and where each comes from."""
    from ingest.settings import load

    loaded = load(config)
    values = loaded.settings.model_dump(mode="json")
    rows = [
        {"setting": name, "value": _flat(value), "origin": loaded.origins[name]}
        for name, value in values.items()
    ]
    if json:
        print_json(rows)
        return
    print_table(
        ("setting", "value", "origin"), ((r["setting"], _text(r["value"]), r["origin"]) for r in rows)
    )


@app.command("validate")
def validate(config: ConfigOption = None) -> None:
    """Check the settings, and the rules that they name; exits with 2 when something is wrong."""
    from ingest.settings import load
    from workers.rules.load import load_rules

    loaded = load(config)
    load_rules(loaded.settings.rules)
    for name in loaded.unknown_variables:
        err.print(f"[yellow]warning:[/] {name} is no setting")
    err.print("The settings are valid.")


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of the settings file, with a description of every setting."""
    from ingest.settings import Settings

    typer.echo(jsonlib.dumps(Settings.model_json_schema(), indent=2))


def _flat(value: Any) -> Any:
    return jsonlib.dumps(value) if isinstance(value, dict) else value


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
