"""Options and arguments that several commands share, and how their values are taken.

Plain values are taken without pydantic, and empty paths are refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter as Argument
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import typer

from ingest.questions.question import CONDITIONS, RANKS, STEPS, Option, conditions_of

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
#: Who may ask a server; `ingest.page.access` checks it.
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
    """Takes a value as it is, or else as typer does."""

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
    """Return whether a value is plain, and what it stands for."""
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
