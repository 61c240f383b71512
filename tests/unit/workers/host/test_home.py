"""Home directories and the current directory in paths."""

from pathlib import Path

import pytest

from workers.errors import UsageError
from workers.host.paths import absolute


def test_a_home_directory_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert absolute(Path("~/run.zarr")) == absolute(Path("run.zarr")) == tmp_path / "run.zarr"
    assert absolute(tmp_path / "~nobody-of-that-name") == tmp_path / "~nobody-of-that-name"


def test_a_user_who_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="the home directory ~nobody-of-that-name does not exist") as raised:
        absolute(Path("~nobody-of-that-name/run.zarr"))
    assert "$PWD/~nobody-of-that-name" in raised.value.hint


def test_a_current_directory_that_was_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    (tmp_path / "run").rmdir()
    with pytest.raises(UsageError, match=r"run\.zarr: the current directory was deleted"):
        absolute(Path("run.zarr"))
    assert absolute(tmp_path / "run.zarr") == tmp_path / "run.zarr"
