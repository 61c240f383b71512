"""What all commands share: the table of them, options, output, and how they end."""

import fcntl
import json
import math
import os
import pty
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from typer.testing import CliRunner

from ingest.cli import printing
from ingest.cli.app import COMMANDS, HelpfulCommand, app, declared_command
from ingest.cli.exits import exit_code_of
from ingest.cli.options import load_settings_with_store
from ingest.cli.printing import (
    cell_width,
    cell_widths,
    check_writable,
    fitted,
    print_table,
    write_and_say,
    write_file,
)
from ingest.cli.question import help_of
from ingest.questions import QUESTIONS
from ingest.questions.question import question_named
from tests.cli import PROGRAM, Answer, environment, start, strict_json
from tests.hanging import HangingFiles
from tests.stores import MadeDump, ingest_directly, tensor_name
from workers.errors import DamagedStore, DumpIngestError, StoreUnavailable, UsageError
from workers.store.strict_json import dumps

# The table of commands: what it lists is what the modules say, and listing imports none of them.


NAMES = [*COMMANDS]
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


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_the_first_line_of_the_docstring(name: str) -> None:
    """It stands in the table, so that `--help` does not have to import the command."""
    assert COMMANDS[name][2] == help_text(name).splitlines()[0]


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


# Options that several commands share, and how their values are taken.


def parsed(words: list[str], cls: type) -> tuple[int, Any]:
    """Return the exit code, and what a command gets for these words or prints instead."""
    taken: dict[str, Any] = {}
    app = typer.Typer(add_completion=False)

    @app.command(cls=cls)
    def command(
        name: str | None = None,
        rank: Annotated[list[int] | None, typer.Option(min=0, max=9)] = None,
        share: float = 0.5,
        path: Path | None = None,
        *,
        flag: bool = False,
    ) -> None:
        taken.update(name=name, rank=rank, share=share, path=path, flag=flag)

    result = CliRunner().invoke(app, words)
    return result.exit_code, taken or result.output.replace(" ", "")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--name", "a b", "--rank", "3", "--rank", "9", "--flag"],
        ["--rank", "10"],
        ["--rank", "-1"],
        ["--rank", "three"],
        ["--rank", " 3"],
        ["--share", "0.25", "--path", "x"],
        ["--share", "half"],
        ["--name", ""],
    ],
)
def test_values_and_mistakes_are_those_of_typer(words: list[str]) -> None:
    assert parsed(words, HelpfulCommand) == parsed(words, typer.core.TyperCommand)


