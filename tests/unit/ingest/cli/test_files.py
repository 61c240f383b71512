"""Files that commands write for people."""

from pathlib import Path

import pytest

from ingest.cli.printing import check_writable, write_and_say, write_file
from workers.errors import UsageError


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
