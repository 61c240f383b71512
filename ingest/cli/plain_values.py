"""Values of options and arguments: plain ones are taken without pydantic, empty paths are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

_PLAIN = (str, int, float)
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
    taken = [_as_kind(kind, each) for each in (value if is_list else [value])]
    return _are_within(info, taken), taken if is_list else taken[0]


def _as_kind(kind: type, value: Any) -> Any:
    """Return a value as text or number; None if it is not obviously one."""
    if type(value) is kind:
        return value
    is_whole = kind is int and isinstance(value, str) and WHOLE.fullmatch(value) is not None
    return int(value) if is_whole else None


def _are_within(info: Any, values: Sequence[Any]) -> bool:
    """Return whether all values were taken, and are in the range of their parameter."""
    return all(value is not None and _is_within(info, value) for value in values)


def _is_within(info: Any, value: Any) -> bool:
    """Return whether a number is in the range of its parameter; a text always is."""
    if isinstance(value, str):
        return True
    return (info.min is None or value >= info.min) and (info.max is None or value <= info.max)
