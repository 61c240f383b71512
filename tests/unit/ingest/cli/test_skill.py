"""`dump-ingest skill`."""

from importlib.resources import files
from pathlib import Path

from tests.cli import Answer


def test_the_skill_is_printed_line_by_line_and_installed(answer: Answer, tmp_path: Path) -> None:
    text = files("ingest.agents").joinpath("SKILL.md").read_text("utf-8")
    assert answer("skill").stdout == text
    answer("skill", "--install", "--to", tmp_path)
    assert (tmp_path / "dump-ingest" / "SKILL.md").read_text("utf-8") == text
