"""A command for each question of `ingest.questions.QUESTIONS`: its options, and how its answer is printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import Parameter as Argument
from inspect import Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from ingest.cli.exits import EXIT_DIFFERENT, EXIT_FAILED, end_if_damaged
from ingest.cli.options import (
    ConfigOption,
    JsonOption,
    MeshOption,
    StoreArgument,
    open_store,
    page_url,
    store_and_maybe,
    typer_type,
)
from ingest.cli.printing import (
    limit_of,
    print_drawing,
    print_json,
    print_table,
    print_wrapped,
    say,
    say_rest,
    write_and_say,
)
from ingest.questions.question import (
    BESIDE_JSON,
    CONDITIONS,
    ERROR,
    Drawing,
    Mode,
    Note,
    Question,
    RowList,
    Shown,
    Table,
    Texts,
)
from ingest.reporting.page_link import incidents_link
from workers.errors import UsageError

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
    limit_type, default_limit = _limit_of(question, draws=draws)
    before: dict[str, tuple[Any, Any]] = {"store": (StoreArgument, None)} if has_store else {}
    own = {each.name: (typer_type(each.name, each.option, each.default), each.default) for each in parameters}
    written = _FILES if draws else _PAGE if question.has_page else {}
    files = {
        name: (Annotated[Path | None, typer.Option(metavar="FILE", help=words, show_default=False)], None)
        for name, words in written.items()
    }
    after: dict[str, tuple[Any, Any]] = {
        **({} if question.limit is None else {"limit": (limit_type, default_limit)}),
        **files,
        **{mode.name: (typer_type(mode.name, mode.option, mode.default), mode.default) for mode in modes},
        **({"mesh": (MeshOption, None)} if question.takes_mesh else {}),
        **({"config": (ConfigOption, None)} if has_store else {}),
        "json": (JsonOption, False),
    }

    def command(**given: Any) -> None:
        store, config = given.pop("store", None), given.pop("config", None)
        as_json = given.pop("json")
        limit = limit_of(given.pop("limit", 0), question.limit, as_json=as_json)
        paths, mesh = {name: given.pop(name) for name in files}, given.pop("mesh", None)
        asked = {name: value for name in takes if (value := given[name]) is not None}
        chosen = {mode.name: given[mode.name] for mode in modes if given[mode.name]}
        if argument is not None and not (question.takes_conditions and CONDITIONS.keys() & asked.keys()):
            store, pattern = store_and_maybe(store, asked.pop(argument.name, None), config)
            asked |= {} if pattern is None else {argument.name: pattern}
        mode = next((mode for mode in modes if mode.name in chosen), None)
        if mode is not None:
            _refuse_beside(mode, question, {**asked, **paths, **chosen})
        else:
            question.check(asked)
        opened = open_store(store, config, mesh=mesh) if has_store else None
        if mode is None:
            answer = question.answered(opened, asked)
        else:
            taken = {name: value for name, value in (asked | chosen).items() if name in mode.takes}
            answer = mode.ask(opened, chosen[mode.name], **taken)
        link = _link(answer, opened, config)
        is_void = print_answer(answer, limit, as_json=as_json, link=link)
        _write_files(answer, limit, paths)
        end_as(answer, is_void=is_void)

    command.__signature__ = Signature(  # type: ignore[attr-defined]  # typer reads it
        [
            Argument(name, Argument.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in {**before, **own, **after}.items()
        ]
    )
    command.__doc__ = help_of(question)
    return command


def _limit_of(question: Question, *, draws: bool) -> tuple[Any, int | None]:
    words = f"{'Draw' if draws else 'Print'} at most this many {question.noun}s; 0: all."
    if not question.is_listing:
        return Annotated[int, typer.Option(min=0, help=words)], question.limit
    words += f" Default: {question.limit} on a terminal, else all."
    return Annotated[int | None, typer.Option(metavar="N", min=0, help=words, show_default=False)], None


def _link(answer: Shown, store: Any, config: Path | None) -> str:
    place: tuple[int, int] | None = getattr(answer, "place", None)
    if place is None or store is None:
        return ""
    return incidents_link(page_url(config) or "", store.url, rank=place[0], step=place[1])


def _refuse_beside(mode: Mode, question: Question, given: Mapping[str, Any]) -> None:
    alike = CONDITIONS if question.takes_conditions else ()
    others = (name for name, value in given.items() if value and name not in {*mode.takes, mode.name})
    flags = {each.name: each.option.flag for each in question.parameters}
    named = dict.fromkeys(
        "conditions" if name in alike else flags.get(name) or f"--{_dashed(name)}" for name in others
    )
    if named:
        flag = f"--{_dashed(mode.name)}"
        raise UsageError(f"{flag} does not go with {', '.join(named)}", hint=f"Leave out {flag}.")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def help_of(question: Question) -> str:
    """Return the help of a command, with its examples; what its docstring has in backquotes is bold."""
    words = re.sub("`([^`]+)`", r"[bold]\1[/]", question.help.replace("[", r"\["))
    return "\n\n".join([words, "\n".join(map(_example, question.examples))])


def _example(line: str) -> str:
    words, space, comment = line.partition("   ")
    return f"[bold]dump-ingest {words}[/]{space}{comment}"


def print_answer(
    answer: Shown, limit: int = 0, *, as_json: bool, link: str = "", every: str = "--limit 0"
) -> bool:
    """Print an answer as JSON, or as people read it; say on stderr what else there is to it.

    Args:
        answer: the answer.
        limit: how many rows are printed; 0: all.
        as_json: whether to print JSON.
        link: where the page shows it, if it does.
        every: the option of the command that prints all rows.

    Returns:
        Whether it says why there is no answer.
    """
    parts = list(answer.report())
    if as_json:
        _print_json(answer, limit, link)
    for part in () if as_json else parts:
        if not isinstance(part, Note):
            _print_part(part, limit, every)
    if isinstance(answer, RowList):
        _say_headline(answer, limit, every, as_json=as_json)
    notes = [part for part in parts if isinstance(part, Note)]
    for note in notes:
        if not as_json or note.label in BESIDE_JSON:
            say(note.text, label=note.label, style="bold red" if note.label == ERROR else "yellow")
    if link and not as_json:
        say(f"page: {link}")
    return any(note.label == ERROR for note in notes)


def _print_json(answer: Shown, limit: int, link: str) -> None:
    told = answer.json_rows(limit) if isinstance(answer, RowList) else answer.to_json()
    print_json({**told, "page": link} if link and isinstance(told, Mapping) else told)


def _say_headline(listing: RowList, limit: int, every: str, *, as_json: bool) -> None:
    is_cut = 0 < limit < len(listing.table().rows)
    if listing.headline and (is_cut or not as_json):
        say(listing.headline + f", the first {limit} shown ({every}: all)" * is_cut)


def _print_part(part: str | Table[Any] | Texts | Drawing, limit: int, every: str) -> None:
    if isinstance(part, Table):
        print_table(list(part.columns), part.cells(limit), right=part.right, spare=part.spare)
        say_rest(len(part.rows), limit, part.noun, every)
    elif isinstance(part, Texts):
        for line in (line for text in part.texts[: limit or None] for line in text.split("\n")):
            print_wrapped(line)
        say_rest(len(part.texts), limit, part.noun, every)
    elif isinstance(part, Drawing):
        print_drawing(part, limit)
    else:
        for line in part.split("\n"):
            print_wrapped(line)


def _write_files(answer: Any, limit: int, paths: Mapping[str, Path | None]) -> None:
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


def end_as(answer: Shown, *, is_void: bool = False) -> None:
    """Say which steps an answer leaves out; end with 3 if one is damaged, 5 in an alarm, 1 if void."""
    end_if_damaged(answer.damaged, answer.left_out)
    if answer.is_alarm:
        raise typer.Exit(EXIT_DIFFERENT)
    if is_void:
        raise typer.Exit(EXIT_FAILED)
