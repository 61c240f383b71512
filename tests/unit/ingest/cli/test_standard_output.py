"""Standard output of every kind: an answer is whole, or the command says that it is not."""

import fcntl
import os
import pty
import resource
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.cli import PROGRAM, environment

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
