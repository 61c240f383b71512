"""What fits a terminal."""

import re
import sys
from pathlib import Path

import pytest
from rich.text import Text

from ingest.cli.printing import cell_width, cell_widths, fitted, wrapped
from tests.cli import Answer

NAMES = [f"Conv2D.Default_net_conv{number}-Conv2d_Conv2D-op0.output.0" for number in range(3)]
ROWS = [("0", name, "float32", "-", f"{number}.5", "1e-30") for number, name in enumerate(NAMES)]
COLUMNS = ("rank", "name", "dtype", "note", "max", "std")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def test_a_table_with_room_is_left_as_it_is() -> None:
    table = fitted(COLUMNS, ROWS, right=("max", "std"), spare=("std",), width=120)
    assert (table.columns, table.same, table.left_out) == ([*COLUMNS], {}, [])
    assert table.rows == [list(row) for row in ROWS]


def test_what_all_rows_share_goes_first_then_spare_columns_then_the_middle_of_names() -> None:
    table = fitted(COLUMNS, ROWS, right=("max", "std"), spare=("std", "max"), width=50)
    assert table.columns == ["name", "dtype", "max"]
    assert table.same == {"std": "1e-30", "rank": "0"}
    assert table.left_out == []
    narrow = fitted(
        ("step", *COLUMNS[1:]),
        [(str(number), *row[1:5], f"{number}e9") for number, row in enumerate(ROWS)],
        right=("step", "max", "std"),
        spare=("std", "max"),
        width=40,
    )
    assert (narrow.columns, narrow.left_out) == (["step", "name"], ["std", "max"])
    assert sum(cell_widths(narrow.columns, narrow.rows)) + 2 <= 40
    assert len({str(row[1]) for row in narrow.rows}) == 3


def test_cells_are_as_wide_as_a_terminal_shows_them() -> None:
    assert [cell_width(cell) for cell in ("abc", "步", Text("▁!!", "bold red"))] == [3, 2, 3]


def test_prose_breaks_between_words_and_names_stay_whole() -> None:
    assert wrapped("short", 20) == ["short"]
    assert wrapped("  at [0, 1]: input 0 = -Inf, output = NaN", 24) == [
        "  at [0, 1]: input 0 =",
        "    -Inf, output = NaN",
    ]
    name = "x" * 50
    assert wrapped(f"first {name} broke in step 1", 30) == [f"first {name}", "  broke in step 1"]
    assert wrapped("field  one two three", 14, indent=7) == ["field  one two", "       three"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("ls",), 0),
        (("ls", "--files"), 0),
        (("find", "--where", "nan_count > 0"), 0),
        (("anomalies",), 0),
        (("origin",), 0),
        (("divergence",), 0),
        (("divergence", "--links"), 0),
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
