"""The `dump-ingest` command: a table of its sub-commands, each of which is imported when it runs.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 verification found damage, 4 partly done,
5 differences found, 124 `wait` has waited long enough, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import ingest
from ingest.cli.exits import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Interrupted,
    OutputError,
    discard_output,
    end_now,
    exit_code_of,
    prepare_output,
    raise_on_interrupt,
    report_error,
)
from ingest.cli.options import take_plain_values
from ingest.cli.question import command_of
from ingest.questions import QUESTIONS
from ingest.questions.question import question_named
from workers.errors import DumpIngestError, UsageError
from workers.host.credentials import masked_values

_FILL, _ASK, _MAINTAIN, _SET_UP = "Fill a store", "Ask a store", "Maintain a store", "Set up"


#: By command, in the order of `dump-ingest --help`: its module, its panel, the first line of its docstring.
#: Questions have modules of their own.
COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "ingest": ("fill", _FILL, "Ingest a dump into a store once, and print what was in it."),
    "watch": ("fill", _FILL, "Ingest each step of a running job as soon as it is complete."),
    **{name: ("", _ASK, question.summary) for name, question in QUESTIONS.items()},
    "compare": ("ask", _ASK, "Compare two steps, ranks, runs or dumps, tensor by tensor."),
    "show": (
        "show",
        _ASK,
        "Show one tensor: its source line, who wrote and read it, what is in it, its values.",
    ),
    "next": (
        "ask",
        _ASK,
        "Write the configuration of the next, small dump: of the operators under suspicion alone.",
    ),
    "wait": (
        "ask",
        _ASK,
        "Wait until an incident is found, a step is committed, or nothing is committed any more.",
    ),
    "serve": ("ask", _ASK, "Serve a page to look at a store, or at all stores below a URL, until Ctrl-C."),
    "mcp": (
        "ask",
        _ASK,
        "Let coding agents ask a store, or all stores below a URL: a server of the Model Context Protocol.",
    ),
    "report": ("ask", _ASK, "Write the incidents of a run as one file to attach to a ticket."),
    "export": (
        "maintain",
        _MAINTAIN,
        "Write the original files back, byte for byte, under the paths they had in the dump.",
    ),
    "verify": (
        "maintain",
        _MAINTAIN,
        "Read everything back, recompute every digest and statistic, and name what is damaged.",
    ),
    "repair": (
        "maintain",
        _MAINTAIN,
        "Make damaged or missing objects again: from the dump, or from copies in the store.",
    ),
    "consolidate": (
        "maintain",
        _MAINTAIN,
        "Update the consolidated view: one array per statistic over step, rank and tensor.",
    ),
    "sketch": (
        "maintain",
        _MAINTAIN,
        "Add histograms and marginals to steps that were committed without, from the tensors in the store.",
    ),
    "gc": (
        "maintain",
        _MAINTAIN,
        "Remove steps, or only their tensors, by age, number, size and distance to anomalies.",
    ),
    "doctor": (
        "set_up",
        _SET_UP,
        "Check settings, dump, store and scheduler, and say how to fix what is wrong.",
    ),
    "check": (
        "set_up",
        _SET_UP,
        "Check the configuration of a dump: what it will dump, what is ignored, what contradicts itself.",
    ),
    "skill": (
        "set_up",
        _SET_UP,
        "Print or install the skill with which coding agents find out what went wrong.",
    ),
    "rules": ("set_up", _SET_UP, "List, check and test anomaly rules."),
    "config": ("set_up", _SET_UP, "Show, check and explain the settings."),
}


class HelpfulCommand(TyperCommand):
    """A command whose help gives flags no type, and numbers a short one, instead of those of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with the placeholders that the help shows."""
        return _with_placeholders(super().get_params(ctx))


class HelpfulGroup(TyperGroup):
    """The same for commands that have sub-commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with the placeholders that the help shows."""
        return _with_placeholders(super().get_params(ctx))


def _with_placeholders(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        take_plain_values(parameter)
        if parameter.param_type_name == "option" and parameter.metavar is None:
            parameter.metavar = "" if parameter.is_flag else "N"  # texts have a placeholder of their own
        elif parameter.param_type_name == "argument" and parameter.nargs == -1:
            parameter.display_type_rich = lambda ctx: "<str>"  # noqa: ARG005  (typer gives the context)
    return parameters


class ListedCommand(TyperCommand):
    """Stands for a command in listings, and imports its module when the command is used.

    Importing all modules takes longer than `--help` and shell completion may take.
    """

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context in which the command itself parses its arguments and runs."""
        return load_command(str(self.name)).make_context(info_name, args, parent=parent, **extra)


