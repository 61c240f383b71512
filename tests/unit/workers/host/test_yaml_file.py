"""YAML that a user writes: values, their lines, and what is refused."""

import time
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from workers.errors import UsageError
from workers.host.yaml_file import load_model, parse, read_text

TEXT = """\
name: run

rules:
  - name: first
    ranks: [0, 1]
  -
    name: second
"""


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    size: int = 0


class Entries(BaseModel):
    model_config = ConfigDict(extra="forbid")

    entries: list[Entry] = []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ((), 1),
        (("name",), 1),
        (("rules",), 3),
        (("rules", 0), 4),
        (("rules", 0, "ranks"), 5),
        (("rules", 0, "ranks", 1), 5),
        (("rules", 1, "name"), 7),
        (("rules", 1, "none"), 7),
        (("rules", 9), 3),
        (("none", 0), 1),
    ],
)
def test_a_value_knows_its_line(place: tuple[str | int, ...], line: int) -> None:
    """What does not exist has the line of what is above it."""
    assert parse(TEXT, "f.yml").at(*place) == f"f.yml:{line}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [", "f.yml:2: not valid YAML: "),
        ("a:\n  b: 1\n c: 2\n", "f.yml:3: not valid YAML: "),
        ("a: \x00", "f.yml: not valid YAML: "),
        ("a: 1\n---\nb: 2", "f.yml:2: but found another document"),
        ("\na: !!python/name:os.system", "f.yml:2: could not determine a constructor"),
        ("a: 1\nb: 2025-02-30", "f.yml:2: "),
        (f"a: 1\nb: {'9' * 5000}", "f.yml:2: a number of 5000 digits is too long"),
        (f"a: 1\nb: 0x{'f' * 5000}", "f.yml:2: a number of 5002 digits is too long"),
        ("a: {b: 1,\n b: 2}", "f.yml:2: b occurs twice"),
        ("a: &x 1\nb: *x", "f.yml:2: aliases are not allowed"),
        ("[" * 5000, "f.yml:1: nested too deeply"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "f.yml")
    assert raised.value.message.startswith(message)


def test_every_mistake_of_a_model_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "e.yml"
    path.write_text("entries:\n  - name: a\n    size: big\n  - name: b\n    sise: 1\n")
    with pytest.raises(UsageError) as raised:
        load_model(path, Entries, "See the example.")
    first, second = raised.value.message.splitlines()
    assert first.startswith(f"{path}:3: entries.0.size: ")
    assert second == f"{path}:5: entries.1.sise: is not known"
    assert raised.value.hint == "See the example."


def test_a_file_that_refers_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.yml"
    path.write_text("entries: &a [*a]")
    with pytest.raises(UsageError):
        load_model(path, Entries, "")


def test_what_is_not_a_text_file_of_this_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.yml"
    with pytest.raises(UsageError, match="No such file"):
        read_text(path)
    with pytest.raises(UsageError, match="Is a directory"):
        read_text(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_text(path)
    path.write_bytes(b"abcd")
    with pytest.raises(UsageError, match="larger than 3 bytes"):
        read_text(path, max_nbytes=3)


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "a:\n  " + "[" * 100_000])
def test_deep_nesting_is_refused_at_once(text: str) -> None:
    before = time.process_time()
    with pytest.raises(UsageError, match=r"rules.yml:\d+: nested too deeply"):
        parse(text, "rules.yml")
    assert time.process_time() - before < 5
