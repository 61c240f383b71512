"""The table of commands: what it lists is what the modules say, and listing imports none of them."""

import json
import os
import re
import signal
import subprocess
import sys
from inspect import cleandoc
from pathlib import Path
from typing import Any

import pytest

from ingest.cli.app import COMMANDS, declared_command
from ingest.cli.question import help_of
from ingest.questions import QUESTIONS
from ingest.questions.question import question_named
from tests.cli import PROGRAM, Answer

NAMES = [listed.name for listed in COMMANDS]
#: What takes long to import. What `--help` of one command imports besides is at most typer and rich.
HEAVY = (
    "numpy",
    "pandas",
    "numba",
    "zarr",
    "dask",
    "distributed",
    "structlog",
    "fsspec",
)


def help_text(name: str) -> str:
    """Return the help of a command, as its docstring or that of its question has it."""
    if name in QUESTIONS:
        return help_of(question_named(name))
    declared = declared_command(name)
    return cleandoc(declared.info.help if hasattr(declared, "info") else declared.__doc__)


@pytest.mark.parametrize("listed", COMMANDS, ids=NAMES)
def test_a_summary_is_the_first_line_of_the_docstring(listed: Any) -> None:
    """It stands in the table, so that `--help` does not have to import the command."""
    assert listed.summary == help_text(listed.name).splitlines()[0]


@pytest.mark.parametrize("words", [[], *([name] for name in NAMES), ["rules", "test"], ["config", "show"]])
def test_help_has_no_types_of_python(words: list[str], answer: Answer) -> None:
    shown = answer(*words, "--help").stdout
    assert not re.search(r"<(bool|int|float|list)", shown), shown


def test_an_unknown_command_is_refused_and_a_similar_one_suggested(answer: Answer) -> None:
    refused = answer("orgin", code=2).stderr
    assert refused.startswith("error: no such command 'orgin'\n  Did you mean 'origin'?")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ingest"], "missing argument 'DUMP'"),
        (["compare", "a.zarr"], "missing argument 'B'"),
        (
            ["find", "--step", "8-4"],
            "invalid value for '--step' / '-n': it must be a valid integer, got '8-4'\n",
        ),
        (
            ["find", "run.zarr", "Log*"],
            "got unexpected extra argument(s) (Log*)\n  --name PATTERN chooses tensors",
        ),
        (
            ["find", "--step", "9" * 5000],
            "invalid value for '--step' / '-n': ",
        ),
        (["find", "--tensor", "x"], "no such option: --tensor"),
        (["rules", "tset"], "no such command 'tset'"),
        (["ingest", "dump", "run.zarr"], "got unexpected extra argument"),
        (["gc", "run.zarr", "--keep-last", "0"], "invalid value for '--keep-last': it must be greater than"),
    ],
)
def test_words_that_are_not_understood_are_told_in_two_lines(
    words: list[str], message: str, answer: Answer
) -> None:
    refused = answer(*words, code=2)
    assert refused.stdout == ""
    _, second = refused.stderr.splitlines()
    assert refused.stderr.startswith(f"error: {message}")
    assert f"`dump-ingest {words[0]} --help` lists arguments and options." in second


def test_a_current_directory_that_was_deleted_is_told(
    nan_store: Path, tmp_path: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    (tmp_path / "run").rmdir()
    told = [
        answer("ls", "run.zarr", code=2).stderr,
        answer("ingest", "dump", "--store", nan_store, code=2).stderr,
        answer("export", nan_store, "out", "--rank", 0, "--step", 1, code=2).stderr,
        answer("doctor", "dump", code=1).stdout,
    ]
    assert all("the current directory was deleted" in text for text in told)


_PRESSED_EARLY = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Press:
    def find_spec(self, name, *_):
        if name == "ingest.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
from ingest.cli import main
main()
"""


def test_ctrl_c_before_the_command_is_loaded_ends_it_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", _PRESSED_EARLY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


_PRESSED_IN_AN_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Press:
    def find_spec(self, name, *_):
        if name == "ingest.cli.ls":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                raise ImportError("numpy._core.umath failed to import")
sys.meta_path.insert(0, Press())
sys.argv = ["dump-ingest", "ls", "run.zarr"]
from ingest.cli import main
main()
"""


def test_ctrl_c_that_breaks_an_import_ends_the_command_as_ever() -> None:
    """A compiled module replaces whatever ends its import by an ImportError."""
    done = subprocess.run(
        [sys.executable, "-c", _PRESSED_IN_AN_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopping; Ctrl-C again to give up\n")


def test_help_of_a_command_imports_nothing_that_takes_long() -> None:
    """Checked in one process for all of them: each imports only itself. Questions import their answers."""
    names = [name for name in NAMES if name not in QUESTIONS]
    code = (
        "import contextlib, io, json, sys\n"
        "from ingest.cli import main\n"
        "imported = {}\n"
        f"for name in {names!r}:\n"
        "    sys.argv = ['dump-ingest', name, '--help']\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        main()\n"
        f"    imported[name] = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]\n"
        "print(json.dumps(imported))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name: heavy for name, heavy in json.loads(done.stdout).items() if heavy} == {}


@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        ("dump-ingest ", NAMES),
        ("dump-ingest or", ["origin"]),
        ("dump-ingest origin --ca", ["--cause"]),
        ("dump-ingest rules sc", ["schema"]),
        ("dump-ingest config show --js", ["--json"]),
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, completions: list[str]) -> None:
    env = {
        **os.environ,
        "_DUMP_INGEST_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
    }
    done = subprocess.run([PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == completions