class CommandTable(HelpfulGroup):
    """The commands of `COMMANDS`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: ListedCommand(name, help=summary, rich_help_panel=panel)
            for name, (_, panel, summary) in COMMANDS.items()
        }


def load_command(name: str) -> Any:
    """Import a command of the table and return it as typer runs it."""
    if name in QUESTIONS:
        return _single(name, command_of(question_named(name)))
    declared = declared_command(name)
    if isinstance(declared, typer.Typer):  # it has sub-commands of its own
        declared.info.cls = HelpfulGroup
        for registered in declared.registered_commands:
            registered.cls = HelpfulCommand
            registered.help = registered.help or _flowing(registered.callback.__doc__ or "")
        return typer.main.get_command(declared)
    return _single(name, declared)


def declared_command(name: str) -> Any:
    """Import a command that is not a question: its function, or an app if it has sub-commands."""
    module = import_module(f"ingest.cli.{COMMANDS[name][0]}")
    return getattr(module, f"{name}_app", None) or getattr(module, f"{name}_command")


def _single(name: str, command: Callable[..., None]) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(name, cls=HelpfulCommand, help=_flowing(command.__doc__ or ""))(command)
    return typer.main.get_command(single)


def _flowing(docstring: str) -> str:
    """Return the text of a help, in which a paragraph is one line for a terminal to break, save examples."""
    paragraphs = cleandoc(docstring).split("\n\n")
    return "\n\n".join(
        text if text.startswith("[bold]dump-ingest") else " ".join(text.split("\n")) for text in paragraphs
    )


#: What typer raises if it does not understand the words of the command line.
_PARSING_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="dump-ingest",
    cls=CommandTable,
    help="Tensor dumps of training jobs in one Zarr store: which rank, step and operator went wrong first?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 damage found, 4 partly done, 5 differences found, "
    "124 waited long enough, 130 interrupted.",
)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(f"dump-ingest {ingest.__version__}")
        raise typer.Exit


#: Commands whose only argument is a dump.
_TAKES_DUMP = frozenset({"ingest", "watch"})


def _explained(error: Any) -> UsageError:
    message, _, advice = error.format_message().replace(": Input should", ": it must").partition(". ")
    message = message.partition(", unable to parse")[0].rstrip(".")
    mistakes: list[Any] = getattr(error.__cause__, "errors", list)()
    if mistakes:  # of pydantic, which refused a value
        message += f", got {masked_values(mistakes[0]['input'])!r:.80}"
    command = getattr(error.ctx, "command_path", "dump-ingest")
    name = command.rpartition(" ")[2]
    if name in _TAKES_DUMP and "unexpected extra argument" in message:
        advice = f"It takes one dump; the store is named with --store: {command} DUMP --store run.zarr."
    flags = [] if error.ctx is None else [flag for of in error.ctx.command.params for flag in of.opts]
    if "unexpected extra argument" in message and "--name" in flags:
        advice = "--name PATTERN chooses tensors by their names."
    hint = f"`{command} --help` lists arguments and options."
    return UsageError(message[:1].lower() + message[1:], hint=f"{advice} {hint}".lstrip())


def main() -> None:
    """Run the command line; end the process with one of the documented exit codes."""
    prepare_output()
    interrupted = raise_on_interrupt()
    # Child processes import nothing from the working directory, which may be one that others can write to.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # Of numpy, which starts threads for its linear algebra when it is imported, and does none here. A process
    # with one thread can have its workers as copies of itself: see `workers.processes.worker`.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic would look through the metadata of all installed packages for plugins, in 0.03 s.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    try:
        code = app(standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(code)
    except _PARSING_ERROR as exc:
        if exc.format_message():  # empty if a group had no arguments and has printed its help
            report_error(_explained(exc))
        sys.exit(EXIT_USAGE)
    except DumpIngestError as exc:
        report_error(exc)
        sys.exit(exit_code_of(exc))
    except OutputError as exc:
        discard_output()
        if exc.errno != errno.EPIPE:  # else the reader, such as `head`, has read enough
            report_error(exc.explained())
        sys.exit(EXIT_FAILED)
    except Interrupted:
        end_now(EXIT_INTERRUPTED)
    except Exception:
        if not interrupted.is_set():
            raise
        end_now(EXIT_INTERRUPTED)  # a compiled module whose import Ctrl-C has ended raises an ImportError