@pytest.mark.parametrize("words", [["ls", ""], ["export", "run.zarr", ""], ["ingest", "x", "--config", ""]])
def test_an_empty_path_is_not_the_working_directory(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "it is empty" in " ".join(result.output.replace("│", "").split())


def test_a_small_question_imports_neither_pydantic_nor_rich(nan_log: Path) -> None:
    code = (
        "import sys; from ingest.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'pydantic', 'rich', 'zarr', 'dask', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    )
    for words in (["ls"], ["origin"]):
        command = [sys.executable, "-c", code, *words, str(nan_log)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        assert answer.stderr.splitlines()[-1] == "[]", words


LOSS = "Neg.Default_net-LogLoss_Neg-op0.output.0"


def test_the_trend_of_the_loss_needs_no_name(nan_store: Path, answer: Answer) -> None:
    rows = json.loads(answer("trend", nan_store, "--role", "loss", "--stat", "mean", "--json").stdout)
    assert {row["name"] for row in rows} == {LOSS}
    (table,) = {
        answer("trend", nan_store, *words, "--role", "loss").stdout.partition("\n")[2]
        for words in (["*"], ["--name", "Neg*"], ["--regex", "^Neg"], [])
    }
    assert LOSS in table
    refused = answer("trend", nan_store, "*", "--name", "x", code=2)
    assert "exclude each other" in refused.stderr
    assert "'gradeint' is not a role" in answer("trend", nan_store, "--role", "gradeint", code=2).stderr


def test_roles_are_columns(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    condition = ("--where", "role == 'loss' and nan_count > 0")
    words = ("find", nan_store, *condition, "--columns", "rank,step,role", "--json")
    assert json.loads(answer(*words).stdout) == [
        {"rank": 1, "step": 2, "role": "loss"},
        {"rank": 1, "step": 3, "role": "loss"},
    ]
    exported = json.loads(
        answer(
            "export", nan_store, tmp_path / "out", "--role", "loss", "--rank", 1, "--step", 2, "--json"
        ).stdout
    )
    assert [Path(file["path"]).name.startswith("Neg.") for file in exported] == [True]
    heat = json.loads(answer("heatmap", nan_store, "--role", "loss", "--stat", "nan", "--json").stdout)
    assert {row["tensors"] for row in heat} == {1}


# The settings of a command, and the store that they name.


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUMP_INGEST_STORE", "DUMP_INGEST_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_a_command_that_writes_needs_a_store_and_warns_of_variables_that_set_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUMP_INGEST_QUITE_S", "3")
    with pytest.raises(UsageError, match="no store is named") as error:
        load_settings_with_store(None)
    assert "--store" in error.value.hint
    assert "warning: DUMP_INGEST_QUITE_S is not a setting (did you mean quiet_s?)" in capsys.readouterr().err
    assert load_settings_with_store(None, store="/a").settings.store == "/a"


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "{}"),
        ("compare", "{}@0,1", "{}@0,2"),
        ("compare", "{}@0", "{}@0", "--over-steps"),
        ("gc", "{}", "--keep-last", "1"),
        ("gc", "{}", "--recompress", "1d"),
        ("repair", "{}"),
        ("serve", "{}", "--listen", "127.0.0.1:0"),
    ],
)
def test_a_store_that_accepts_and_says_nothing_is_given_up(
    words: tuple[str, ...], tmp_path: Path, answer: Answer
) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("store_timeout_s: 0.05\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/run.zarr"
        asked = [word.format(url) for word in words]
        begun = time.monotonic()
        told = answer(*asked, "--config", config, code=1).stderr
    assert "no answer" in told
    assert time.monotonic() - begun < 20  # and not a minute


def test_every_command_with_an_argument_takes_the_store_of_the_settings(
    nan_store: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DUMP_INGEST_STORE", str(nan_store))
    log = "Log.Default_net-LogLoss_Log-op0.output.0"
    assert answer("show", log, "--rank", 1, "--step", 2, "--json").json["nan_count"] == 2
    assert len(answer("trend", "Log.*.output.0", "--json").json) == 6
    assert len(answer("heatmap", "Log.*.output.0", "--json").json) == 6
    answer("export", tmp_path / "out", "--rank", 1, "--step", 2, "--name", log)
    assert list((tmp_path / "out").rglob("*.npy"))


# Tables, JSON, files and messages, and what of them fits a terminal.


HOSTILE = "a\x1b[31m\n[bold]b\u202e"
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def same(value: Any, read: Any) -> bool:
    """Return whether a value was read back, with None for what is not finite."""
    if isinstance(value, dict):
        return value.keys() == read.keys() and all(same(value[name], read[name]) for name in value)
    if isinstance(value, list):
        return len(value) == len(read) and all(map(same, value, read))
    if isinstance(value, float) and not math.isfinite(value):
        return read is None
    return bool(value == read)


@given(VALUES)
def test_json_is_strict_at_any_depth(value: Any) -> None:
    assert same(value, strict_json(dumps(value)))


def test_cells_are_never_cut_and_names_cannot_talk_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("name", "count"), [("x" * 300, "1"), (HOSTILE, "10")], right=("count",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "count"]
    assert lines[1] == "x" * 300 + "      1"
    assert lines[2].split() == ["a\\x1b[31m\\n[bold]b\\u202e", "10"]


def test_table_fits_a_terminal_and_is_whole_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(f"{'n' * 100}{number}{'m' * 100}", "1.5", Text("▁█")) for number in range(3)]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(printing, "is_terminal", lambda: True)
    printing.print_table(("name", "first", "steps"), rows, right=("first",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert len(set(lines)) == 4
    monkeypatch.setattr(printing, "is_terminal", lambda: False)
    printing.print_table(("name", "first", "steps"), rows, right=("first",))
    assert rows[2][0] in capsys.readouterr().out


ESCAPED = [f"Conv2D.Default_net_conv{number}-Conv2d_Conv2D-op0.output.0" for number in range(3)]
ROWS = [("0", name, "float32", "-", f"{number}.5", "1e-30") for number, name in enumerate(ESCAPED)]
COLUMNS = ("rank", "name", "dtype", "note", "max", "std")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def test_what_all_rows_share_goes_first_then_spare_columns_then_the_middle_of_names() -> None:
    columns, _, same, left_out = fitted(COLUMNS, ROWS, right=("max", "std"), spare=("std", "max"), width=50)
    assert (columns, same, left_out) == (["name", "dtype", "max"], {"std": "1e-30", "rank": "0"}, [])
    columns, rows, _, left_out = fitted(
        ("step", *COLUMNS[1:]),
        [(str(number), *row[1:5], f"{number}e9") for number, row in enumerate(ROWS)],
        right=("step", "max", "std"),
        spare=("std", "max"),
        width=40,
    )
    assert (columns, left_out) == (["step", "name"], ["std", "max"])
    assert sum(cell_widths(columns, rows)) + 2 <= 40
    assert len({str(row[1]) for row in rows}) == 3


def test_cells_are_as_wide_as_a_terminal_shows_them() -> None:
    assert [cell_width(cell) for cell in ("abc", "步", Text("▁!!", "bold red"))] == [3, 2, 3]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("ls",), 0),
        (("ls", "--files"), 0),
        (("find", "--where", "nan_count > 0"), 0),
        (("anomalies",), 0),
        (("origin",), 0),
        (("divergence",), 0),
        (("trend", "Log.*"), 0),
        (("heatmap", "--stat", "nan"), 0),
        (("show", "Log.*.output.0", "--rank", "1", "--step", "2"), 0),
        (("compare", "@0,2", "@1,2"), 5),
        (("compare", "@0,1", "@0,1"), 0),
    ],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, tuple) else "",
)
def test_every_answer_fits_a_terminal(
    nan_store: Path,
    answer: Answer,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
) -> None:
    """Only a name that is wider than the terminal goes beyond its width. Colours have codes."""
    command, *rest = words
    stores = [f"{nan_store}{word}" if word.startswith("@") else word for word in rest]
    named = [] if any(word.startswith("@") for word in rest) else [nan_store]
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for width in (80, 50):
        monkeypatch.setenv("COLUMNS", str(width))
        printed = ESCAPES.sub("", answer(command, *named, *stores, code=code).stdout)
        for line in printed.splitlines():
            longest = max(map(len, line.split()), default=0)
            assert cell_width(line) <= width or longest > width - 18, (width, line)


