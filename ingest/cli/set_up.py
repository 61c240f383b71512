"""The commands that set up: `doctor`, `check`, `config`, `rules` and `skill`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ingest
from ingest.cli.exits import EXIT_FAILED
from ingest.cli.options import (
    ConfigOption,
    Flags,
    JsonOption,
    RanksOption,
    RuleOption,
    StepOption,
    StoreArgument,
    StoreOption,
    load_settings,
    open_store,
    takes_settings,
    warn_of_unknown_variables,
)
from ingest.cli.printing import print_json, print_line, say
from ingest.cli.question import end_as, print_answer
from ingest.questions.question import Rows
from ingest.reader.choice import format_ranges
from ingest.reader.text import counted
from workers.errors import UsageError
from workers.host.credentials import masked_values
from workers.store.strict_json import dumps

if TYPE_CHECKING:
    from workers.rules.schema import LoadedRules


_COLUMNS: Mapping[str, Callable[[Any], str]] = {
    "": lambda result: "ok" if result.ok else "FAIL",
    "check": attrgetter("check"),
    "detail": lambda result: result.detail + (f"  ({result.hint})" if result.hint else ""),
}


@takes_settings(
    "scheduler",
    "expected_ranks",
)
def doctor_command(
    dump: Annotated[
        Path | None,
        typer.Argument(metavar="DUMP", help="A dump directory to check.", show_default=False, readable=False),
    ] = None,
    store: StoreOption = None,
    *,
    flags: Flags,
    processes: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="HOST:PORT",
            help="Also check the watcher or consolidator that serves its metrics there; may be repeated.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check settings, dump, store and scheduler, and say how to fix what is wrong.

    With a dump and a store, it also says what of the dump is not in the store, whether somebody keeps the
    consolidated view, how the last gc ended, and how far the clock is off. With --from, it asks watchers and
    consolidators whether they run, make progress, and have the same store.

    [bold]dump-ingest doctor /data/dump --store s3://bucket/run.zarr --from host:9108[/]

    Writes one small object to the store and removes it. Exits with 1 if a check fails.
    """
    from ingest.doctor.checks import run_checks  # deferred: dask, numba and zarr take 1 s to import

    loaded = load_settings(config, store=store, **flags)
    results = run_checks(loaded, dump, processes or ())
    print_answer(Rows("", results, _COLUMNS), as_json=json)
    if not all(result.ok for result in results):
        raise typer.Exit(EXIT_FAILED)


def check_command(
    configuration: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="The configuration of a dump system.", readable=False),
    ],
    version: Annotated[
        str, typer.Option("--version", metavar="VERSION", help="The version of MindSpore, such as 2.10.0.")
    ] = "",
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Where the job runs: CPU, GPU or Ascend.")
    ] = "",
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check the configuration of a dump: what it will dump, what is ignored, what contradicts itself.

    With a store of the same job, also how much it will dump, and whether its disk has room for that.
    Exits with 1 if the dump system would refuse it.

    [bold]dump-ingest check data_dump.json --version 2.10.0 --device Ascend[/]
    [bold]dump-ingest check data_dump.json --store run.zarr[/]   how much it will dump
    """
    checked = ingest.check_dump_config(configuration, version=version, device=device)
    cost = None
    if store is not None and checked.asked is not None:
        cost = ingest.dump_cost(open_store(store, config), checked)
    if json:
        print_json(checked.to_dict() | {"cost": None if cost is None else cost.to_dict()})
    else:
        for line in (*_lines(checked), *str(cost or "").splitlines()):
            print_line(line)
        if not checked.findings:
            say("nothing is wrong with it")
    if checked.refused:
        raise typer.Exit(EXIT_FAILED)


def _lines(checked: ingest.CheckedConfig) -> Iterator[str]:
    yield f"{checked.name}: {checked.system}"
    if (asked := checked.asked) is not None:
        operators = "all" if asked.operators is None else counted(len(asked.operators), "pattern")
        steps, ranks = (
            "all" if numbers is None else format_ranges(sorted(numbers)) or "none"
            for numbers in (asked.steps, asked.devices)
        )
        yield f"  asks for {asked.saved} of {asked.io.value}; operators: {operators}; steps: {steps}"
        yield f"  ranks or devices: {ranks}; to {asked.directory or 'no directory'}"
        if asked.sample:
            yield f"  a sample: the first and the last {asked.sample} elements of each tensor"
        if asked.only:
            yield f"  only {asked.only}"
    for finding in (*checked.refused, *checked.warnings):
        yield f"{finding.severity.value}: {finding}"
        yield f"  {finding.source}"


config_app = typer.Typer(
    help="Show, check and explain the settings.", no_args_is_help=True, add_completion=False
)


@config_app.command("show")
def _show_settings(config: ConfigOption = None, json: JsonOption = False) -> None:
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


@config_app.command("validate")
def _validate_settings(config: ConfigOption = None) -> None:
    """Check the settings, and the rules that they name; exit with 2 if something is wrong."""
    from workers.rules.schema import load_rules  # deferred: pydantic and numpy take 0.2 s to import

    loaded = load_settings(config)
    load_rules(loaded.settings.rules)
    warn_of_unknown_variables(loaded)
    say("The settings are valid.")


@config_app.command("schema")
def _schema_of_settings() -> None:
    """Print the JSON schema of the settings file, with a description of every setting."""
    from ingest.settings import Settings  # deferred: pydantic takes 0.1 s to import

    typer.echo(dumps(Settings.model_json_schema(), indent=2))


rules_app = typer.Typer(
    help="List, check and test anomaly rules.", no_args_is_help=True, add_completion=False
)
_FileOption = Annotated[
    Path | None,
    typer.Option(
        "--rules", metavar="FILE", help="File of rules. Default: the `rules` setting.", readable=False
    ),
]


@rules_app.command("list")
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


@rules_app.command("show")
def _show_rules(
    name: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Rules, by name or glob. Default: all.")
    ] = None,
    rules: _FileOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Print rules as YAML that a file of rules could hold, including fields at their default."""
    import yaml  # deferred: takes 0.02 s to import

    from workers.rules.schema import rules_like  # deferred: pydantic and numpy take 0.2 s to import

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


@rules_app.command("validate")
def _validate_rules(
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


@rules_app.command("schema")
def _schema_of_rules() -> None:
    """Print the JSON schema of a file of rules, with a description of every field."""
    from workers.rules.schema import file_schema  # deferred: pydantic and numpy take 0.2 s to import

    typer.echo(dumps(file_schema(), indent=2))


@rules_app.command("test")
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
    from workers.rules.schema import load_rules  # deferred: pydantic and numpy take 0.2 s to import

    return load_rules(file if file is not None else load_settings(config).settings.rules)


def skill_command(
    install: Annotated[
        bool,
        typer.Option("--install", help="Write it below --to instead of printing it.", show_default=False),
    ] = False,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The directory of the agent's skills.")] = Path(
        ".claude/skills"
    ),
) -> None:
    """Print or install the skill with which coding agents find out what went wrong.

    [bold]dump-ingest skill --install[/]   for this project
    [bold]dump-ingest skill --install --to ~/.claude/skills[/]   for all of yours
    """
    text = files("ingest.agents").joinpath("SKILL.md").read_text("utf-8")
    if not install:
        typer.echo(text, nl=False)
        return
    path = to.expanduser() / "dump-ingest" / "SKILL.md"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as exc:
        raise UsageError(
            f"cannot write {path}: {exc.strerror or exc}", hint="--to names a directory."
        ) from exc
    say(f"wrote {path}")
