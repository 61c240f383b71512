"""`dump-ingest config`: the settings, where they come from, and a check of them."""

from __future__ import annotations

from operator import itemgetter

import typer

from ingest.cli.options import ConfigOption, JsonOption, load_settings, warn_of_unknown_variables
from ingest.cli.printing import say
from ingest.cli.question import print_answer
from ingest.questions.question import Rows
from workers.host.credentials import masked_values
from workers.store.strict_json import dumps

app = typer.Typer(help="Show, check and explain the settings.", no_args_is_help=True, add_completion=False)


@app.command("show")
def show(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Print the settings in effect, and where each comes from."""
    loaded = load_settings(config)
    warn_of_unknown_variables(loaded)
    values = masked_values(loaded.settings.model_dump(mode="json"))
    rows = [
        {
            "setting": name,
            "value": dumps(value) if isinstance(value, dict) else value,
            "origin": loaded.origins[name],
        }
        for name, value in values.items()
    ]
    columns = {name: itemgetter(name) for name in ("setting", "value", "origin")}
    print_answer(Rows("", rows, columns), as_json=json)


@app.command("validate")
def validate(config: ConfigOption = None) -> None:
    """Check the settings, and the rules that they name; exit with 2 if something is wrong."""
    from workers.rules.load import load_rules  # deferred: pydantic and numpy take 0.2 s to import

    loaded = load_settings(config)
    load_rules(loaded.settings.rules)
    warn_of_unknown_variables(loaded)
    say("The settings are valid.")


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of the settings file, with a description of every setting."""
    from ingest.settings import schema  # deferred: pydantic takes 0.1 s to import

    typer.echo(dumps(schema(), indent=2))