def test_a_file_is_replaced_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "values.csv"
    write_file(path, b"\x89PNG")
    write_and_say(path, "step\n")
    assert path.read_bytes() == b"step\n"
    assert "wrote" in capsys.readouterr().err


def test_names_that_are_not_unicode_are_escaped(tmp_path: Path) -> None:
    """A file of a dump may have any bytes in its name."""
    write_file(tmp_path / "page.html", "a\udcffb")
    assert (tmp_path / "page.html").read_text() == "a\\udcffb"


@pytest.mark.parametrize("name", ["missing/page.html", "."])
def test_what_cannot_be_written_is_refused_before_and_after_the_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written") as early:
        check_writable(tmp_path / name, "--html")
    assert "--html" in early.value.hint
    with pytest.raises(UsageError, match="cannot be written"):
        write_file(tmp_path / name, "")


# Standard output of every kind: an answer is whole, or the command says that it is not.


_REFUSAL = "error: the answer cannot be written to standard output: {}\n  It is incomplete."


def answered(*words: object, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run the command with its standard output as `given`."""
    env = environment({"PYTHONUNBUFFERED": "", **given.pop("env", {})})
    done = subprocess.run(
        [PROGRAM, *map(str, words)], env=env, stderr=subprocess.PIPE, text=True, check=False, **given
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = answered("config", "schema", stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith(_REFUSAL.format("No space left on device"))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_of_which_the_disk_takes_a_part_is_not_called_whole(
    tmp_path: Path, unbuffered: str
) -> None:
    """An unbuffered stream of Python would drop the rest without an error."""
    with (tmp_path / "schema.json").open("w") as file:
        done = answered(
            "rules",
            "schema",
            stdout=file,
            env={"PYTHONUNBUFFERED": unbuffered},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        )
    assert (tmp_path / "schema.json").stat().st_size == 4096
    assert done.returncode == 1
    assert done.stderr.startswith(_REFUSAL.format("File too large"))


def test_a_reader_that_has_gone_ends_the_command_without_a_word() -> None:
    read, write = os.pipe()
    os.close(read)
    done = answered("config", "schema", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_command_runs_with_closed_streams() -> None:
    done = subprocess.run(["sh", "-c", f"{PROGRAM} config schema >&- 2>&-"], env=environment(), check=False)
    assert done.returncode == 0


def test_characters_that_a_locale_lacks_are_escaped(nan_store: Path) -> None:
    done = answered(
        *("trend", nan_store, "Log*.input.0", "--rank", 0),
        stdout=subprocess.PIPE,
        env={"PYTHONIOENCODING": "latin-1"},
    )
    assert done.returncode == 0
    assert done.stdout.endswith(r"\u2581\u2585\u2588" + "\n")


@pytest.mark.parametrize("width", [60, 200])
def test_a_table_fits_the_terminal_that_it_is_printed_on(width: int) -> None:
    """And not the 80 characters of a terminal that nobody asked."""
    terminal, given = pty.openpty()
    fcntl.ioctl(given, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    with os.fdopen(terminal, "rb"), os.fdopen(given, "wb") as stdout:
        answered("rules", "list", stdout=stdout, env={"COLUMNS": "", "TERM": "dumb"})
        lines = os.read(terminal, 65536).decode().splitlines()
    assert width - 30 < max(map(len, lines)) <= width + 20  # names of rules are not shortened


# How a command ends.


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Leave the signals of the test process as they were."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("x"), 2), (DamagedStore("x"), 3), (StoreUnavailable("x"), 1), (DumpIngestError("x"), 1)],
)
def test_the_kind_of_an_error_is_the_exit_code(error: DumpIngestError, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_ends_the_process(number: signal.Signals) -> None:
    program = f"""
import signal
from ingest.cli.exits import stop_on_signals
stop = stop_on_signals()
assert not stop.is_set()
signal.raise_signal({int(number)})
assert stop.is_set()
print("asked", flush=True)
signal.raise_signal({int(number)})
print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "asked\n"), done.stderr


