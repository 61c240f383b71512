"""Home directories in paths."""

from pathlib import Path

import pytest

from workers.errors import UsageError
from workers.host.home import absolute


def test_a_home_directory_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert absolute(Path("~/run.zarr")) == absolute(Path("run.zarr")) == tmp_path / "run.zarr"
    assert absolute(tmp_path / "~nobody-of-that-name") == tmp_path / "~nobody-of-that-name"


def test_a_user_who_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="~nobody-of-that-name is no home directory") as raised:
        absolute(Path("~nobody-of-that-name/run.zarr"))
    assert "$PWD/~nobody-of-that-name" in raised.value.hint
