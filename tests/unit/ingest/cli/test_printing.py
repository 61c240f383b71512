"""Tables, JSON and messages."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from ingest.cli import printing
from ingest.cli.printing import (
    print_table,
)
from tests.cli import strict_json
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


def test_commands_write_json_only_in_the_strict_way() -> None:
    """`json.dumps` writes NaN, which no other reader of JSON takes."""
    directory = Path(printing.__file__).parent
    careless = [
        path.name
        for path in directory.glob("*.py")
        if "json.dumps" in path.read_text().replace("strict_json.dumps", "")
    ]
    assert careless == []


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
