"""Home directories and the current directory in paths."""

import os
from pathlib import Path

import pytest

from workers.errors import ClusterError, UsageError
from workers.host.paths import absolute, check_scratch, is_private, own_directory


def test_a_current_directory_that_was_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    (tmp_path / "run").rmdir()
    with pytest.raises(UsageError, match=r"run\.zarr: the current directory was deleted"):
        absolute(Path("run.zarr"))
    assert absolute(tmp_path / "run.zarr") == tmp_path / "run.zarr"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files as `/tmp` is."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    return shared


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o701])
def test_one_that_others_can_enter_is_not_used(temporary: Path, mode: int) -> None:
    directory = temporary / f"dump-ingest-{os.getuid()}"
    directory.mkdir()
    directory.chmod(mode)
    assert own_directory() is None


def test_one_of_another_user_is_not_used(temporary: Path, other_user: int) -> None:
    directory = temporary / f"dump-ingest-{os.getuid()}"
    directory.mkdir(mode=0o700)
    os.chown(directory, other_user, other_user)
    assert own_directory() is None


def test_a_link_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (temporary / f"dump-ingest-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert own_directory() is None


def test_nothing_is_private_where_others_may_rename_it(temporary: Path) -> None:
    """In a directory without the sticky bit, they could put another one in its place."""
    directory = temporary / "mine"
    directory.mkdir(mode=0o700)
    assert is_private(directory)
    temporary.chmod(0o777)
    assert not is_private(directory)


def test_a_scratch_directory_may_be_read_by_others_but_not_written(temporary: Path) -> None:
    directory = temporary / "dask-scratch-space"
    directory.mkdir(mode=0o755)
    check_scratch(directory)
    directory.chmod(0o777)
    with pytest.raises(ClusterError, match="dask-scratch-space belongs to another user, or others may"):
        check_scratch(directory)
