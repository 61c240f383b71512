"""Options and arguments that several commands share, and how their values are taken.

Plain values are taken without pydantic, and empty paths are refused.

Here are also the settings of a command, and the store that they name.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter as Argument
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin

import typer

import ingest
from ingest.cli.printing import say
from ingest.environment import ENV_PREFIX
from ingest.questions.question import CONDITIONS, RANKS, STEPS, Option, conditions_of
from ingest.units import parse_size
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.settings import LoadedSettings, Settings


_PLAIN = (str, int, float)


def told(name: str, option: Option, default: Any = None) -> Any:
    """Return what typer is told of a parameter of a question."""
    if option.is_argument:
        return typer.Argument(metavar=option.metavar, help=option.words, show_default=False)
    flag = option.flag or f"--{name.replace('_', '-')}"
    return typer.Option(
        *filter(None, (flag, option.short)),
        metavar=option.metavar or None,
        help=option.words,
        min=0 if option.kind is int and option.within == (None, None) else option.within[0],
        max=option.within[1],
        show_default=not (default in (None, "") or isinstance(default, bool)),
        parser=None if option.kind in (*_PLAIN, bool) else _parser(option.kind),
    )


def typer_type(name: str, option: Option, default: Any) -> Any:
    """Return the type that typer reads for a parameter of a question."""
    if isinstance(default, bool):
        return Annotated[bool, told(name, option, default)]
    kind: Any = option.kind if option.kind in (*_PLAIN, bool) else Any
    kind = list[kind] if option.is_several else kind
    return Annotated[kind if default is Argument.empty else kind | None, told(name, option, default)]


def _parser(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from exc

    return parse


ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML file of settings (see `config schema`).",
        readable=False,  # `settings.load` has the better message
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# The store.

StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="URL", help="The store: a directory, or a URL such as s3://bucket/run.zarr."
    ),
]
StoreArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="STORE",
        help="The store: a directory or URL. Default: the `store` setting.",
        show_default=False,
    ),
]

# Which steps, tensors and rules.

RankOption: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--rank", "-r", min=0, help="Only this rank; may be repeated.", show_default=False),
]
RanksOption: TypeAlias = Annotated[list[Any] | None, told("rank", RANKS)]  # of int | str
MeshOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="AXIS=SIZE,...",
        help="How ranks are laid out, such as tp=2,dp=4; the last axis varies fastest. Default: as told.",
        show_default=False,
    ),
]
StepOption: TypeAlias = Annotated[list[int] | None, told("step", STEPS)]
PartialOption: TypeAlias = Annotated[
    bool, typer.Option("--include-partial", help="Include partial steps.", show_default=False)
]
RuleOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only this rule, or the rules that match a glob; may be repeated."),
]

# The settings that several commands take as options; `Settings` says their types and checks their ranges.

#: By name of the setting.
SETTINGS: Mapping[str, Option] = {
    "scheduler": Option(
        "Dask scheduler (tcp://host:8786) or scheduler file. Default: start own workers.", "ADDRESS"
    ),
    "workers": Option("How many worker processes to start, without --scheduler.", kind=int, within=(1, None)),
    "nice": Option("Priority: 19 gives way to everything else. Default: 0.", "N", kind=int, within=(0, 19)),
    "cpus": Option("Processors to run on, such as 0-3,8. Default: all.", "LIST"),
    "cpu_share": Option(
        "The share of these processors to use at most. Default: 1.", "SHARE", kind=float, within=(0, 1)
    ),
    "quiet_s": Option(
        "How long the last step must be unchanged to count as complete.",
        "SECONDS",
        flag="--quiet",
        kind=float,
        within=(0, None),
    ),
    "replace": Option(
        "Replace steps that came from another dump; `ingest` also restores steps that gc removed.", kind=bool
    ),
    "continues": Option(
        "Where this dump was before, or the job dumped before: its steps in the store are this dump's.",
        "DIRECTORY",
    ),
    "recheck": Option(
        "Read all committed dump files again, and take what was rewritten with its old size and time.",
        kind=bool,
    ),
    "rank_map": Option(
        "The rank of each device id, for dumps whose paths name only devices.", "DEVICE=RANK,..."
    ),
    "layout": Option(
        "How paths tell rank, step and name, for a tree that no layout covers; several: 'A; B'. "
        "`dump-ingest doctor` proposes one.",
        "PATTERN",
    ),
    "keep_device_layout": Option("Store tensors in the accelerator's memory layout.", kind=bool),
    "pool": Option(
        "Store tensors once that several ranks of a step share.", flag="--pool/--no-pool", kind=bool
    ),
    "after_commit": Option(
        "What to do with committed dump files. They are read back and compared before they are deleted.",
        "keep|delete",
    ),
    "keep_last": Option(
        "With --after-commit delete: keep the newest N steps of each rank. Default: 1.",
        "N",
        kind=int,
        within=(1, None),
    ),
    "keep_anomalous": Option(
        "With --after-commit delete: keep steps with NaN, Inf, overflows or findings.", kind=bool
    ),
    "black_box": Option(
        "Keep tensors of the newest N steps and of N around each incident; of others, statistics.",
        "N",
        kind=int,
        within=(1, None),
    ),
    "expected_ranks": Option("How many ranks the run is to have; 0: any number.", "N", kind=int),
}
LayoutOption: TypeAlias = Annotated[str | None, told("layout", SETTINGS["layout"])]
SchedulerOption: TypeAlias = Annotated[str | None, told("scheduler", SETTINGS["scheduler"])]
WatchersOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT,...",
        help="Where watchers serve their metrics: to show lag, backlog, disk, and what steps wait for.",
        show_default=False,
    ),
]
#: Who may ask a server; `ingest.page.server` checks it.
TokenFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Ask for the token in this file.", show_default=False),
]
TrustHeaderOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Let in whom a proxy names in this header, such as X-Forwarded-User.",
        show_default=False,
    ),
]
AllowAnyoneOption: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-anyone", help="Let in everybody who reaches the address.", show_default=False),
]

#: What the options that choose tensors choose: `tensor_filter.FilterFields` of the reader, whose import takes
#: numpy.
Conditions: TypeAlias = dict[str, Any]
#: Settings by name, as `load_settings` takes them.
Flags: TypeAlias = dict[str, Any]


def takes_tensor_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options that choose tensors in the place of its parameter `chosen`."""
    return _with_options(command, "chosen", CONDITIONS, conditions_of)


