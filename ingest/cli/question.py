"""A command for each question of `ingest.questions.QUESTIONS`: its options, and how its answer is printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import Parameter as Argument
from inspect import Signature
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from ingest.cli.exits import EXIT_DIFFERENT, exit_if_damaged
from ingest.cli.opening import open_store, store_and_maybe
from ingest.cli.options import ConfigOption, JsonOption, StoreArgument, typer_type
from ingest.cli.printing import (
    limited,
    print_drawing,
    print_json,
    print_table,
    print_wrapped,
    say,
    say_left_out,
    say_rest,
    write_and_say,
)
from ingest.questions.question import CONDITIONS, LEFT_OUT, Drawing, Mode, Note, Question, Shown, Table
from workers.errors import UsageError


class Plotted(Shown, Protocol):
    """An answer that can also be a picture."""

    @property
    def title(self) -> str:
        """What it is about."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the marks of the picture and its table mean."""

    def table(self) -> Table[Any]:
        """Return what stands below the picture."""

    def csv(self) -> str:
        """Return all values."""

    def figure(self, limit: int) -> Any:
        """Draw the first rows; all with limit 0."""


#: What the command of a question that draws writes, by the option that names the file.
_FILES = {
    "png": "Write a plot to this PNG file.",
    "html": "Write a page with a plot and a table.",
    "csv": "Write all values to this CSV file.",
}
_PAGE = {"html": "Write a page with what is printed."}


def command_of(question: Question) -> Callable[..., None]:
    """Return the command of a question, with the signature that typer reads."""
    parameters = question.parameters
    has_store = "store" in Signature.from_callable(question.ask).parameters
    takes = [each.name for each in parameters]
    argument = next((each for each in parameters if has_store and each.option.is_argument), None)
    draws, modes = hasattr(question.shown, "figure"), question.modes
    rows = f"{'Draw' if draws else 'Print'} at most this many {question.noun}s; 0: all."
    before: dict[str, tuple[Any, Any]] = {"store": (StoreArgument, None)} if has_store else {}
    own = {each.name: (typer_type(each.name, each.option, each.default), each.default) for each in parameters}
    written = _FILES if draws else _PAGE if question.has_page else {}
    files = {
        name: (Annotated[Path | None, typer.Option(metavar="FILE", help=words, show_default=False)], None)
        for name, words in written.items()
    }
    after: dict[str, tuple[Any, Any]] = {
        "limit": (Annotated[int, typer.Option(min=0, help=rows)], question.limit),
        **files,
        **{mode.name: (typer_type(mode.name, mode.option, mode.default), mode.default) for mode in modes},
        **({"config": (ConfigOption, None)} if has_store else {}),
        "json": (JsonOption, False),
    }

    def command(**given: Any) -> None:
        store, config = given.pop("store", None), given.pop("config", None)
        limit, as_json = given.pop("limit"), given.pop("json")
        paths = {name: given.pop(name) for name in files}
        asked = {name: value for name in takes if (value := given[name]) is not None}
        if argument is not None and not any(name in CONDITIONS for name in asked):
            store, pattern = store_and_maybe(store, asked.pop(argument.name, None), config)
            asked |= {} if pattern is None else {argument.name: pattern}
        mode = next((mode for mode in modes if given[mode.name]), None)
        if mode is not None:
            _refuse_beside(mode, {**asked, **paths, **{other.name: given[other.name] for other in modes}})
        else:
            question.check(asked)
        opened = open_store(store, config) if has_store else None
        if mode is None:
            answer = question.answered(opened, asked)
        else:
            taken = {name: value for name, value in asked.items() if name in mode.takes}
            answer = mode.ask(opened, given[mode.name], **taken)
        print_answer(answer, limit, as_json=as_json)
        _write_files(answer, limit, paths)
        end_as(answer)

    command.__signature__ = Signature(  # type: ignore[attr-defined]  # typer reads it
        [
            Argument(name, Argument.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in {**before, **own, **after}.items()
        ]
    )
    command.__doc__ = help_of(question)
    return command


def _refuse_beside(mode: Mode, given: Mapping[str, Any]) -> None:
    """Refuse what a mode cannot do.

    Raises:
        UsageError: something is given that it does not take.
    """
    others = [name for name, value in given.items() if value and name not in {*mode.takes, mode.name}]
    if others:
        named = ", ".join("conditions" if name in CONDITIONS else f"--{_dashed(name)}" for name in others)
        flag = f"--{_dashed(mode.name)}"
        raise UsageError(f"{flag} does not go with {named}", hint=f"Leave out {flag}.")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def help_of(question: Question) -> str:
    """Return the help of a command, with its examples; what its docstring has in backquotes is bold."""
    words = re.sub("`([^`]+)`", r"[bold]\1[/]", question.help.replace("[", r"\["))
    return "\n\n".join([words, "\n".join(f"[bold]dump-ingest {each}[/]" for each in question.examples)])


def print_answer(answer: Shown, limit: int = 0, *, as_json: bool) -> None:
    """Print an answer as JSON, or as people read it; say on stderr what else there is to it."""
    if as_json:
        print_json(answer.to_json())
    for part in answer.report():
        if isinstance(part, Note):
            if not as_json or part.label == LEFT_OUT:
                say(part.text, label=part.label)
        elif as_json:
            continue
        elif isinstance(part, Table):
            print_table(list(part.columns), part.cells(limit), right=part.right, spare=part.spare)
            say_rest(len(part.rows), len(limited(part.rows, limit)), f"{part.noun}s")
        elif isinstance(part, Drawing):
            print_drawing(part, limit)
        else:
            print_wrapped(part)


def _write_files(answer: Any, limit: int, paths: Mapping[str, Path | None]) -> None:
    """Write the files that options name."""
    if csv := paths.get("csv"):
        write_and_say(csv, answer.csv())
    png, html = paths.get("png"), paths.get("html")
    if png or html:
        from ingest.questions import plot  # deferred: few commands write a plot

        figure = answer.figure(limit) if hasattr(answer, "figure") else None
        if png:
            write_and_say(png, plot.png(figure))
        if html:
            parts = answer.report() if figure is None else [*answer.remarks, answer.table()]
            write_and_say(html, plot.page(answer.title, parts, limit, figure))


def end_as(answer: Shown) -> None:
    """Say which steps an answer does not cover; end with 3 if one of them is damaged, with 5 in an alarm."""
    say_left_out(answer.left_out)
    exit_if_damaged(answer.damaged)
    if answer.is_alarm:
        raise typer.Exit(EXIT_DIFFERENT)
