"""Files are written below a directory, whatever others do to it meanwhile."""

from pathlib import Path

import pytest

from ingest.reader.export import TargetDirectory
from workers.errors import UsageError


def test_a_link_that_appears_between_check_and_write_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with TargetDirectory(tmp_path / "out") as target:
        assert not target.check(("a", "b"), "file")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a").symlink_to(elsewhere)
        with pytest.raises(UsageError, match="out/a is a symbolic link"):
            target.open(("a", "b"), "file")
    assert list(elsewhere.iterdir()) == []


def test_a_name_that_became_a_link_is_not_written_through(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"precious")
    with TargetDirectory(tmp_path / "out") as target:
        target.open((), "file").close()
        (tmp_path / "out" / "file").unlink()
        (tmp_path / "out" / "file").symlink_to(secret)
        with pytest.raises(UsageError, match="out/file is a symbolic link"):
            target.open((), "file")
    assert secret.read_bytes() == b"precious"