def takes_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a command take some of `SETTINGS` in the place of its parameter `flags`; None if not given."""
    options = {name: SETTINGS[name] for name in names}
    return lambda command: _with_options(command, "flags", options, dict)


def _with_options(
    command: Callable[..., None],
    replaced: str,
    options: Mapping[str, Option],
    read: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[..., None]:
    parameters = list(signature(command, eval_str=True).parameters.values())
    place = [parameter.name for parameter in parameters].index(replaced)
    added = [
        Argument(name, Argument.KEYWORD_ONLY, default=None, annotation=typer_type(name, option, None))
        for name, option in options.items()
    ]
    after = [parameter.replace(kind=Argument.KEYWORD_ONLY) for parameter in parameters[place + 1 :]]

    @functools.wraps(command)
    def with_options(*args: Any, **given: Any) -> None:
        taken = read({name: given.pop(name, None) for name in options})
        command(*args, **{replaced: taken}, **given)

    changed = signature(command).replace(parameters=[*parameters[:place], *added, *after])
    with_options.__signature__ = changed  # type: ignore[attr-defined]  # typer reads it
    return with_options


#: A whole number as text. Steps have at most 18 digits, here as in paths.
WHOLE = re.compile(r"[0-9]{1,18}")


def take_plain_values(parameter: Any) -> None:
    """Have a parameter of typer take plain values as they are, and leave all others to typer.

    Typer makes a model of pydantic for each value. With the import of pydantic, that takes 0.07 s, which is a
    quarter of what a small question may take.
    """
    if not isinstance(
        parameter.process_value, _PlainOr
    ):  # typer asks for the same parameters again and again
        parameter.process_value = _PlainOr(parameter, parameter.process_value)


@dataclass(frozen=True, slots=True)
class _PlainOr:
    parameter: Any
    process: Callable[[Any, Any], Any]

    def __call__(self, context: Any, value: Any) -> Any:
        _refuse_empty(self.parameter, context, value)
        is_plain, taken = _taken(self.parameter, value)
        if not is_plain:
            return self.process(context, value)
        callback = self.parameter.callback
        return taken if callback is None else callback(context, self.parameter, taken)


def _refuse_empty(parameter: Any, context: Any, value: Any) -> None:
    """Refuse an empty path or argument, as of `"$DUMP"` if the shell has no such variable.

    An empty path would be the working directory, which `export` fills and `ingest` may delete from.

    Raises:
        BadParameter: the value is empty.
    """
    descriptor = getattr(parameter, "type_descriptor", None)
    annotation = None if descriptor is None else descriptor.annotation
    is_path = Path in (annotation, *get_args(annotation))
    given = value if isinstance(value, (list, tuple)) else [value]
    if "" in given and (is_path or parameter.param_type_name == "argument"):
        raise typer.BadParameter(
            "it is empty. Is a variable of the shell not set?", ctx=context, param=parameter
        )


def _taken(parameter: Any, value: Any) -> tuple[bool, Any]:
    # Versions of typer without descriptors convert values by themselves.
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is None:
        return False, None
    is_several = parameter.multiple or parameter.nargs == -1
    if value is None or (is_several and value in ((), [])):
        return not parameter.required, () if is_several else None
    info, annotation = descriptor.parameter_info, descriptor.annotation
    is_list = get_origin(annotation) is list
    kind = get_args(annotation)[0] if is_list else annotation
    if info.parser is not None or kind not in _PLAIN or is_list != is_several:
        return False, None
    taken = [_as_kind(info, kind, each) for each in (value if is_list else [value])]
    return None not in taken, taken if is_list else taken[0]


def _as_kind(info: Any, kind: type, value: Any) -> Any:
    """Return a value as text, or as a number in its range; None if it is not obviously one."""
    if kind is int and isinstance(value, str) and WHOLE.fullmatch(value):
        value = int(value)
    if type(value) is not kind:
        return None
    if kind is str:
        return value
    is_within = (info.min is None or value >= info.min) and (info.max is None or value <= info.max)
    return value if is_within else None


def load_settings(config: Path | None, **flags: Any) -> LoadedSettings:
    """Return the settings in effect: flags (None: not given), environment, file and defaults.

    Raises:
        UsageError: the file cannot be read, or a setting is wrong.
    """
    from ingest.settings import load  # deferred: pydantic takes 0.1 s to import, and --help needs none of it

    return load(config, **flags)


def load_settings_with_store(config: Path | None, **flags: Any) -> LoadedSettings:
    """Return the settings in effect for a command that writes; warn of variables that set nothing.

    Raises:
        UsageError: a setting is wrong, or none names a store.
    """
    loaded = load_settings(config, **flags)
    warn_of_unknown_variables(loaded)
    if loaded.settings.store is None:
        raise UsageError(
            "no store is named",
            hint="Name it with --store, DUMP_INGEST_STORE, or `store` in the settings file.",
        )
    return loaded


def warn_of_unknown_variables(loaded: LoadedSettings) -> None:
    """Print a warning for each variable with our prefix that sets nothing."""
    from ingest.settings import meant_setting  # deferred: see `load_settings`

    for name in loaded.unknown_variables:
        meant = meant_setting(name.removeprefix(ENV_PREFIX).lower()) or "; see `dump-ingest config schema`"
        say(f"{name} is not a setting{meant}", label="warning")


def open_store(store: str | None, config: Path | None, *, mesh: str | None = None) -> ingest.DumpStore:
    """Open the store that the command line names, or else the settings.

    Raises:
        UsageError: neither names a store, or the place holds none.
        StoreError: the store cannot be reached.
    """
    opened = _opened(store, config, mesh)
    if opened.mesh is not None and opened.mesh.size > (ranks := len(opened.listed_ranks)):
        # Only some ranks were dumped; or a size is wrong, and with it the place of every rank.
        say(f"the mesh {opened.mesh} has {opened.mesh.size} ranks, and the store has {ranks}", label="note")
    return opened


def _opened(store: str | None, config: Path | None, mesh: str | None) -> ingest.DumpStore:
    if store and _has_defaults_alone(config):
        return ingest.open_store(store, mesh=mesh or "")
    settings, url = settings_and_store(store, config, mesh=mesh)
    return ingest.open_store(url, mesh=settings.mesh, **settings.store_arguments)


def settings_and_store(store: str | None, config: Path | None, **flags: Any) -> tuple[Settings, str]:
    """Return the settings in effect for a command that reads, and the URL of the store that is named.

    Raises:
        UsageError: a setting is wrong, or none names a store.
    """
    settings = load_settings(config, store=store, **flags).settings
    if settings.store is None:
        raise UsageError(
            "no store is named",
            hint="Name it as STORE, with DUMP_INGEST_STORE, or as `store` in the settings file.",
        )
    return settings, settings.store


def page_url(config: Path | None) -> str | None:
    """Return by what URL people reach the page; None if the settings do not say.

    Raises:
        UsageError: the file cannot be read, or a setting is wrong.
    """
    return None if _has_defaults_alone(config) else load_settings(config).settings.page_url


def _has_defaults_alone(config: Path | None) -> bool:
    """Return whether neither a file nor a variable sets anything: then nobody waits 0.1 s for pydantic."""
    return config is None and not any(name.upper().startswith(ENV_PREFIX) for name in os.environ)


def store_and(
    store: str | None, argument: str | None, config: Path | None, *, placeholder: str
) -> tuple[str | None, str]:
    """Tell STORE and the argument behind it apart: STORE may be left out if a setting names it.

    Args:
        store: the first argument.
        argument: the second one.
        config: the file of settings.
        placeholder: what the help calls the second argument.

    Returns:
        The store, or None for that of the settings; and the argument.

    Raises:
        UsageError: the argument is missing.
    """
    store, argument = store_and_maybe(store, argument, config)
    if argument is None:
        raise UsageError(
            f"{placeholder} is missing",
            hint=f"Arguments: STORE {placeholder}. You may omit STORE if DUMP_INGEST_STORE names it.",
        )
    return store, argument


def store_and_maybe(
    store: str | None, argument: str | None, config: Path | None
) -> tuple[str | None, str | None]:
    """Tell STORE and an argument behind it apart if either may be left out.

    A single argument is the store, unless a setting names that: then it is the argument.
    """
    if argument is not None or store is None or _has_defaults_alone(config):
        return store, argument
    if load_settings(config).settings.store is None:
        return store, argument
    return None, store


def size_of(flag: str, text: str) -> int:
    """Return the number of bytes that an option names.

    Raises:
        UsageError: it names none.
    """
    try:
        return parse_size(text)
    except ValueError as exc:
        raise UsageError(f"{flag}: {exc}", hint="Write a number and a unit: 500GiB, 10TB.") from None


def refuse_idle_flags(settings: Settings, **flags: object) -> None:
    """Refuse flags that do nothing because dumps are kept: the caller expects an effect.

    Raises:
        UsageError: a flag about deletion is given, and `after_commit` is not `delete`.
    """
    given = [name for name in ("keep_last", "keep_anomalous", "dry_run") if flags.get(name)]
    if given and settings.after_commit != "delete":
        raise UsageError(f"--{given[0].replace('_', '-')} does nothing without --after-commit delete")
