"""Files that the user has named are complete, or not there."""

from pathlib import Path

import pytest

from ingest.reader.output_file import output_file
from workers.errors import StoreDenied


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old")
    with output_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [StoreDenied("no"), KeyboardInterrupt()])
def test_after_an_error_the_older_file_is_there_and_nothing_else(
    error: BaseException, tmp_path: Path
) -> None:
    """Errors of the store keep their class, although some are errors of the operating system, too."""
    path = tmp_path / "page.html"
    path.write_bytes(b"old")

    def write_and_fail() -> None:
        with output_file(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)):
        write_and_fail()
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"page.html": b"old"}
