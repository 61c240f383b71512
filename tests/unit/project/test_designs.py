"""What the design notes promise."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_a_note_names_is_there() -> None:
    named = {
        name
        for note in (ROOT / "docs" / "design").glob("*.md")
        for name in re.findall(r"`(test_\w+)`", note.read_text("utf-8"))
    }
    written = set[str]()
    for module in (ROOT / "tests").rglob("test_*.py"):
        written |= {module.stem, *re.findall(r"^def (test_\w+)\(", module.read_text("utf-8"), re.MULTILINE)}
    assert named
    assert named - written == set()
