"""The options that choose tensors. Every command that is about some tensors of a step takes all of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from workers.errors import UsageError

#: What the options choose, for `Catalog.tensors` and the questions: `tensor_filter.FilterFields` of the
#: reader, whose import takes numpy.
Conditions: TypeAlias = dict[str, Any]

#: The parameter of a command in whose place the options stand.
_PLACE = "chosen"


def _options(
    name: Annotated[
        str | None, typer.Option(metavar="GLOB", help="A glob over the name, such as '*Log*.output.*'.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(metavar="REGEX", help="A regular expression to search in the name.")
    ] = None,
    op_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="The operator type, such as MatMul.")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="The role: loss, gradient, weight, optimizer_state or activation."),
    ] = None,
    graph: Annotated[str | None, typer.Option(metavar="GRAPH", help="The graph.")] = None,
    io: Annotated[
        str | None, typer.Option(metavar="KIND", help="input or output; for CANN also buffer or space.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            "-w",
            metavar="CONDITION",
            help="A condition, such as \"nan_count > 0 and io == 'output'\".",
        ),
    ] = None,
) -> Conditions:
    """Return the options that the user gave.

    Raises:
        UsageError: a name and a regular expression are given.
    """
    from ingest.reader.bounded_regex import BoundedPattern  # deferred: regex takes 30 ms to import

    if name is not None and regex is not None:
        raise UsageError("--name and --regex exclude each other")
    conditions = {
        "name": name if regex is None else BoundedPattern(regex),
        "op_type": op_type,
        "role": role,
        "graph": graph,
        "io": io,
        "where": where,
    }
    return {key: value for key, value in conditions.items() if value is not None}


def choice_text(pattern: str | None, chosen: Conditions) -> str:
    """Return a pattern and conditions for the title of a picture."""
    conditions = (f"{name} {getattr(value, 'pattern', value)}" for name, value in chosen.items())
    return ", ".join([*([pattern] if pattern else []), *conditions]) or "all tensors"


_NAMES = tuple(inspect.signature(_options).parameters)


def takes_tensor_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options in the place of its parameter `chosen`, of `Conditions`."""
    signature = inspect.signature(command, eval_str=True)
    options = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(_options, eval_str=True).parameters.values()
    ]
    parameters = list(signature.parameters.values())
    place = [parameter.name for parameter in parameters].index(_PLACE)
    before = parameters[:place]
    after = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters[place + 1 :]]

    @functools.wraps(command)
    def with_options(*args: Any, **given: Any) -> None:
        chosen = _options(**{name: given.pop(name, None) for name in _NAMES})
        command(*args, chosen=chosen, **given)

    with_options.__signature__ = signature.replace(  # type: ignore[attr-defined]  # `inspect` reads it
        parameters=[*before, *options, *after]
    )
    return with_options
