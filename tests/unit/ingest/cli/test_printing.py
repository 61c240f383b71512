"""Tables, JSON, files and messages, and what of them fits a terminal."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from ingest.cli import printing
from ingest.cli.printing import (
    cell_width,
    cell_widths,
    check_writable,
    fitted,
    print_table,
    write_and_say,
    write_file,
)
from tests.cli import Answer, strict_json
from workers.errors import UsageError
from workers.store.strict_json import dumps

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


NAMES = [f"Conv2D.Default_net_conv{number}-Conv2d_Conv2D-op0.output.0" for number in range(3)]
ROWS = [("0", name, "float32", "-", f"{number}.5", "1e-30") for number, name in enumerate(NAMES)]
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