def test_signals_are_heard_while_a_file_of_the_dump_hangs(
    tmp_path: Path, make_hanging: Callable[[Callable[[], None]], HangingFiles]
) -> None:
    """The read is in the kernel, where nothing but SIGKILL reaches it: the process ends beside it."""
    hangs, dump = threading.Event(), MadeDump(tmp_path / "dump")
    make_hanging(hangs.set).add(dump.add(np.ones(4, "<f4")))
    with start("ingest", dump.root, "--store", tmp_path / "run.zarr") as running:
        assert hangs.wait(60)
        running.process.send_signal(signal.SIGINT)
        assert running.finish() == 130
    assert running.lines[0].startswith("stopping")


#: Every command that asks a store, each of which must answer about the undamaged steps.
ASKING = {
    "ls": ("ls", "STORE"),
    "ls --tensors": ("ls", "STORE", "--tensors"),
    "ls --problems": ("ls", "STORE", "--problems"),
    "find": ("find", "STORE", "--op-type", "MatMul"),
    "anomalies": ("anomalies", "STORE"),
    "origin": ("origin", "STORE", "--where", "max > 0"),
    "divergence": ("divergence", "STORE", "--group", "0-1"),
    "trend": ("trend", "STORE", "*"),
    "heatmap": ("heatmap", "STORE", "*"),
    "trampled": ("trampled", "STORE"),
    "audit": ("audit", "STORE"),
    "export": ("export", "STORE", "OUT"),
    "rules test": ("rules", "test", "STORE"),
    "compare": ("compare", "STORE", "STORE"),
    "compare --over-steps": ("compare", "STORE@0", "STORE@0", "--over-steps"),
    "verify": ("verify", "STORE"),
    "repair": ("repair", "STORE"),
    "consolidate": ("consolidate", "STORE", "--check"),
}


@pytest.mark.parametrize(
    ("command", "damaged"),
    [
        *((command, "zarr.json") for command in ASKING),
        *((command, "*/index/labels/c/0/0") for command in ("find", "trend", "compare", "export", "verify")),
    ],
)
def test_one_damaged_step_stops_no_answer_about_others(
    command: str, damaged: str, answer: Answer, tmp_path: Path
) -> None:
    """Every command names the step on stderr or in its list of damage, and exits with 3."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        for rank in range(2):
            dump.add(np.arange(5.0), tensor_name(time=1), step=step, rank=rank)
    ingest_directly(dump.root, store)
    (path,) = (store / "rank_0/step_1").glob(damaged)
    path.write_text("{}")
    places = {"STORE": store, "STORE@0": f"{store}@0", "OUT": tmp_path / "out"}

    done = answer(*(places.get(word, word) for word in ASKING[command]), code=3)

    assert "rank 0 step 1" in done.stderr + done.stdout
    if command not in ("verify", "repair", "consolidate", "compare"):
        assert done.stdout or command in ("export", "anomalies", "divergence", "ls --problems", "trampled")
    if command == "export":
        assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) == 5
